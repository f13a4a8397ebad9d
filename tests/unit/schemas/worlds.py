"""Schemas, entries and lenses from a small grammar, made so that most of them fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.schemas.dialect import simplified
from millstream.schemas.documents import clone, pointer_text
from millstream.schemas.fitting import CHANGED
from millstream.schemas.lenses import parse_lens
from millstream.schemas.proofs import schema_after
from tests.unit.schemas.made import (
    add,
    convert,
    copy,
    each,
    head,
    inside,
    lens_document,
    remove,
    rename,
    wrap,
)

NAMES = ("a", "b", "c", "d")

leaves = st.sampled_from(
    [
        {},
        {"type": "string"},
        {"type": "string", "minLength": 1},
        {"type": "string", "format": "date-time"},
        {"type": "integer"},
        {"type": "integer", "minimum": 0},
        {"type": "number", "maximum": 10},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"enum": ["x", "y"]},
        {"enum": ["1", "2"]},
        {"const": 5},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    ]
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: draw(inner) for name in names},
        "required": [name for name in names if draw(st.integers(0, 3))],
    }
    others = draw(st.sampled_from([None, None, False, {"type": "integer"}]))
    if others is not None:
        schema["additionalProperties"] = others
    return schema


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.sampled_from([{}, {"minItems": 1}, {"maxItems": 2}, {"uniqueItems": True}])
    return st.builds(lambda items, more: {"type": "array", "items": items, **more}, inner, bounds)


schemas = objects(st.recursive(leaves, lambda inner: arrays(inner) | objects(inner), max_leaves=4))


def entries(schema: Any) -> st.SearchStrategy[Any]:
    """Values that keep to a schema of this grammar, with nothing in them that it does not declare
    unless it says what that would be."""
    if "const" in schema:
        return st.just(schema["const"]).map(clone)
    if "enum" in schema:
        return st.sampled_from(schema["enum"]).map(clone)
    if "anyOf" in schema:
        return st.one_of([entries(part) for part in schema["anyOf"]])
    kinds = schema.get("type", ["string", "integer", "null", "boolean"])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return st.one_of([_of_type(kind, schema) for kind in kinds])


def _of_type(kind: str, schema: Any) -> st.SearchStrategy[Any]:
    if kind == "string" and schema.get("format"):
        return st.sampled_from(["2024-01-01T00:00:00Z", "1999-12-31T23:59:59.5+01:00"])
    if kind == "string":
        return st.text("abXÄ1", min_size=schema.get("minLength", 0), max_size=3)
    if kind == "integer":
        return st.integers(schema.get("minimum"), schema.get("maximum"))
    if kind == "number":
        return st.integers(-5, 10) | st.floats(-5, 10)
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    return {"null": st.none(), "boolean": st.booleans()}[kind]


def _array(schema: Any) -> st.SearchStrategy[Any]:
    shortest, longest = schema.get("minItems", 0), schema.get("maxItems", 3)
    if schema.get("uniqueItems"):
        longest = min(longest, 1)
    return st.lists(entries(schema.get("items", {})), min_size=shortest, max_size=longest)


@st.composite
def _object(draw: st.DrawFn, schema: Any) -> Any:
    properties = schema.get("properties", {})
    entry = {
        name: draw(entries(each))
        for name, each in properties.items()
        if name in schema.get("required", ()) or draw(st.booleans())
    }
    others = schema.get("additionalProperties")
    if isinstance(others, dict) and others and draw(st.booleans()):
        entry["other"] = draw(entries(others))
    return entry


class _Anything(dict[str, Any]):
    """A new schema that declares every place, so that a lens can be made before its schema."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        return "array" if key == "type" else self

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


pointers = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(
    lambda names: pointer_text(tuple(names))
)
defaults = st.sampled_from([None, 0, 5, "x", [], {}, {"a": [1]}, ["x"]])
converts: st.SearchStrategy[tuple[str, str, dict[str, Any]]] = st.sampled_from(
    [
        ("string", "string", {"builtin": "lowercase"}),
        ("string", "integer", {"builtin": "string_to_int"}),
        ("string", "integer", {"map": {"x": 1}, "default": 0}),
        ("string", "string", {"map": {"x": "X", "y": "Y"}}),
        ("integer", "string", {"builtin": "int_to_string"}),
        ("integer", "string", {"builtin": "unix_millis_to_rfc3339"}),
        ("string", "integer", {"builtin": "rfc3339_to_unix_millis"}),
        ("number", "boolean", {"map": {"5": True}, "default": False}),
        ("boolean", "integer", {"map": {"true": 1, "false": 0}}),
    ]
)


@st.composite
def operations(draw: st.DrawFn, known: tuple[str, ...] = (), depth: int = 1) -> Any:
    """One that may be possible: mostly from places that are `known` to be there."""
    kind = draw(st.sampled_from(_KINDS if depth else _KINDS[:-2]))
    place = draw(st.sampled_from(known) | pointers if known else pointers | st.just(""))
    target, name = draw(pointers), draw(st.sampled_from(NAMES))
    host = place.rpartition("/")[0]
    if kind == "convert":
        from_type, to_type, forward = draw(converts)
        return convert(place, from_type, to_type, **forward)
    if kind in ("in", "map"):
        inner = draw(st.lists(operations(depth=0), min_size=1, max_size=2))
        return (inside if kind == "in" else each)(place, *inner)
    made = {
        "rename": rename(place, target),
        "copy": copy(place, target),
        "add": add(target, draw(defaults)),
        "remove": remove(place),
        "wrap": wrap(place),
        "head": head(place),
        "hoist": {"op": "hoist", "host": host, "name": place.rpartition("/")[2], "to": target},
        "plunge": {"op": "plunge", "from": place, "host": target, "name": name},
    }[kind]
    if kind == "hoist":
        made["removeFromHost"] = draw(st.booleans())
    if kind == "plunge":
        made |= {"createHost": draw(st.booleans()), "removeFromSource": draw(st.booleans())}
    return made


