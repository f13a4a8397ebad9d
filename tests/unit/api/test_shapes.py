"""Shaped reads against a plain reading of the same entries."""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.api.arguments import Query
from millstream.api.shapes import Scan, Shape, Shaper, needs_promotion, promoter, shape_of
from millstream.errors import InvalidRequest
from millstream.formats.blocks import Block
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import Position
from millstream.schemas.registry import plan_update
from millstream.state.rules import Rules
from millstream.state.stream import Stream

JSON_STREAM = Stream(StreamId(1), b"_default/s", b"application/json", 0)
TEXT_STREAM = Stream(StreamId(2), b"_default/t", b"text/plain", 0)


def rules_of(boundaries: list[int]) -> Rules:
    """Version v has fields f1 to fv; the first message of version v is number boundaries[v - 1]."""
    rules: Rules | None = None
    for version in range(1, len(boundaries) + 1):
        fields = {f"f{n}": {"type": "integer"} for n in range(1, version + 1)}
        schema = {"type": "object", "required": list(fields), "properties": fields}
        update: dict[str, Any] = {"schema": schema}
        if version > 1:
            added = {
                "op": "add",
                "path": f"/f{version}",
                "schema": {"type": "integer"},
                "default": 0,
            }
            update["lens"] = {
                "apiVersion": "durable.lens/v1",
                "schema": "s",
                "from": version - 1,
                "to": version,
                "ops": [added],
            }
        binding = [{"version": 1, "jsonPointer": "/f1"}]
        when = {"kind": "date", "bindings": binding, "column": True}
        number = {"kind": "integer", "bindings": binding, "exact": True, "column": True}
        update["search"] = {"primaryTimestampField": "at", "fields": {"at": when, "n": number}}
        change = plan_update("s", rules, json.dumps(update).encode(), not version - 1)
        before = () if rules is None else rules.boundaries
        boundary = (boundaries[version - 1], version)
        rules = msgspec.structs.replace(
            change.rules, revision=version, boundaries=(*before, boundary)
        )
    assert rules is not None
    return rules


def blocks_of(entries: list[dict[str, int]], cuts: list[int]) -> list[Block]:
    blocks, start = list[Block](), 0
    for end in sorted({*cuts, len(entries)} - {0}):
        messages = [json.dumps(entry).encode() + b"," for entry in entries[start:end]]
        ends = array("I", accumulate(map(len, messages))) if len(messages) > 1 else None
        blocks.append(Block(b"".join(messages), ends, 0))
        start = end
    return blocks


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rules, list[dict[str, int]], list[Block]]:
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    boundaries = [0, *accumulate(counts[:-1])]
    entries = [
        {f"f{n}": draw(st.integers(0, 5)) for n in range(1, version + 1)}
        for version, count in enumerate(counts, 1)
        for _ in range(count)
    ]
    cuts = draw(st.lists(st.integers(0, len(entries)), max_size=4))
    return rules_of(boundaries), entries, blocks_of(entries, cuts)


def promoted(entry: dict[str, int], version: int) -> dict[str, int]:
    return {**dict.fromkeys((f"f{n}" for n in range(1, version + 1)), 0), **entry}


@given(histories(), st.integers(0, 20), st.integers(0, 5), st.integers(1, 200))
def test_pages_of_a_scan_are_what_a_plain_reading_finds(
    history: tuple[Rules, list[dict[str, int]], list[Block]], start: int, least: int, size: int
) -> None:
    rules, entries, blocks = history
    start = min(start, len(entries))
    first = Position(0, 0)
    bytes_before = sum(len(json.dumps(entry)) + 1 for entry in entries[:start])
    end = Position(len(entries), sum(len(block.data) for block in blocks))
    shaper = Shaper(Shape(filter_text=b"n:>=%d" % least), rules, is_json=True)
    position, found = Position(start, bytes_before), list[dict[str, int]]()
    while position != end:
        scan = Scan(shaper, position, size)
        scan.take(first, blocks, end)
        assert scan.position.ordinal > position.ordinal
        found += [json.loads(entry) for entry in scan.entries]
        position = scan.position
    wanted = [promoted(entry, rules.version) for entry in entries[start:] if entry["f1"] >= least]
    assert found == wanted


@given(histories())
def test_a_promoter_gives_the_same_as_a_scan(
    history: tuple[Rules, list[dict[str, int]], list[Block]],
) -> None:
    rules, entries, _ = history
    promote = promoter(rules, 0)
    assert (promote is not None) == needs_promotion(rules, Position(0, 0))
    for ordinal, entry in enumerate(entries):
        stored = json.dumps(entry).encode()
        shaped = Shaper(Shape(), rules, is_json=True).shape(ordinal, stored + b",")
        assert shaped == (stored if promote is None else promote(ordinal, stored))
        assert (
            Shaper(Shape(is_raw=True), rules, is_json=True).shape(ordinal, stored + b",") == stored
        )


@pytest.mark.parametrize("raw", [b"", b"offset=-1", b"key=", b"since=", b"format=json", b"filter="])
def test_reads_that_ask_for_nothing_special_are_like_any_other(raw: bytes) -> None:
    assert shape_of(Query(raw), JSON_STREAM) is None


@pytest.mark.parametrize(
    "raw", [b"format=xml", b"since=soon", b"key=" + b"x" * 1025, b"key=a&key=b"]
)
def test_shapes_that_are_none_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        shape_of(Query(raw), JSON_STREAM)


def test_offset_wins_over_since_and_the_path_over_key() -> None:
    shape = shape_of(Query(b"since=1&offset=-1&key=a"), JSON_STREAM, b"b")
    assert shape == Shape(key=b"b")
    assert shape_of(Query(b"since=5000000"), JSON_STREAM) == Shape(since_ms=5)


def test_text_has_neither_filters_nor_json() -> None:
    for raw in (b"filter=n:1", b"format=json"):
        with pytest.raises(InvalidRequest):
            shape_of(Query(raw), TEXT_STREAM)
    assert shape_of(Query(b"format=raw"), TEXT_STREAM) is None
