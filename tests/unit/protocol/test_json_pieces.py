"""Large bodies, step by step, against the same bodies all at once."""

from __future__ import annotations

import json
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidJson, TooManyMessages
from millstream.limits import BLOCK_BYTES, JSON_STEP_BYTES, JSON_TOKEN_BYTES_MAX
from millstream.protocol.json_mode import Messages, split_body
from millstream.protocol.json_pieces import LargeMessages, split_large_body
from tests.unit.effort import brief

ANY = 1 << 40
STEPS = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 64, 1000])


def joined(found: LargeMessages) -> Messages:
    return Messages(b"".join(found.pieces), found.ends, found.total)


def outcome_of(split: object, *arguments: object) -> Messages | None:
    """None: refused."""
    try:
        found = split(*arguments)  # type: ignore[operator]
    except InvalidJson:
        return None
    return joined(found) if isinstance(found, LargeMessages) else found


texts = st.text(st.sampled_from('a,"[]{}:\\/\u00e9\u4e16\U0001f600\n 0'), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
layouts = st.sampled_from([None, 0, 2, "\t"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    value = draw(st.lists(values, max_size=6) | values)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(layouts))
    return (
        draw(st.sampled_from(["", " ", "\r\n"])).encode()
        + text.encode()
        + b" " * draw(st.integers(0, 2))
    )


@given(bodies(), STEPS)
@brief
def test_the_same_messages_as_all_at_once(body: bytes, step: int) -> None:
    assert joined(split_large_body(body, ANY, step)) == split_body(body)


MARKS = [
    b",",
    b'"',
    b"[",
    b"]",
    b"{",
    b"}",
    b":",
    b"\\",
    b"0",
    b" ",
    b"\n",
    b"\xc3",
    b"\\ud800",
    b"-",
]


@given(bodies(), STEPS, st.data())
@brief
def test_the_same_bodies_are_refused(body: bytes, step: int, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        gone = data.draw(st.integers(0, 2))
        body = body[:place] + data.draw(st.sampled_from(MARKS)) + body[place + gone :]
    assert outcome_of(split_large_body, body, ANY, step) == outcome_of(split_body, body)


@given(st.lists(st.sampled_from(MARKS), max_size=14), STEPS)
@brief
def test_nonsense_is_judged_alike(parts: list[bytes], step: int) -> None:
    body = b"".join(parts)
    assert outcome_of(split_large_body, body, ANY, step) == outcome_of(split_body, body)


LONG = 300_000


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b"x" * LONG + b'"',
        b'["' + b"x" * LONG + b'", 1]',
        b'{"a": {"b": ["' + b"y" * LONG + b'"]}}',
        b'{"' + b"k" * LONG + b'": "' + b"v" * LONG + b'"}',
        b'[{"a":1,"' + b"k" * LONG + b'":2}]',
        b'"' + b"\\u0041" * (LONG // 6) + b'"',
        b'"' + b"\\ud83d\\ude00" * (LONG // 12) + b'"',
        b'"' + b"\\\\" * (LONG // 2) + b'"',
        b'"' + b'\\"' * (LONG // 2) + b'"',
        b'"' + b"\\ud800" * (LONG // 6) + b'"',
        b'"' + "\u4e16".encode() * (LONG // 3) + b'"',
        b'"' + "\U0001f600".encode() * (LONG // 4) + b'"',
        b"[" + b"[1,2]," * (LONG // 6) + b'{"a":[]}]',
        b"[" + b"1 ,\n" * (LONG // 4) + b" 2 ]",
        b'{"a":[' + b"1," * (LONG // 2) + b"1]}",
        b"[]" + b" " * LONG,
        b"[" + b" " * LONG + b"]",
        b" " * LONG + b"7",
    ],
)
def test_long_things_of_each_kind(body: bytes) -> None:
    assert joined(split_large_body(body, ANY, 50_000)) == split_body(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[,1" + b",1" * LONG + b"]",
        b"[1" + b",1" * LONG + b",]",
        b"[1" + b",1" * LONG + b",,1]",
        b"[1" + b",1" * LONG + b"}",
        b"[1" + b",1" * LONG + b"]]",
        b"[1" + b",1" * LONG + b"] [1]",
        b"[1" + b",1" * LONG,
        b"1" + b",1" * LONG,
        b'{"a":1' + b',"a":1' * LONG + b",1}",
        b'{"' + b"k" * LONG + b'"}',
        b'["' + b"k" * LONG + b'":1]',
        b'["' + b"x" * LONG + b"\n" + b"x" * LONG + b'"]',
        b'["' + b"x" * LONG + b"\\x" + b"x" * LONG + b'"]',
        b'["' + b"x" * LONG + b"\xff" + b"x" * LONG + b'"]',
        b'["' + b"x" * LONG,
        b"[" * 2000 + b"]" * 2000 + b" " * LONG,
        b"1" * (JSON_TOKEN_BYTES_MAX + LONG),
        b" " * (JSON_TOKEN_BYTES_MAX + LONG),
        b"",
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_large_body(body, ANY, 50_000)


def test_a_refusal_says_where() -> None:
    body = b"[" + b"1," * 100_000 + b"x," + b"1," * 100_000 + b"1]"
    with pytest.raises(InvalidJson, match=r"between the bytes 1[5-9]\d{4} and 2\d{5}"):
        split_large_body(body, ANY, 50_000)
    with pytest.raises(InvalidJson, match="not UTF-8 at byte 100001"):
        split_large_body(b'"' + b"x" * 100_000 + b"\xff" + b"x" * 100_000 + b'"', ANY, 50_000)


def test_too_many_are_refused_with_both_numbers() -> None:
    body = b"[" + b",".join([b"1"] * 100_000) + b"]"
    assert split_large_body(body, 100_000, 50_000).total == 100_000
    with pytest.raises(TooManyMessages, match=r"100000 messages; at most 99999 "):
        split_large_body(body, 99_999, 50_000)


def test_pieces_are_of_whole_messages_and_bounded_unless_a_message_is_larger() -> None:
    large = b'"' + b"x" * (3 * BLOCK_BYTES) + b'"'
    messages = [b"%d" % number for number in range(400_000)]
    messages[200_000] = large
    found = split_large_body(b"[" + b",".join(messages) + b"]", ANY)
    assert b"".join(found.pieces) == b",".join(messages) + b","
    ends = {0, *array("I", found.ends)}
    place = 0
    for piece in found.pieces:
        assert len(piece) < BLOCK_BYTES + JSON_STEP_BYTES or large in piece
        place += len(piece)
        assert place in ends


@pytest.mark.parametrize(
    ("head", "unit", "tail"),
    [(b"[", b"1,", b"1]"), (b'"', b"\\u0041", b'"'), (b"[", b'{"a":["b"]},', b"1]")],
)
def test_the_time_grows_with_the_body_and_not_faster(head: bytes, unit: bytes, tail: bytes) -> None:
    def seconds(size: int) -> float:
        body = head + unit * (size // len(unit)) + tail
        began = time.thread_time()
        split_large_body(body, ANY)
        return time.thread_time() - began

    quarter = min(seconds(4 << 20) for _ in range(3))
    assert min(seconds(16 << 20) for _ in range(2)) < 12 * quarter
