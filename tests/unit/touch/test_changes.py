from __future__ import annotations

import json
import math
from typing import Any

import pytest

from millstream.touch.changes import (
    NO_TUPLE,
    Change,
    NotTold,
    Shape,
    fine_keys,
    number_text,
    read_change,
)
from millstream.touch.keys import KeyMaker, join_arguments

MAKER = KeyMaker(7)
SHAPE = Shape([("status", "string"), ("tenant", "string")])
OPEN, DONE = join_arguments(["open", "t1"]), join_arguments(["done", "t1"])
OPEN_ROW = {"status": "open", "tenant": "t1", "title": "a"}
DONE_ROW = {"status": "done", "tenant": "t1", "title": "a"}


def change(operation: str, **rows: Any) -> Change:
    record = {"type": "todos", "key": "1", **rows, "headers": {"operation": operation}}
    found = read_change(json.dumps(record).encode())
    assert found is not None
    return found


def keys(of: Change, on_missing: str = "coarse") -> set[int] | None:
    return fine_keys(of, SHAPE, MAKER, on_missing)


def row_keys(arguments: bytes) -> set[int]:
    return {MAKER.watch(arguments), MAKER.membership(arguments)}


def test_an_insert_touches_the_row_that_came() -> None:
    assert keys(change("insert", value=OPEN_ROW)) == row_keys(OPEN)


def test_a_delete_touches_the_row_that_was() -> None:
    assert keys(change("delete", old_value=OPEN_ROW)) == row_keys(OPEN)


def test_an_update_that_moves_a_row_touches_where_it_was_and_where_it_is() -> None:
    moved = change("update", value=DONE_ROW, old_value=OPEN_ROW)
    assert keys(moved) == row_keys(OPEN) | row_keys(DONE)


def test_an_update_in_place_touches_the_watch_and_the_fields_that_changed() -> None:
    after = {**OPEN_ROW, "title": "b", "new": 1}
    before = {**OPEN_ROW, "old": [1], "same": {"x": 1}}
    updated = change("update", value={**after, "same": {"x": 1}}, old_value=before)
    assert keys(updated) == {
        MAKER.watch(OPEN),
        *(MAKER.field(name, OPEN) for name in ("title", "new", "old")),
    }


def test_true_and_one_are_not_the_same() -> None:
    updated = change("update", value={**OPEN_ROW, "a": True}, old_value={**OPEN_ROW, "a": 1})
    assert keys(updated) == {MAKER.watch(OPEN), MAKER.field("a", OPEN)}


def test_an_update_that_says_only_in_part_what_the_row_is_touches_all_that_it_was() -> None:
    updated = change("update", value={"title": "b"}, old_value=OPEN_ROW)
    found = keys(updated)
    assert found is not None
    assert found >= row_keys(OPEN) | {MAKER.field("title", OPEN)}


@pytest.mark.parametrize(
    "before", [{}, {"old_value": None}, {"old_value": {"status": "open"}}, {"old_value": [1]}]
)
def test_what_the_row_was_may_be_missing(before: dict[str, Any]) -> None:
    updated = change("update", value=OPEN_ROW, **before)
    assert keys(updated) is None
    assert keys(updated, "skipBefore") == row_keys(OPEN) | {MAKER.field("title", OPEN)}
    with pytest.raises(NotTold):
        keys(updated, "error")


def test_a_delete_without_the_row_may_be_of_any() -> None:
    deleted = change("delete")
    assert keys(deleted) is None
    assert keys(deleted, "skipBefore") == set()


def test_a_row_with_a_null_is_none_to_wait_for() -> None:
    nothing = {**OPEN_ROW, "status": None}
    assert keys(change("insert", value=nothing)) == set()
    assert keys(change("update", value=OPEN_ROW, old_value=nothing)) == row_keys(OPEN)
    assert keys(change("update", value=nothing, old_value=OPEN_ROW)) == row_keys(OPEN)


def test_a_value_that_is_no_object_touches_no_row() -> None:
    assert keys(change("insert", value=None)) == set()
    assert keys(change("insert", value=[OPEN_ROW])) == set()


def test_a_control_record_is_no_change() -> None:
    assert read_change(b'{"headers":{"control":"reset"}}') is None


@pytest.mark.parametrize("message", [b"1", b"[]", b"{}", b'{"headers":1}', b"\xff", b"[" * 5000])
def test_what_is_no_change_is_not_told(message: bytes) -> None:
    with pytest.raises(NotTold):
        read_change(message)


def test_a_very_wide_change_is_not_told() -> None:
    wide = {f"f{number}": number for number in range(300)}
    with pytest.raises(NotTold):
        keys(change("update", value={**OPEN_ROW, **wide}, old_value=OPEN_ROW))


def test_an_empty_string_is_a_value() -> None:
    shape = Shape([("a", "string")])
    inserted = change("insert", value={"a": ""})
    assert fine_keys(inserted, shape, MAKER, "coarse") == row_keys(join_arguments([""]))


def argument(encoding: Any, value: Any) -> str | None:
    row = change("insert", value={"a": value}).after
    arguments = Shape([("a", encoding)]).arguments(row)
    assert arguments is not None
    return None if arguments == NO_TUPLE else arguments[1:].decode()


@pytest.mark.parametrize(
    ("encoding", "value", "text"),
    [
        ("string", "Ünï", "Ünï"),
        ("string", 1, "1"),
        ("string", 1.0, "1"),
        ("string", 0.1, "0.1"),
        ("string", True, "true"),
        ("string", {"a": 1}, None),
        ("string", [], None),
        ("string", None, None),
        ("int64", 5, "5"),
        ("int64", -(2**70), str(-(2**70))),
        ("int64", 5.0, "5"),
        ("int64", 5.5, None),
        ("int64", " 12 ", "12"),
        ("int64", "-0", "-0"),
        ("int64", "012", None),
        ("int64", True, None),
        ("bool", True, "1"),
        ("bool", False, "0"),
        ("bool", 1, None),
        ("datetime", "2026-11-17T22:00:00.123456+01:00", "2026-11-17T21:00:00.123Z"),
        ("datetime", "2026-11-17", "2026-11-17T00:00:00.000Z"),
        ("datetime", "2026-11-17T22:00:00Z", "2026-11-17T22:00:00.000Z"),
        ("datetime", "0001-01-01T00:00:00+14:00", None),
        ("datetime", "today", None),
        ("datetime", 5, None),
        ("bytes", "AQI=", "AQI="),
        ("bytes", 1, None),
    ],
)
def test_arguments(encoding: str, value: Any, text: str | None) -> None:
    assert argument(encoding, value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (-1.5, "-1.5"),
        (123456789012345680000, "123456789012345680000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.25e-9, "1.25e-9"),
        (2**53 + 1, "9007199254740992"),
        (0.00012, "0.00012"),
        (100.0, "100"),
        (math.pi, "3.141592653589793"),
        (10**400, "Infinity"),
    ],
)
def test_numbers_are_spelled_as_in_javascript(number: float, text: str) -> None:
    assert number_text(number) == text
