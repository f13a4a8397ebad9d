from __future__ import annotations

import json
from array import array
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidJson
from millstream.protocol.json_mode import EMPTY, Messages, split_body
from tests.unit.effort import brief, briefer


def texts(messages: Messages) -> list[bytes]:
    """Each message cut out by `ends`, without its comma."""
    ends = array("I")
    ends.frombytes(messages.ends)
    if not messages.ends:
        ends = array("I", [len(messages.data)] if messages.total else [])
    assert len(ends) == messages.total
    starts = [0, *ends][: len(ends)]
    assert (ends[-1] if ends else 0) == len(messages.data)
    slices = [messages.data[start:end] for start, end in zip(starts, ends, strict=True)]
    assert all(piece.endswith(b",") for piece in slices)
    return [piece[:-1] for piece in slices]


@pytest.mark.parametrize(
    "body", [b"1", b'"a"', b"null", b"true", b"false", b"-0.0", b"{}", b'{"a":[1,2]}', b'""']
)
def test_any_value_that_is_no_array_is_one_message(body: bytes) -> None:
    assert split_body(body) == Messages(body + b",", b"", 1)


def test_an_array_is_flattened_one_level() -> None:
    assert texts(split_body(b'[1,[2,3],{"a":[4]},[]]')) == [b"1", b"[2,3]", b'{"a":[4]}', b"[]"]


def test_an_array_of_one_is_one_message_without_ends() -> None:
    assert split_body(b"[[1,2]]") == Messages(b"[1,2],", b"", 1)


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"\r\n[\t]\n"])
def test_an_empty_array_is_no_message(body: bytes) -> None:
    assert split_body(body) == EMPTY


def test_whitespace_around_messages_goes_and_inside_them_stays() -> None:
    body = b' \t\r\n[ 1 ,\n{ "a" : [ 1 , 2 ] }\t,\r"  x  " ] \n'
    assert texts(split_body(body)) == [b"1", b'{ "a" : [ 1 , 2 ] }', b'"  x  "']


def test_whitespace_around_a_single_value_goes() -> None:
    assert split_body(b' \n{"a": 1}\r\n\t').data == b'{"a": 1},'


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"1" * 5000, id="an integer of 5000 digits"),
        pytest.param(b"0.1000000000000000055511151231257827", id="a long fraction"),
        pytest.param(b"1e999999", id="a number beyond any float"),
        pytest.param(b"1E+05", id="an exponent with sign and zero"),
        pytest.param(b"-0", id="minus zero"),
        pytest.param(b'{"b":1,"a":2,"b":3}', id="duplicate keys in their order"),
        pytest.param(b'"\\u00e9\\/\\n"', id="escapes"),
        pytest.param('"é\u2028😀"'.encode(), id="characters that need no escape"),
        pytest.param(b'"\x7f"', id="DEL"),
    ],
)
@pytest.mark.parametrize("template", [b"%b", b"[%b]", b"[0,%b]"])
def test_a_message_is_kept_as_the_very_bytes_that_were_sent(value: bytes, template: bytes) -> None:
    assert texts(split_body(template % value))[-1] == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"[",
        b"]",
        b"[1",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1]]",
        b"1 2",
        b"1,2",
        b"1,",
        b"[1],",
        b'{"a":1}{"b":2}',
        b'{"a":1}\n{"b":2}',
        b"{",
        b'{"a":1,}',
        b'{"a"}',
        b'{"a" 1}',
        b"{1:2}",
        b"{a:1}",
        b"'a'",
        b'"a',
        b'"\\x"',
        b'"\\u12g4"',
        b'"\\u12"',
        b'"a\nb"',
        b'"a\x01"',
        b"01",
        b"-",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"0x1",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"[NaN]",
        b"tru",
        b"True",
        b"nul",
        b"None",
        b"undefined",
        b"/* c */1",
        b"1 // c",
        b"\xef\xbb\xbf1",
        b"\x0b1",
        "\u00a01".encode(),
        b"1\0",
        b"\0",
        b'["\\ud800", NaN]',
        b'["\\ud800",]',
        b'["\\ud800"] 1',
        b'"\\ud800"\x0b',
        b'{"\\ud800":}',
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_body(body)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"\xff", 0),
        (b'"ab\xc3"', 3),
        (b'["\xed\xa0\x80"]', 2),
        (b'"\xc0\x80"', 1),
        (b'"\xf4\x90\x80\x80"', 1),
        ('"é"'.encode("latin-1"), 1),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(body: bytes, place: int) -> None:
    with pytest.raises(InvalidJson, match=f"not UTF-8 at byte {place}"):
        split_body(body)


