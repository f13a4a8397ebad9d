from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidSchema
from millstream.limits import LENS_OPS_MAX
from millstream.schemas.documents import clone
from millstream.schemas.lenses import parse_lens
from tests.unit.schemas.made import (
    add,
    convert,
    copy,
    each,
    head,
    inside,
    lens,
    lens_document,
    promoted,
    remove,
    rename,
    wrap,
)


def hoist(host: str, name: str, to: str, **more: Any) -> dict[str, Any]:
    return {"op": "hoist", "host": host, "name": name, "to": to, **more}


def plunge(source: str, host: str, name: str, **more: Any) -> dict[str, Any]:
    return {"op": "plunge", "from": source, "host": host, "name": name, **more}


@pytest.mark.parametrize(
    ("before", "op", "after"),
    [
        ({"a": 1}, rename("/a", "/b"), {"b": 1}),
        ({"a": 1}, rename("/a", "/a"), {"a": 1}),
        ({"a": 1, "b": 2}, rename("/a", "/b"), {"b": 1}),
        ({"a": {"x": 1}}, rename("/a/x", "/y"), {"a": {}, "y": 1}),
        ({"a": {"x": 1}}, rename("/a", ""), {"x": 1}),
        ({"a~/b": 1}, rename("/a~0~1b", "/c"), {"c": 1}),
        ({"a": [1]}, copy("/a", "/b"), {"a": [1], "b": [1]}),
        ({"a": 1}, copy("", "/self"), {"a": 1, "self": {"a": 1}}),
        ({}, add("/a", {"x": [1]}), {"a": {"x": [1]}}),
        ({"a": 5}, add("/a", None), {"a": None}),
        ({"a": {}}, add("/a/b", 0), {"a": {"b": 0}}),
        ({"a": 1, "b": 2}, remove("/a"), {"b": 2}),
        ({"h": {"n": 1, "m": 2}}, hoist("/h", "n", "/t"), {"h": {"m": 2}, "t": 1}),
        (
            {"h": {"n": [1]}},
            hoist("/h", "n", "/t", removeFromHost=False),
            {"h": {"n": [1]}, "t": [1]},
        ),
        ({"payload": {"x": 1}}, hoist("", "payload", ""), {"x": 1}),
        ({"a": 1}, plunge("/a", "/h", "n"), {"h": {"n": 1}}),
        ({"a": 1, "h": {"m": 2}}, plunge("/a", "/h", "n"), {"h": {"m": 2, "n": 1}}),
        ({"a": 1, "h": {}}, plunge("/a", "/h", "n", createHost=False), {"h": {"n": 1}}),
        ({"a": 1}, plunge("/a", "/h/i", "n"), {"h": {"i": {"n": 1}}}),
        ({"a": 1, "h": "stray"}, plunge("/a", "/h", "n"), {"h": {"n": 1}}),
        ({"a": 1}, plunge("/a", "", "n"), {"n": 1}),
        (
            {"a": [1]},
            plunge("/a", "/h", "n", removeFromSource=False),
            {"a": [1], "h": {"n": [1]}},
        ),
        ({"a": 1}, wrap("/a"), {"a": [1]}),
        (5, wrap(""), [5]),
        ({"a": [1, 2]}, head("/a"), {"a": 1}),
        ([[1], 2], head(""), [1]),
        ({"a": "X"}, convert("/a", "string", "string", builtin="lowercase"), {"a": "x"}),
        ({"a": True}, convert("/a", "boolean", "integer", map={"true": 1}, default=0), {"a": 1}),
        ({"a": 7}, convert("/a", "number", "null", map={}, default=None), {"a": None}),
        ({"a": {"x": 1}}, inside("/a", rename("/x", "/y"), add("/z", 1)), {"a": {"y": 1, "z": 1}}),
        ({"x": 1}, inside("", rename("/x", "/y")), {"y": 1}),
        ({"a": [{"x": 1}, {"x": 2}]}, each("/a", rename("/x", "/y")), {"a": [{"y": 1}, {"y": 2}]}),
        (
            {"a": ["X"]},
            each("/a", convert("", "string", "string", builtin="lowercase")),
            {"a": ["x"]},
        ),
        ([1, 2], each("", wrap("")), [[1], [2]]),
        ({"a": []}, each("/a", remove("/x")), {"a": []}),
    ],
)
def test_what_an_operation_does(before: Any, op: dict[str, Any], after: Any) -> None:
    assert promoted(before, op) == after


@pytest.mark.parametrize(
    ("before", "op"),
    [
        ({}, rename("/a", "/b")),
        ({"a": 1}, rename("/a", "/x/b")),
        ({"a": {"b": 1}}, rename("/a", "/a/b")),
        ({"a": [1]}, rename("/a/0", "/b")),
        (5, add("/a", 1)),
        ({"a": 5}, add("/a/b", 1)),
        ({}, add("/a")),
        ({}, remove("/a")),
        ({"h": 5}, hoist("/h", "n", "/t")),
        ({"a": 1}, plunge("/a", "/h", "n", createHost=False)),
        ([1], plunge("", "/h", "n", removeFromSource=False)),
        ({}, wrap("/a")),
        ({"a": []}, head("/a")),
        ({"a": 1}, head("/a")),
        ({"a": 1}, convert("/a", "string", "string", builtin="lowercase")),
        ({"a": "1"}, convert("/a", "string", "string", map={"1": 1})),
        ({"a": 5}, inside("/a", remove("/x"))),
        ({"a": {}}, each("/a", remove("/x"))),
        ({"a": [1]}, each("/a", remove("/x"))),
    ],
)
def test_an_operation_refuses_an_entry_that_it_cannot_change(
    before: Any, op: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSchema, match="lens"):
        promoted(before, op)


