"""What is admitted is stored as it came or as its profile shapes it, with one key per message."""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidRequest, SchemaViolation
from millstream.formats.blocks import decode_ends
from millstream.limits import RULES_ENTRY_DEPTH_MAX
from millstream.protocol.json_mode import split_body
from millstream.protocol.json_pieces import LargeMessages
from millstream.schemas.admission import admit
from millstream.schemas.messages import decode_messages
from millstream.schemas.profiles import plan_profile
from millstream.schemas.registry import plan_update
from millstream.state.rules import Rules

NOW_MS = 1_750_000_000_000


def content_of(*values: Any, pieces: int = 1) -> LargeMessages:
    messages = [json.dumps(value).encode() + b"," for value in values]
    step = -(-len(messages) // pieces)
    parts = tuple(b"".join(messages[at : at + step]) for at in range(0, len(messages), step))
    ends = array("I", accumulate(map(len, messages))).tobytes() if len(messages) > 1 else b""
    return LargeMessages(parts, ends, len(messages))


def rules_with(**update: Any) -> Rules:
    return plan_update("s", None, json.dumps(update).encode(), True).rules


def keyed(required: bool) -> Rules:
    return rules_with(routingKey={"jsonPointer": "/k", "required": required})


def test_messages_keep_their_bytes_and_get_their_keys() -> None:
    content = content_of({"k": "a"}, {"k": "b"}, {"n": 1})
    admitted = admit(keyed(False), content, None, NOW_MS)
    assert admitted.content == content
    assert admitted.keys == (b"a", b"b", None)


def test_one_key_for_all_is_one_key() -> None:
    content = content_of({"k": "a"}, {"k": "a"})
    assert admit(keyed(True), content, None, NOW_MS).keys == b"a"
    assert admit(keyed(False), content_of({}, {}), None, NOW_MS).keys is None
    assert admit(Rules(1), content_of({}, {}), b"header", NOW_MS).keys == b"header"


def test_a_header_and_a_schema_do_not_both_name_the_key() -> None:
    with pytest.raises(InvalidRequest):
        admit(keyed(False), content_of({}), b"header", NOW_MS)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "missing"),
        ({"k": 1}, "must be string"),
        ({"k": "x" * 1025}, "must not exceed"),
        (7, "missing"),
    ],
)
def test_the_first_message_that_does_not_fit_is_named(value: Any, problem: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        admit(keyed(True), content_of({"k": "a"}, value, {}), None, NOW_MS)
    assert caught.value.message.startswith("message 1: ")
    assert problem in caught.value.message


def test_a_schema_is_kept_to_across_pieces() -> None:
    rules = rules_with(schema={"type": "object", "required": ["n"]})
    good = content_of(*({"n": n} for n in range(20)), pieces=4)
    assert admit(rules, good, None, NOW_MS).content == good
    with pytest.raises(SchemaViolation, match="message 19"):
        admit(rules, content_of(*({"n": n} for n in range(19)), {}, pieces=4), None, NOW_MS)


@given(st.lists(st.dictionaries(st.text(max_size=4), st.integers()), min_size=1, max_size=12))
def test_what_a_profile_rewrites_is_cut_where_its_messages_end(records: list[Any]) -> None:
    body = json.dumps({"profile": {"kind": "evlog"}}).encode()
    rules = plan_profile(None, body, True, True).rules
    content, _ = admit(rules, content_of(*records, pieces=3), None, NOW_MS)
    data = b"".join(content.pieces)
    ends = decode_ends(content.ends)
    places = [len(data)] if ends is None else list(ends)
    assert len(places) == content.total == len(records)
    start = 0
    for place, record in zip(places, records, strict=True):
        message = data[start:place]
        assert message.endswith(b",")
        stored = json.loads(message[:-1])
        assert stored["level"] == "info"
        unreserved = {name for name in record if name not in stored and name != "context"}
        assert unreserved <= set(stored["context"])
        start = place
    assert start == len(data)


def test_lone_surrogates_are_admitted() -> None:
    body = rb'[{"k":"a","x":"\ud800"},{"k":"b","n":1e300}]'
    data, ends, total = split_body(body)
    admitted = admit(keyed(True), LargeMessages((data,), ends, total), None, NOW_MS)
    assert admitted.keys == (b"a", b"b")
    assert admitted.content.pieces == (data,)


@pytest.mark.parametrize("number", [b"1e400", b"9" * 5000, b"-" + b"9" * 5000, b"-1e999"])
@pytest.mark.parametrize("text", [b'"x"', rb'"\ud800"'])
def test_numbers_that_no_value_stands_for_are_refused(number: bytes, text: bytes) -> None:
    data, ends, total = split_body(b'{"n":%b,"x":%b}' % (number, text))
    with pytest.raises(SchemaViolation, match="too large"):
        admit(keyed(False), LargeMessages((data,), ends, total), None, NOW_MS)
    [value] = decode_messages(data)  # it may have been there before the rules were
    assert abs(value["n"]) > 1e300


def test_what_is_nested_too_deeply_is_refused() -> None:
    data = b"[" * 100_000 + b"]" * 100_000 + b","
    with pytest.raises(SchemaViolation, match="nested"):
        admit(keyed(False), LargeMessages((data,), b"", 1), None, NOW_MS)


@pytest.mark.parametrize("text", [b'"x"', rb'"\ud800"'])
def test_as_many_levels_as_are_allowed_are_taken_and_not_one_more(text: bytes) -> None:
    def admit_levels(levels: int) -> None:
        data = b"1," + b"[" * levels + text + b"]" * levels + b","
        data, ends, total = split_body(b"[%b]" % data[:-1])
        admitted = admit(keyed(False), LargeMessages((data,), ends, total), None, NOW_MS)
        assert admitted.content.total == 2

    admit_levels(RULES_ENTRY_DEPTH_MAX)
    with pytest.raises(SchemaViolation, match="nested"):
        admit_levels(RULES_ENTRY_DEPTH_MAX + 1)
