from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidSchema
from millstream.schemas.proofs import prove
from tests.unit.schemas.made import (
    INTEGER,
    TEXT,
    add,
    convert,
    copy,
    each,
    head,
    inside,
    lens,
    optional,
    proved,
    record,
    remove,
    rename,
    wrap,
)

NUMBER = {"type": "number"}


def hoist(host: str, name: str, to: str, **more: Any) -> dict[str, Any]:
    return {"op": "hoist", "host": host, "name": name, "to": to, **more}


def plunge(source: str, host: str, name: str, **more: Any) -> dict[str, Any]:
    return {"op": "plunge", "from": source, "host": host, "name": name, **more}


def many(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False}


ACCEPTED: dict[str, tuple[Any, Any, list[dict[str, Any]]]] = {
    "rename": (record(a=TEXT), record(b=TEXT), [rename("/a", "/b")]),
    "rename to an undeclared name": (record(a=TEXT), record(), [rename("/a", "/b")]),
    "rename into an object": (
        record(a=TEXT, h=record(x=TEXT)),
        record(h=record(x=TEXT, a=TEXT)),
        [rename("/a", "/h/a")],
    ),
    "integer to number": (record(a=INTEGER), record(b=NUMBER), [rename("/a", "/b")]),
    "enum by values": (
        record(a={"enum": ["x", "y"]}),
        record(b={"type": "string", "maxLength": 1}),
        [rename("/a", "/b")],
    ),
    "rename, then wrap": (
        record(a=TEXT),
        record(b=many(TEXT)),
        [rename("/a", "/b"), wrap("/b")],
    ),
    "copy": (record(a=TEXT), record(a=TEXT, b=TEXT), [copy("/a", "/b")]),
    "add": (record(a=TEXT), record(a=TEXT, b=INTEGER), [add("/b", 1)]),
    "add null": (record(a=TEXT), record(a=TEXT, b={"type": "null"}), [add("/b", None)]),
    "add, default of the schema": (record(), record(b={**INTEGER, "default": 0}), [add("/b")]),
    "add into what was added": (
        record(),
        record(m=record(x=INTEGER)),
        [add("/m", {}), add("/m/x", 5)],
    ),
    "remove": (record(a=TEXT, b=TEXT), closed(record(a=TEXT)), [remove("/b")]),
    "hoist": (
        record(h=record(n=TEXT, m=TEXT)),
        record(h=record(m=TEXT), t=TEXT),
        [hoist("/h", "n", "/t")],
    ),
    "hoist to the root": (record(p=record(x=TEXT)), record(x=TEXT), [hoist("", "p", "")]),
    "hoist a copy": (
        record(h=record(n=TEXT)),
        record(h=record(n=TEXT), t=TEXT),
        [hoist("/h", "n", "/t", removeFromHost=False)],
    ),
    "plunge into a host that the old schema refuses": (
        {**record(a=TEXT), "additionalProperties": False},
        {**record(h=record(n=TEXT)), "additionalProperties": False},
        [plunge("/a", "/h", "n")],
    ),
    "plunge into a new host": (record(a=TEXT), record(h=record(n=TEXT)), [plunge("/a", "/h", "n")]),
    "plunge into an optional host": (
        {**record("a", a=TEXT, h=record(m=TEXT))},
        record(h=record("n", n=TEXT, m=TEXT)),
        [plunge("/a", "/h", "n")],
    ),
    "plunge, deep": (
        record(a=TEXT),
        record(h=record(i=record(n=TEXT))),
        [plunge("/a", "/h/i", "n")],
    ),
    "wrap": (record(a=TEXT), record(a=many(TEXT, minItems=1, uniqueItems=True)), [wrap("/a")]),
    "wrap the root": (TEXT, many(TEXT), [wrap("")]),
    "head": (record(a=many(TEXT, minItems=1)), record(a=TEXT), [head("/a")]),
    "head of listed arrays": (record(a={"enum": [[1], [2]]}), record(a=INTEGER), [head("/a")]),
    "head of a tuple": (
        record(a={"type": "array", "items": [TEXT, INTEGER], "minItems": 2}),
        record(a=TEXT),
        [head("/a")],
    ),
    "convert with default": (
        record(a=TEXT),
        record(a={"enum": [0, 1]}),
        [convert("/a", "string", "integer", map={"one": 1}, default=0)],
    ),
    "convert listed values": (
        record(a={"enum": ["1", "2"]}),
        record(a={"type": "integer", "maximum": 2}),
        [convert("/a", "string", "integer", builtin="string_to_int")],
    ),
    "convert a boolean": (
        record(a={"type": "boolean"}),
        record(a=INTEGER),
        [convert("/a", "boolean", "integer", map={"true": 1, "false": 0})],
    ),
    "convert times": (
        record(a=INTEGER),
        record(a={"type": "string", "format": "date-time"}),
        [convert("/a", "integer", "string", builtin="unix_millis_to_rfc3339")],
    ),
    "in": (
        record(h=record(x=TEXT)),
        record(h=record(y=TEXT, z=INTEGER)),
        [inside("/h", rename("/x", "/y"), add("/z", 1))],
    ),
    "map": (
        record(l=many(record(x=TEXT))),
        record(l=many(closed(record(y=TEXT)))),
        [each("/l", rename("/x", "/y"))],
    ),
    "map scalars": (
        record(l=many(TEXT)),
        record(l=many(TEXT)),
        [each("/l", convert("", "string", "string", builtin="lowercase"))],
    ),
    "new optional property": (
        record(a=TEXT),
        record("a b", a=TEXT, b=TEXT, c={"type": "string", "minLength": 5}),
        [add("/b", "")],
    ),
    "looser bounds": (
        record(a=TEXT, n={"type": "integer", "minimum": 5, "exclusiveMaximum": 9}),
        record(b=TEXT, n={"type": "number", "exclusiveMinimum": 4, "maximum": 9}),
        [rename("/a", "/b")],
    ),
    "annotations do not count": (
        {**record(a=TEXT), "title": "old", "$schema": "urn:x", "$id": "one"},
        {**record(b={**TEXT, "description": "new", "examples": [1]}), "title": "new"},
        [rename("/a", "/b")],
    ),
    "same words that mention nothing changed": (
        {**record(a=TEXT, k=TEXT), "oneOf": [record(k={"const": "x"}), record(k={"const": "y"})]},
        {**record(b=TEXT, k=TEXT), "oneOf": [record(k={"const": "x"}), record(k={"const": "y"})]},
        [rename("/a", "/b")],
    ),
    "either of two": (
        record(a=TEXT, k={"anyOf": [TEXT, {"type": "null"}]}),
        record(b=TEXT, k={"type": ["string", "null"]}),
        [rename("/a", "/b")],
    ),
    "one of several": (
        record(a=TEXT, k=TEXT),
        record(b=TEXT, k={"anyOf": [INTEGER, TEXT]}),
        [rename("/a", "/b")],
    ),
    "dictionaries": (
        record(a=TEXT, d={"type": "object", "additionalProperties": INTEGER}),
        record(b=TEXT, d={"type": "object", "additionalProperties": NUMBER}),
        [rename("/a", "/b")],
    ),
    "names of a pattern": (
        record(a=TEXT, d={"type": "object", "patternProperties": {"^x": INTEGER}}),
        record(b=TEXT, d={"type": "object", "patternProperties": {"^x": NUMBER}}),
        [rename("/a", "/b")],
    ),
    "allowed by a pattern": (
        record(a=TEXT),
        closed({**record(), "patternProperties": {"^x": TEXT}}),
        [rename("/a", "/x1")],
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_lens_that_leads_to_the_new_schema_is_taken(case: str) -> None:
    old, new, ops = ACCEPTED[case]
    proved(old, new, *ops)


REFUSED: dict[str, tuple[Any, Any, list[dict[str, Any]], str]] = {
    "not required": (optional(a=TEXT), record(), [rename("/a", "/b")], "does not require /a"),
    "not declared": (record(), record(), [rename("/a", "/b")], "does not declare /a"),
    "no object": ({}, record(), [add("/a", 1)], "new schema does not declare /a"),
    "old is no object": ({}, record(a=INTEGER), [add("/a", 1)], "the root must be of type object"),
    "no parent": (record(a=TEXT), record(), [rename("/a", "/h/a")], "does not declare /h"),
    "below itself": (record(a=record(b=TEXT)), record(), [rename("/a", "/a/c")], "not declare /a"),
    "through an array": (record(a=many(TEXT)), record(), [remove("/a/0")], "of type object"),
    "other type": (record(a=TEXT), record(b=INTEGER), [rename("/a", "/b")], "/b: .*integer"),
    "unbounded to bounded": (
        record(a=TEXT),
        record(b={"type": "string", "maxLength": 5}),
        [rename("/a", "/b")],
        "/b: .*maxLength 5",
    ),
    "a value outside": (
        record(a={"enum": ["x", "yy"]}),
        record(b={"type": "string", "maxLength": 1}),
        [rename("/a", "/b")],
        '/b: "yy" does not keep',
    ),
    "closed to the new name": (
        record(a=TEXT),
        closed(record()),
        [rename("/a", "/b")],
        "/b: the new schema does not allow it",
    ),
    "requires what is not created": (
        record(a=TEXT),
        record(b=TEXT, c=TEXT),
        [rename("/a", "/b")],
        "/c: the new schema requires it, and the lens does not create it",
    ),
    "requires what is only optional": (
        record("a", a=TEXT, c=TEXT),
        record(b=TEXT, c=TEXT),
        [rename("/a", "/b")],
        "/c: the new schema requires it",
    ),
    "requires deep inside": (
        record(a=TEXT, h=record(x=many(record(y=TEXT)))),
        record(b=TEXT, h=record(x=many(record(y=TEXT, z=TEXT)))),
        [rename("/a", "/b")],
        r"/h/x/\*/z: the new schema requires it",
    ),
    "requires what was removed": (record(a=TEXT), record(a=TEXT), [remove("/a")], "requires it"),
    "removed, though old words say it is there": (
        {**record(a=TEXT), "allOf": [record(a=TEXT)]},
        {**record(a=TEXT)},
        [remove("/a")],
        "/a: the new schema requires it",
    ),
    "same words that mention what changed": (
        {**record(a=TEXT), "anyOf": [record(a=TEXT), {"maxProperties": 1}]},
        {**record(b=TEXT), "anyOf": [record(a=TEXT), {"maxProperties": 1}]},
        [rename("/a", "/b")],
        "anyOf",
    ),
    "new words": (
        record(a=TEXT, k=TEXT),
        {**record(b=TEXT, k=TEXT), "not": record(k={"const": "x"})},
        [rename("/a", "/b")],
        "the root: old entries may not keep to not",
    ),
    "no default": (record(), record(b=INTEGER), [add("/b")], "a default is missing"),
    "default of another type": (record(), record(b=INTEGER), [add("/b", "x")], "/b: .*integer"),
    "empty object as default": (record(), record(b=record(x=TEXT)), [add("/b")], "property 'x'"),
    "added but not declared": (record(), record(), [add("/b", 1)], "not declare /b"),
    "hoisted but still required": (
        record(h=record(n=TEXT)),
        record(h=record(n=TEXT), t=TEXT),
        [hoist("/h", "n", "/t")],
        "/h/n: the new schema requires it",
    ),
    "hoisted, not declared": (
        record(h=record(n=TEXT)),
        record(h=record()),
        [hoist("/h", "n", "/t")],
        "not declare /t",
    ),
    "no host": (
        record(a=TEXT),
        record(h=record(n=TEXT)),
        [plunge("/a", "/h", "n", createHost=False)],
        "does not declare /h",
    ),
    "host of another type": (
        record("a", a=TEXT, h=TEXT),
        record(h=record(n=TEXT)),
        [plunge("/a", "/h", "n")],
        "/h must be of type object",
    ),
    "host may be new and empty": (
        record("a", a=TEXT, h=record(m=TEXT)),
        record(h=record(m=TEXT, n=TEXT)),
        [plunge("/a", "/h", "n")],
        "/h/m: the new schema requires it",
    ),
    "plunged, not declared": (
        record(a=TEXT),
        record(h=record()),
        [plunge("/a", "/h", "n")],
        "not declare /h/n",
    ),
    "wrapped into no array": (record(a=TEXT), record(a=TEXT), [wrap("/a")], "/a: .*array"),
    "wrapped, other items": (record(a=TEXT), record(a=many(INTEGER)), [wrap("/a")], r"/a/\*"),
    "head of what may be empty": (record(a=many(TEXT)), record(a=TEXT), [head("/a")], "minItems"),
    "table without default": (
        record(a=TEXT),
        record(a=INTEGER),
        [convert("/a", "string", "integer", map={"x": 1})],
        "with enum",
    ),
    "numbers in any text": (
        record(a=TEXT),
        record(a=INTEGER),
        [convert("/a", "string", "integer", builtin="string_to_int")],
        "with enum",
    ),
    "a listed value without output": (
        record(a={"enum": ["x", "y"]}),
        record(a=INTEGER),
        [convert("/a", "string", "integer", map={"x": 1})],
        "no such value",
    ),
    "converts another type": (
        record(a=INTEGER),
        record(a=TEXT),
        [convert("/a", "string", "string", builtin="lowercase")],
        "must want string",
    ),
    "fractions have no text": (
        record(a=NUMBER),
        record(a=TEXT),
        [convert("/a", "number", "string", builtin="int_to_string")],
        "must want number",
    ),
    "output of another type": (
        record(a=TEXT),
        record(a={}),
        [convert("/a", "string", "string", map={}, default=0)],
        "not string",
    ),
    "in no object": (record(h=TEXT), record(h=TEXT), [inside("/h", remove("/x"))], "type object"),
    "in, place of the inner one": (
        record(h=record(x=TEXT)),
        record(h=record(x=TEXT)),
        [inside("/h", remove("/y"))],
        r"lens.ops\[0\].ops\[0\]: the old schema does not declare /y",
    ),
    "map of no array": (record(l=TEXT), record(l=TEXT), [each("/l", wrap(""))], "want an array"),
    "untouched, but of another type": (
        record(a=TEXT, n=INTEGER),
        record(b=TEXT, n=TEXT),
        [rename("/a", "/b")],
        "/n: old entries may have integer, the new schema wants string",
    ),
    "left over": (
        record(a=TEXT, n=INTEGER),
        closed(record(b=TEXT)),
        [rename("/a", "/b")],
        "/n: the new schema does not allow it, and the lens does not remove it",
    ),
    "listed objects do not change": (
        record(a={"enum": [{"x": 1}, {"x": 2}]}),
        record(a=record(y=INTEGER)),
        [rename("/a/x", "/a/y")],
        "without enum",
    ),
    "unique all of a sudden": (
        record(a=TEXT, l=many(TEXT)),
        record(b=TEXT, l=many(TEXT, uniqueItems=True)),
        [rename("/a", "/b")],
        "/l: old entries may not keep to uniqueItems",
    ),
    "unique no longer": (
        record(l=many(TEXT, uniqueItems=True)),
        record(l=many(TEXT, uniqueItems=True)),
        [each("/l", convert("", "string", "string", builtin="lowercase"))],
        "/l: old entries may not keep to uniqueItems",
    ),
    "listed arrays are others after a map": (
        record(l={"enum": [["A"], ["B"]]}),
        record(l={"type": "array", "enum": [["A"], ["B"]]}),
        [each("/l", wrap(""))],
        "/l: old entries may not keep to enum",
    ),
    "other words about an array hold no longer": (
        record(l=many(TEXT, allOf=[many(TEXT)])),
        record(l=many(TEXT)),
        [each("/l", wrap(""))],
        r"/l/\*: old entries may have array, the new schema wants string",
    ),
    "huge bounds": (
        record(a=TEXT, n={"type": "number", "minimum": 0}),
        record(b=TEXT, n={"type": "number", "minimum": 1e300}),
        [rename("/a", "/b")],
        "minimum",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_lens_that_may_not_lead_to_the_new_schema_is_refused(case: str) -> None:
    old, new, ops, text = REFUSED[case]
    with pytest.raises(InvalidSchema, match=text):
        proved(old, new, *ops)


def test_defaults_that_the_new_schema_has_are_stored_with_the_lens() -> None:
    new = record(
        a={"type": "integer", "default": 7},
        b={"type": "object"},
        c=many(TEXT),
        d={"type": ["string", "null"], "default": None},
        h=record(x={"default": [1]}),
    )
    ops = [add("/a"), add("/b"), add("/c"), add("/d"), add("/h", {}), inside("/h", add("/x"))]
    stored = proved(record(), new, *ops)
    assert [op.get("default", "none") for op in stored] == [7, {}, [], None, {}, "none"]
    assert stored[5]["ops"][0]["default"] == [1]


def test_proving_changes_neither_the_lens_nor_the_schemas() -> None:
    old, new = record(a=TEXT), record(b=TEXT, m={"type": "object", "default": {"x": []}})
    made = lens(rename("/a", "/b"), add("/m"))
    stored = prove(made, old, new)
    assert (old, new) == (
        record(a=TEXT),
        record(b=TEXT, m={"type": "object", "default": {"x": []}}),
    )
    stored["ops"][1]["default"]["x"].append(1)
    assert new["properties"]["m"]["default"] == {"x": []}
    assert "default" not in made.document["ops"][1]