_KINDS = [
    *("rename", "copy", "add", "remove", "wrap", "head", "hoist", "plunge", "convert"),
    *("in", "map"),
]


@st.composite
def lenses(draw: st.DrawFn, old: Any) -> tuple[list[dict[str, Any]], Any]:
    """Operations that can be carried out on every entry of `old`, and what comes out of it."""
    ops: list[dict[str, Any]] = []
    schema = simplified(old)
    for _ in range(draw(st.integers(2, 8))):
        op = draw(operations(tuple(_places(schema, ""))))
        try:
            parsed = parse_lens(lens_document(op)).ops
            schema = schema_after(parsed, [clone(op)], clone(schema), _Anything())
        except InvalidSchema:
            continue
        ops.append(op)
    return ops, unmarked(schema)


def _places(schema: Any, path: str) -> Iterator[str]:
    """What is there in every entry."""
    if isinstance(schema, dict):
        for name in schema.get("required", ()):
            if name in schema.get("properties", {}):
                yield f"{path}/{name}"
                yield from _places(schema["properties"][name], f"{path}/{name}")


def unmarked(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: unmarked(value) for key, value in schema.items() if key != CHANGED}
    return [unmarked(value) for value in schema] if isinstance(schema, list) else schema


@st.composite
def tampered(draw: st.DrawFn, schema: Any) -> Any:
    """The same schema with a word changed somewhere, for better or worse."""
    schema = clone(schema)
    places = [schema]
    for place in places:
        inner = (*place.get("properties", {}).values(), place.get("items"))
        places.extend(value for value in inner if isinstance(value, dict))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from(places))
        place |= draw(
            st.sampled_from(
                [
                    {"type": "string"},
                    {"type": ["string", "integer"]},
                    {"type": ["object", "null"]},
                    {"required": ["a", "b"]},
                    {"required": []},
                    {"additionalProperties": False},
                    {"additionalProperties": {"type": ["integer", "string"]}},
                    {"minItems": 1},
                    {"maxItems": 1},
                    {"uniqueItems": True},
                    {"enum": [1, "x", [], {}]},
                    {"minimum": 0},
                    {"maxLength": 1},
                    {"anyOf": [{"type": "string"}, {"type": "object"}]},
                    {"not": {"type": "string"}},
                    {"patternProperties": {"^[ab]": {"type": "string"}}},
                    {"properties": {}},
                    {"properties": {"a": {"type": "string"}}},
                ]
            )
        )
    return schema


numbers = st.integers(-1, 4)
_PLAIN_TYPES = ["null", "boolean", "string", "integer", "number", "array"]


@st.composite
def free_schemas(draw: st.DrawFn, depth: int = 2) -> Any:
    """Any keywords in any mixture. Every value has a known type, and every object declares all
    that it may have, so that nothing is left to trust."""
    if draw(st.integers(0, 12)) == 0:
        return {"enum": draw(st.lists(free_values(1), min_size=1, max_size=3))}
    if draw(st.integers(0, 2)) == 0:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": draw(st.just(False) | free_schemas(0)),
            "properties": draw(
                st.dictionaries(st.sampled_from("ab"), free_schemas(depth - 1), max_size=2)
                if depth
                else st.just({})
            ),
        }
        names = st.sampled_from("abc")
        more = {
            "required": st.lists(names, unique=True, max_size=2),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "patternProperties": st.dictionaries(
                st.sampled_from(["^a", "[bc]"]), free_schemas(0), max_size=2
            ),
            "propertyNames": st.sampled_from([{"enum": ["a", "b"]}, {"maxLength": 1}]),
            "dependencies": st.just({"a": ["b"]}),
        }
    else:
        schema = {"type": draw(st.lists(st.sampled_from(_PLAIN_TYPES), min_size=1, unique=True))}
        more = {
            "minimum": numbers,
            "maximum": numbers,
            "exclusiveMinimum": numbers,
            "exclusiveMaximum": numbers,
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "pattern": st.sampled_from(["a", "^b"]),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "items": free_schemas(0) if depth else st.just({"type": "integer"}),
            "contains": st.just({"type": "integer"}),
            "const": free_values(1),
        }
    if depth:
        parts = st.lists(free_schemas(depth - 1), min_size=1, max_size=2)
        more |= {"anyOf": parts, "oneOf": parts, "allOf": parts, "not": free_schemas(depth - 1)}
    for keyword in draw(st.lists(st.sampled_from(sorted(more)), unique=True, max_size=3)):
        schema[keyword] = draw(more[keyword])
    return schema


def free_values(depth: int = 2) -> st.SearchStrategy[Any]:
    plain = st.sampled_from([None, True, False, -1, 0, 1, 2, 4, 1.0, 0.5, 2.5, "", "a", "b", "ab"])
    if not depth:
        return plain
    inner = free_values(depth - 1)
    return st.one_of(
        plain,
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    )


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two schemas, often nearly the same."""
    first = draw(free_schemas())
    if draw(st.integers(0, 3)) == 0:
        return first, draw(free_schemas())
    second, other = clone(first), draw(free_schemas())
    for keyword in draw(st.lists(st.sampled_from(sorted(first)), unique=True, max_size=2)):
        del second[keyword]
    for keyword in draw(st.lists(st.sampled_from(sorted(other)), unique=True, max_size=1)):
        second[keyword] = other[keyword]
    return first, second
