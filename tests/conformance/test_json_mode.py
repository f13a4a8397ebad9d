"""JSON goes in and comes out as the same bytes; what is not JSON never goes in."""

from __future__ import annotations

import json

import pytest

from tests.conformance.api import JSON, Api, fresh_path, halves

# Each is one value that a parse-and-print server would change (reference defect 6).
FAITHFUL = [
    b"12345678901234567890",
    b"-0",
    b"1.0",
    b"1E+2",
    b"1e400",
    b"0.1000000000000000055511151231257827",
    b'{"a":1,"a":2}',
    b'{"b":1,"a":2,"1":3}',
    rb'"\u0041\/\ud83d\ude00\u00e9"',
    rb'"\ud800"',
    '"é 😀 \u2028"'.encode(),
    b'{"a" : [ 1 ,\t2 ],\r\n "b" : { } }',
    b'{"__proto__":{"x":1},"":null}',
    b"[[[]]]",
]

# What json.loads, lenient decoders or a missing UTF-8 check would let through.
NOT_JSON = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'{"a":NaN}',
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'{"a":1} x',
    b"{}{}",
    b"1 2",
    b"[1],[2]",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"01",
    b"+1",
    b"1.",
    b".5",
    b"1e",
    b"0x10",
    b"'a'",
    b"{a:1}",
    b'{"a":1,}',
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b'{"a"}',
    b'"\x01"',
    b'"a\nb"',
    b'"open',
    rb'"\x41"',
    rb'"\u12g4"',
    b"tru",
    b"True",
    b"undefined",
    b"// c\n1",
    b" ",
    b"{",
    b"]",
    b"\x00",
]


@pytest.mark.parametrize("value", FAITHFUL)
def test_a_value_is_read_back_as_the_bytes_that_were_sent(api: Api, value: bytes) -> None:
    path = api.stream(content_type=JSON)
    assert api.append(path, b"[" + value + b"]", JSON).status == 204
    if not value.startswith(b"["):
        assert api.append(path, value, JSON).status == 204
        value = value + b"," + value
    assert api.get(path).body == b"[" + value + b"]"


def test_values_survive_every_way_of_reading(api: Api) -> None:
    path = api.stream(content_type=JSON)
    waiting = api.wait(f"{path}?offset=-1&live=long-poll")
    events = api.events(f"{path}?offset=-1&live=sse")
    assert [event.kind for event in events.until_up_to_date()] == ["control"]
    assert api.append(path, rb'[12345678901234567890, {"a":1.0,"a":"\u0041"}]', JSON).status == 204
    expected = rb'[12345678901234567890,{"a":1.0,"a":"\u0041"}]'
    assert waiting.reply().body == expected
    data, _ = events.until_up_to_date()
    assert data.data.encode() == expected


@pytest.mark.parametrize("body", NOT_JSON)
def test_what_is_not_json_is_refused_and_stores_nothing(api: Api, body: bytes) -> None:
    path = api.stream(b"1", content_type=JSON)
    assert api.append(path, body, JSON).status == 400
    assert api.append(path, b'[2,{"k":' + body + b"}]", JSON).status == 400
    assert api.get(path).body == b"[1]"


@pytest.mark.parametrize("body", NOT_JSON)
def test_what_is_not_json_creates_no_stream(api: Api, body: bytes) -> None:
    # Reference defect 5: the refused PUT leaves an empty stream behind.
    path = fresh_path()
    assert api.put(path, body, content_type=JSON).status == 400
    assert api.head(path).status == 404
    assert api.put(path, content_type="text/plain").status == 201


def test_events_of_the_state_protocol_are_not_given_an_offset(api: Api) -> None:
    # Reference defect 7: headers.offset is injected on read.
    path = api.stream(content_type=JSON)
    change = b'{"type":"user","key":"1","value":{},"headers":{"operation":"insert"}}'
    control = b'{"headers":{"control":"snapshot-start"}}'
    assert api.append(path, b"[" + change + b"," + control + b"]", JSON).status == 204
    assert api.get(path).body == b"[" + change + b"," + control + b"]"


def test_arrays_are_flattened_by_exactly_one_level(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for body in (b"[1,[2,[3]],[]]", b"[[]]", b"[[4]]", b"null", b'{"a":[5]}'):
        assert api.append(path, body, JSON).status == 204
    read = api.get(path)
    assert read.json() == [1, [2, [3]], [], [], [4], None, {"a": [5]}]
    assert halves(read.next_offset)[0] == 7


def test_an_empty_array_is_refused_as_an_append_and_fine_as_a_beginning(api: Api) -> None:
    path = fresh_path()
    assert api.put(path, b" [ ] ", content_type=JSON).status == 201
    assert api.append(path, b"[ ]", JSON).status == 400
    read = api.get(path)
    assert (read.body, halves(read.next_offset)) == (b"[]", (0, 0))


def test_space_around_a_value_does_not_matter(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for body in (b" 1 ", b"\r\n[ 2 ,\t3 ]\n", b'\n{"a": 4}\n'):
        assert api.append(path, body, JSON).status == 204
    assert api.get(path).json() == [1, 2, 3, {"a": 4}]


def test_every_message_of_a_large_batch_has_its_own_offset(api: Api) -> None:
    path = api.stream(content_type=JSON)
    values = list(range(5000))
    assert api.append(path, json.dumps(values), JSON).status == 204
    assert halves(api.tail(path))[0] == 5000
    first = api.get(f"{path}?max_bytes=1")
    assert (first.json(), halves(first.next_offset)[0]) == ([0], 1)
    assert api.get(path).json() == values


def test_very_deep_nesting_never_becomes_a_server_error(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for depth in (500, 5_000, 100_000):
        body = b"[" * depth + b"]" * depth
        reply = api.append(path, body, JSON)
        assert reply.status in (204, 400), (depth, reply)
    assert api.get(path).status == 200


def test_parameters_of_the_type_do_not_matter(api: Api) -> None:
    # Reference defect 10: a charset makes the repeated PUT a conflict in file mode.
    path = fresh_path()
    assert api.put(path, b"[1]", content_type="application/json; charset=utf-8").status == 201
    assert api.put(path, content_type="APPLICATION/JSON").status == 200
    assert api.append(path, b"[2]", "application/json;charset=UTF-8").status == 204
    assert api.get(path).json() == [1, 2]


def test_types_that_only_look_like_json_stay_bytes(memory_api: Api) -> None:
    path = memory_api.stream(b"[1]", b"{broken", content_type="application/jsonl")
    assert memory_api.get(path).body == b"[1]{broken"