def test_operations_follow_each_other() -> None:
    ops = rename("/a", "/b"), wrap("/b"), add("/c", 1), remove("/c"), copy("/b", "/d")
    assert promoted({"a": 1}, *ops) == {"b": [1], "d": [1]}


def test_a_default_belongs_to_the_entry_that_it_is_added_to() -> None:
    made = lens(add("/a", {"list": []}), each("/items", add("/tags", [])))
    first = made.promote({"items": [{}, {}]})
    first["a"]["list"].append("mine")
    first["items"][0]["tags"].append("mine")
    assert first["items"][1] == {"tags": []}
    assert made.promote({"items": [{}]}) == {"a": {"list": []}, "items": [{"tags": []}]}
    assert made.document == lens_document(add("/a", {"list": []}), each("/items", add("/tags", [])))


def test_a_copy_and_its_source_are_two() -> None:
    after = promoted({"a": {"x": 1}}, copy("/a", "/b"), rename("/b/x", "/b/y"))
    assert after == {"a": {"x": 1}, "b": {"y": 1}}
    assert promoted({"h": {"n": {}}}, hoist("/h", "n", "/t", removeFromHost=False), add("/t/x", 1))[
        "h"
    ] == {"n": {}}


def test_numbers_keep_their_digits_in_copies() -> None:
    big = 2**200 + 1
    assert promoted({"a": [big]}, copy("/a", "/b")) == {"a": [big], "b": [big]}


def broken(**changes: Any) -> dict[str, Any]:
    document = {**lens_document(remove("/a")), **changes}
    return {key: value for key, value in document.items() if value is not ...}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (None, "lens must"),
        ([], "lens must"),
        (broken(apiVersion="durable.lens/v2"), "lens.apiVersion"),
        (broken(apiVersion=...), "lens.apiVersion is missing"),
        (broken(schema=5), "lens.schema"),
        (broken(description=5), "lens.description"),
        (broken(more=1), "lens.more is not supported"),
        (broken(**{"from": -1}), "lens.from"),
        (broken(**{"from": True}), "lens.from"),
        (broken(to="2"), "lens.to"),
        (broken(to=1.5), "lens.to"),
        (broken(ops=[]), "lens.ops must"),
        (broken(ops={}), "lens.ops must"),
        (broken(ops=[5]), r"lens.ops\[0\].op"),
        (broken(ops=[{"op": "drop"}]), r"lens.ops\[0\].op"),
        (broken(ops=[{"op": []}]), r"lens.ops\[0\].op"),
        (broken(ops=[remove("/a"), remove("a")]), r"lens.ops\[1\].path"),
        (broken(ops=[remove("")]), "root"),
        (broken(ops=[rename("", "/a")]), "root"),
        (broken(ops=[{"op": "remove", "path": "/a"}]), r"lens.ops\[0\].schema is missing"),
        (broken(ops=[{**remove("/a"), "schema": {"$ref": "#"}}]), "external"),
        (broken(ops=[{**remove("/a"), "schema": 5}]), r"lens.ops\[0\].schema"),
        (broken(ops=[{**remove("/a"), "more": 1}]), r"lens.ops\[0\].more is not supported"),
        (broken(ops=[{**wrap("/a"), "mode": "double"}]), r"\.mode must be singleton"),
        (broken(ops=[{**head("/a"), "reverseMode": 1}]), "reverseMode"),
        (broken(ops=[hoist("/a", "b", "/c", removeFromHost="yes")]), "removeFromHost"),
        (broken(ops=[{**hoist("/a", "b", "/c"), "name": 5}]), "name"),
        (broken(ops=[convert("/a", "object", "string", builtin="lowercase")]), "fromType"),
        (broken(ops=[convert("/a", "integer", "string", builtin="lowercase")]), "does not take"),
        (broken(ops=[convert("/a", "string", "string", builtin="what")]), "builtin"),
        (broken(ops=[inside("/a")]), r"lens.ops\[0\].ops must"),
        (broken(ops=[each("/a", remove("b"))]), r"lens.ops\[0\].ops\[0\].path"),
        (broken(ops=[each("/a", *[wrap("")] * LENS_OPS_MAX)]), "more than"),
    ],
)
def test_a_lens_that_is_none_is_refused_with_the_place(document: Any, place: str) -> None:
    with pytest.raises(InvalidSchema, match=place):
        parse_lens(document)


def test_copies_of_copies_come_to_an_end() -> None:
    doubling = lens(*[copy("", f"/{number}") for number in range(60)])
    with pytest.raises(InvalidSchema, match="too much"):
        doubling.promote({"a": "x" * 1000})
    multiplied = lens(each("/items", add("/text", "x" * 10_000)))
    with pytest.raises(InvalidSchema, match="too much"):
        multiplied.promote({"items": [{} for _ in range(100_000)]})
    named = lens(each("/items", convert("", "integer", "string", map={}, default="x" * 10_000)))
    with pytest.raises(InvalidSchema, match="too much"):
        named.promote({"items": [1] * 100_000})


def test_an_entry_that_becomes_too_deep_to_copy_is_refused() -> None:
    deeper = lens(*[wrap("/a")] * 900, copy("/a", "/b"))
    entry: Any = 1
    for _ in range(500):
        entry = [entry]
    with pytest.raises(InvalidSchema, match="deep"):
        deeper.promote({"a": entry})


def test_parsing_leaves_the_document_as_it_was() -> None:
    document = lens_document(add("/a"), inside("/b", remove("/c")))
    before = clone(document)
    parse_lens(document)
    assert document == before
