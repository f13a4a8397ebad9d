from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.protocol.sse import (
    HEARTBEAT,
    encode_binary_data,
    encode_control,
    encode_json_data,
    encode_text_data,
    incomplete_utf8_bytes,
)
from tests.unit.effort import brief

OFFSET = "0000000000000003_0000000000000042"


def events(wire: bytes) -> list[tuple[str, str]]:
    """(event, data) pairs as the WHATWG algorithm dispatches them."""
    found: list[tuple[str, str]] = []
    kind = ""
    data: list[str] = []
    text = wire.decode().replace("\r\n", "\n").replace("\r", "\n")
    for line in text.split("\n"):
        if not line:
            if data:
                found.append((kind, "\n".join(data)))
            kind, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)
    return found


def control_of(wire: bytes) -> object:
    ((kind, data),) = events(wire)
    assert kind == "control"
    return json.loads(data)


def test_a_data_frame_has_a_space_behind_event_and_none_behind_data() -> None:
    assert encode_text_data(b"hello") == b"event: data\ndata:hello\n\n"


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_every_kind_of_line_end_begins_a_new_data_line(line_end: bytes) -> None:
    assert encode_text_data(b"a" + line_end + b"b") == b"event: data\ndata:a\ndata:b\n\n"


def test_crlf_counts_once_and_lf_cr_twice() -> None:
    assert encode_text_data(b"a\r\n\r\nb") == b"event: data\ndata:a\ndata:\ndata:b\n\n"
    assert encode_text_data(b"a\n\rb") == b"event: data\ndata:a\ndata:\ndata:b\n\n"


@pytest.mark.parametrize(
    "payload",
    [
        b"x\n\nevent: control\ndata:{}",
        b"x\r\revent: control\rdata:{}",
        b"x\r\n\r\nevent: control\r\ndata:{}",
        b"x\r\n\revent: control\n\rdata:{}\n\n",
    ],
)
def test_a_payload_cannot_forge_an_event(payload: bytes) -> None:
    assert [kind for kind, _ in events(encode_text_data(payload))] == ["data"]
    assert [kind for kind, _ in events(encode_json_data(payload + b","))] == ["data"]


@given(st.text(alphabet=st.sampled_from("ab \r\n:é")))
@example(" world")  # readers drop one space behind the colon: it went missing
@example("a\n  b\r \n c")
@brief
def test_text_arrives_whole_in_one_event_with_its_line_ends_as_lf(payload: str) -> None:
    whole = payload.replace("\r\n", "\n").replace("\r", "\n")
    assert events(encode_text_data(payload.encode())) == [("data", whole)]


@pytest.mark.parametrize(
    ("payload", "expected"), [(b"a\xffb", "a\ufffdb"), (b"\xed\xa0\x80", "\ufffd" * 3)]
)
def test_bytes_that_are_no_text_become_replacement_characters(
    payload: bytes, expected: str
) -> None:
    assert events(encode_text_data(payload)) == [("data", expected)]


def test_json_messages_become_one_array() -> None:
    assert encode_json_data(b'{"a":1},2,') == b'event: data\ndata:[{"a":1},2]\n\n'


def test_json_printed_over_several_lines_still_reads_as_the_same_value() -> None:
    ((_, data),) = events(encode_json_data(b'{\r\n  "a":\n1\r},'))
    assert json.loads(data) == [{"a": 1}]


@given(st.binary(max_size=200))
@brief
def test_binary_goes_as_one_line_of_base64(payload: bytes) -> None:
    wire = encode_binary_data(payload)
    assert wire.startswith(b"event: data\ndata:")
    assert wire.endswith(b"\n\n")
    assert base64.b64decode(wire[17:-2], validate=True) == payload


def test_a_control_event_names_offset_and_cursor() -> None:
    wire = encode_control(OFFSET, 17, up_to_date=False, closed=False)
    assert control_of(wire) == {"streamNextOffset": OFFSET, "streamCursor": "17"}


def test_a_control_event_at_the_tail_says_so() -> None:
    wire = encode_control(OFFSET, 17, up_to_date=True, closed=False)
    expected = {"streamNextOffset": OFFSET, "streamCursor": "17", "upToDate": True}
    assert control_of(wire) == expected


def test_the_control_event_of_a_closed_stream_has_no_cursor() -> None:
    wire = encode_control(OFFSET, 17, up_to_date=True, closed=True)
    expected = {"streamNextOffset": OFFSET, "upToDate": True, "streamClosed": True}
    assert control_of(wire) == expected


def test_cursor_zero_is_a_cursor_and_none_is_not() -> None:
    assert b'"streamCursor":"0"' in encode_control(OFFSET, 0, up_to_date=False, closed=False)
    assert b"streamCursor" not in encode_control(OFFSET, None, up_to_date=False, closed=False)


def test_a_heartbeat_is_a_comment_and_no_event() -> None:
    assert HEARTBEAT.startswith(b":")
    assert HEARTBEAT.endswith(b"\n\n")
    assert events(HEARTBEAT) == []


def brute_force_incomplete(prefix: bytes) -> int:
    """The fewest bytes to hold back so that the rest is whole text."""
    for held_back in range(4):
        try:
            prefix[: len(prefix) - held_back].decode()
        except UnicodeDecodeError:
            continue
        return held_back
    raise AssertionError("not a prefix of UTF-8")


@given(st.text(max_size=12))
@example("a\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff")
@brief
def test_every_prefix_of_a_text_holds_back_exactly_its_incomplete_character(text: str) -> None:
    whole = text.encode()
    for cut in range(len(whole) + 1):
        prefix = whole[:cut]
        assert incomplete_utf8_bytes(prefix) == brute_force_incomplete(prefix), prefix


@pytest.mark.parametrize(
    "tail",
    [b"", b"\x80", b"\x80\x80\x80", b"a\x80\x80\x80", b"\xff", b"\xc0", b"\xc1", b"\xf5\x80"],
)
def test_bytes_that_never_become_text_are_not_held_back(tail: bytes) -> None:
    assert incomplete_utf8_bytes(tail) == 0


@given(st.binary(max_size=8))
@brief
def test_at_most_three_bytes_are_held_back_whatever_they_are(tail: bytes) -> None:
    assert 0 <= incomplete_utf8_bytes(tail) <= min(3, len(tail))