@pytest.mark.parametrize(
    "body", ['{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-16-le"), b'"\x80"']
)
def test_other_encodings_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_body(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'"\\ud800"', [b'"\\ud800"']),
        (b'"\\udc00\\ud800"', [b'"\\udc00\\ud800"']),
        (b' ["\\uD800" , [ 1 ] ,"],[" ]\n', [b'"\\uD800"', b"[ 1 ]", b'"],["']),
        (b'[{"\\udfff":1}]', [b'{"\\udfff":1}']),
        ('["\\ud800x","é😀"]'.encode(), [b'"\\ud800x"', '"é😀"'.encode()]),
        (b'{"a":"\\ud83d"}', [b'{"a":"\\ud83d"}']),
    ],
)
def test_half_a_surrogate_pair_is_kept_as_it_was_escaped(
    body: bytes, expected: list[bytes]
) -> None:
    assert texts(split_body(body)) == expected


def test_a_long_number_beside_half_a_surrogate_pair_is_kept() -> None:
    number = b"1" * 5000
    assert texts(split_body(b'["\\ud800",' + number + b"]")) == [b'"\\ud800"', number]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="arrays"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="objects"),
        pytest.param(b"[" * 100_000, id="arrays never closed"),
        pytest.param(b"[" * 100_000 + b'"\\ud800"' + b"]" * 100_000, id="with a lone surrogate"),
        pytest.param(b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001, id="after a lone surrogate"),
    ],
)
def test_deep_nesting_is_refused_and_does_not_crash(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_body(body)


@pytest.mark.parametrize("depth", [1, 100, 500])
def test_sensible_nesting_is_accepted(depth: int) -> None:
    value = b"[" * depth + b"]" * depth
    assert texts(split_body(b"[1," + value + b"]")) == [b"1", value]


any_text = st.text(alphabet=st.characters(exclude_categories=()), max_size=8)  # surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
spaces = st.text(alphabet=" \t\r\n", max_size=3)


@given(st.lists(json_values, max_size=8), st.data())
@brief
def test_cutting_by_ends_gives_each_elements_own_text(
    values: list[Any], data: st.DataObject
) -> None:
    elements = [json.dumps(value, indent=data.draw(st.sampled_from([None, 1]))) for value in values]
    around = [data.draw(spaces) + element + data.draw(spaces) for element in elements]
    body = data.draw(spaces) + "[" + ",".join(around) + "]" + data.draw(spaces)
    messages = split_body(body.encode())
    assert texts(messages) == [element.encode() for element in elements]
    assert [json.loads(text) for text in texts(messages)] == values


@given(json_values)
@briefer
def test_a_read_of_all_messages_is_the_array_that_was_sent(value: Any) -> None:
    sent = value if isinstance(value, list) else [value]
    messages = split_body(json.dumps(value).encode())
    assert json.loads(b"[" + messages.data[:-1] + b"]") == sent
    assert messages.total == len(sent)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


STRUCTURE = ["[", "]", "{", "}", ",", ":", " ", "\n", "\ufeff", "\x01", "/"]
STRINGS = ['"', '"a"', '"a":', "\\", "\\ud800", '"\\udc00"', "é"]
SCALARS = ["0", "1", "-", ".", "e", "true", "null", "nul", "NaN"]
tokens = st.sampled_from(STRUCTURE + STRINGS + SCALARS)


@given(st.lists(tokens, max_size=7).map("".join))
@brief
def test_exactly_what_a_strict_parser_takes_is_accepted(text: str) -> None:
    try:
        json.loads(text.encode(), parse_constant=refuse_constant)
        expected = not text.startswith("\ufeff")  # json.loads forgives a byte order mark
    except ValueError:
        expected = False
    try:
        split_body(text.encode())
        accepted = True
    except InvalidJson:
        accepted = False
    assert accepted == expected, text
