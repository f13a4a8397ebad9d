"""Schemas and lenses made to hurt: each is refused, or costs a bounded time. The bounds are
generous, for the machine may be busy; without our limits each of these takes minutes, or all
memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidSchema, LensConflict, StreamNotEmpty
from millstream.limits import PATTERNS_MAX, PROMOTION_BYTES_MAX, SUBSCHEMAS_MAX
from millstream.schemas import lenses
from millstream.schemas.dialect import pattern_kib, simplified
from millstream.schemas.documents import clone
from millstream.schemas.fitting import Fitting
from millstream.schemas.lenses import parse_lens
from millstream.schemas.promotion import Promotion
from millstream.schemas.proofs import prove
from millstream.schemas.registry import plan_update, registry_document
from millstream.schemas.validation import Validator, check_schema, validator_of
from millstream.state.rules import Rules
from tests.unit.effort import brief
from tests.unit.schemas.made import (
    STREAM,
    TEXT,
    add,
    convert,
    copy,
    each,
    inside,
    lens,
    lens_document,
    record,
    rename,
    wrap,
)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.thread_time()  # what others do to the machine does not count
    yield
    assert time.thread_time() - begun < seconds


def validator(schema: Any) -> Validator:
    return Validator(simplified(schema))


def test_a_tower_or_a_megabyte_of_schema_is_refused() -> None:
    with within(1), pytest.raises(InvalidSchema, match="deep"):
        plan_update(STREAM, None, b'{"schema":' + b'{"not":' * 20_000, True)
    with within(1), pytest.raises(InvalidSchema, match="bytes"):
        plan_update(STREAM, None, b'{"schema":{"anyOf":[' + b"{}," * 400_000, True)
    with within(1), pytest.raises(InvalidSchema, match="values"):
        check_schema({"anyOf": [{}] * 400_000})
    tower: Any = {}
    for _ in range(100_000):
        tower = {"not": tower}
    with within(1), pytest.raises(InvalidSchema, match="deep"):
        check_schema(tower)


def test_the_largest_schema_compiles_and_answers_in_time() -> None:
    with within(5):
        wide = validator(
            {"items": {"anyOf": [{"const": f"{n}"} for n in range(SUBSCHEMAS_MAX - 2)]}}
        )
    with within(5):
        assert wide.problem(["4997"] * 1000) is None
    with within(5):
        assert wide.problem(["no"] * 1000) == "/0 must match a schema in anyOf"
    with within(1):
        assert "too many values" in str(wide.problem(["4997"] * 100_000))


def test_values_that_are_compared_one_by_one_are_counted() -> None:
    floats = validator({"items": {"enum": [n + 0.5 for n in range(5000)]}})
    with within(5):
        assert floats.problem([4999.5] * 50) is None
    with within(1):
        assert "too many values" in str(floats.problem([4999.5] * 1000))
    texts = validator({"items": {"enum": [f"{n}" for n in range(20_000)]}})
    with within(5):
        assert texts.problem(["19999"] * 100_000) is None


def test_a_pattern_takes_time_in_proportion_to_the_text() -> None:
    with within(2):
        assert validator({"pattern": "^(a+)+$"}).problem("a" * 100_000 + "b") is not None
        assert validator({"pattern": "(x+x+)+y"}).problem("x" * 100_000) is not None


def test_a_pattern_that_is_slow_for_each_character_sees_few_of_them() -> None:
    slow = "(a|b)*a(a|b){1000}c"
    assert (pattern_kib(slow) or 0) > 100
    hostile = validator({"pattern": slow})
    with within(10):
        assert hostile.problem("ab" * 8000) is not None
    with within(1):
        assert "too long for the patterns" in str(hostile.problem("ab" * 100_000))
        assert "too long for the patterns" in str(hostile.problem({"ab" * 100_000: "a"}))


def test_many_large_patterns_compile_in_time() -> None:
    patterns = [rf"^(\p{{L}}|[^\s]{{20}}){n}$" for n in range(PATTERNS_MAX)]
    with within(20):
        check_schema({"anyOf": [{"pattern": pattern} for pattern in patterns]})
    with within(5), pytest.raises(InvalidSchema, match="pattern"):
        check_schema({"pattern": r"^(((\p{L}{1,999}){1,999}){1,999}){1,999}$"})


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64, 2**200, 1e300, 10**4000], ids=range(6))
def test_absurd_sizes_are_only_numbers(size: Any) -> None:
    keywords = "minLength", "minItems", "minProperties", "maxLength", "maxItems", "maxProperties"
    with within(2):
        for keyword in (*keywords, "minimum", "maximum", "multipleOf"):
            for value in ("x", [1], {"a": 1}, 1, 0.5, 2**70):
                try:
                    validator({keyword: size}).problem(value)
                except InvalidSchema:
                    pass


def test_problems_of_a_huge_entry_are_found_in_time() -> None:
    with within(5):
        assert validator({"items": TEXT}).problem([1] * 500_000) == "/0 must be string"
        assert validator({"uniqueItems": True}).problem([[n] for n in range(100_000)]) is None
        assert validator({"type": "string"}).problem({"a": "x" * 5_000_000}) is not None


def test_schemas_that_are_too_hard_to_compare_are_refused() -> None:
    def maze(count: int, name: str) -> Any:
        parts = [{"type": "object", "properties": {f"{name}{n}": TEXT}} for n in range(count)]
        return {"anyOf": [{"anyOf": [part], "oneOf": [part]} for part in parts]}

    with within(20), pytest.raises(InvalidSchema, match="too complex"):
        Fitting().misfit(simplified(maze(600, "a")), simplified(maze(600, "b")))
    values = {"enum": [f"{n}" for n in range(15_000)]}
    choices = {"anyOf": [{"const": f"{n}"} for n in range(4000)]}
    with within(20), pytest.raises(InvalidSchema):
        prove(lens(rename("/a", "/b")), record(a=values), record(b=choices))


def test_a_lens_that_doubles_the_schema_is_refused() -> None:
    doubling = lens(*[copy("", f"/x{n}") for n in range(100)])
    with within(5), pytest.raises(InvalidSchema, match="too much"):
        prove(doubling, record(a=TEXT), {"type": "object"})
    tower = lens(*[wrap("/a")] * 1000)
    with within(5), pytest.raises(InvalidSchema, match="deep"):
        prove(tower, record(a=TEXT), record(a={}))
    nested: Any = rename("/a", "/b")
    for _ in range(30):
        nested = inside("", nested)
    prove(lens(nested), record(a=TEXT), record(b=TEXT))


def test_time_in_a_lens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenses, "PROMOTION_BYTES_MAX", PROMOTION_BYTES_MAX // 16)  # as the time
    busy = lens(each("/items", *[convert("", "string", "string", builtin="lowercase")] * 999))
    with within(5), pytest.raises(InvalidSchema, match="too much"):
        busy.promote({"items": ["X"] * 100_000})


# What follows: whatever comes in, nothing but our own errors comes out.

WORDS = [
    *("type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "oneOf", "not"),
    *("if", "then", "else", "pattern", "format", "minimum", "maxLength", "minItems", "uniqueItems"),
    *("additionalProperties", "patternProperties", "dependencies", "propertyNames", "contains"),
    *("additionalItems", "multipleOf", "nullable", "default", "$ref", "definitions", "$changed"),
    *("op", "path", "from", "to", "host", "name", "schema", "forward", "backward", "map", "ops"),
    *("fromType", "toType", "builtin", "mode", "a", "b", "c", "", "apiVersion", "lens", "search"),
    *("routingKey", "jsonPointer"),
]
SAYINGS = [
    *("object", "array", "string", "integer", "number", "null", "boolean", "date-time", "", "/a"),
    *("/a/b", "/b", "a", "~", "(", "^a", "(?=a)", "rename", "add", "remove", "copy", "singleton"),
    *("lowercase", "string_to_int", "unix_millis_to_rfc3339", "wrap", "head", "in", "map"),
]
scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 2, -1, 5, 2**70, 1e300, 0.5, 1.0])
    | st.sampled_from(SAYINGS)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
)
words = st.sampled_from(WORDS)
nonsense = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)

OLD = record(
    a=TEXT,
    b=record(x={"enum": ["1", "2"]}, y={"type": "integer", "minimum": 0}),
    c={"type": "array", "items": record(z=TEXT), "minItems": 1},
    d={"anyOf": [TEXT, {"type": "null"}]},
    e={"type": "boolean"},
)
NEW = record(
    f=TEXT,
    b=record(x={"type": "integer"}, y={"type": "integer"}, g={"type": "string"}),
    c={"type": "array", "items": record(z=TEXT, w={"type": "array", "items": TEXT})},
    d={"type": ["string", "null"]},
    e={"type": "array", "items": {"type": "boolean"}},
)
STEPS = [
    rename("/a", "/f"),
    convert("/b/x", "string", "integer", builtin="string_to_int"),
    copy("/f", "/b/g"),
    each("/c", add("/w", [])),
    wrap("/e"),
]
ENTRY = {"a": "A", "b": {"x": "1", "y": 2}, "c": [{"z": "Z"}], "d": None, "e": True}


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """The document with nonsense in a few places."""
    whole = {"": clone(document)}
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(_slots(whole))))
        action = draw(st.sampled_from(["replace", "replace", "add", "drop"]))
        if action == "drop" and parent is not whole:
            del parent[key]
        elif action == "add" and isinstance(parent, dict):
            parent[draw(words)] = draw(nonsense)
        else:
            parent[key] = draw(nonsense)
    return whole[""]


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _slots(value[key])


def test_what_the_nonsense_starts_from_is_sound() -> None:
    stored = parse_lens(prove(lens(*STEPS), OLD, NEW))
    assert validator(OLD).problem(ENTRY) is None
    assert validator(NEW).problem(stored.promote(clone(ENTRY))) is None


@settings(brief, max_examples=150)
@given(nonsense | damaged(OLD), nonsense)
def test_any_schema_is_taken_or_refused(schema: Any, value: Any) -> None:
    try:
        check_schema(schema)
    except InvalidSchema:
        return
    problem = validator(schema).problem(value)
    assert problem is None or isinstance(problem, str)
    try:
        Fitting().misfit(simplified(schema), simplified(OLD))
        Fitting().misfit(simplified(OLD), simplified(schema))
    except InvalidSchema:
        pass


@settings(brief, max_examples=150)
@given(
    nonsense | damaged(lens_document(*STEPS)),
    st.just(OLD) | damaged(OLD),
    st.just(NEW) | damaged(NEW),
    st.just(ENTRY) | damaged(ENTRY),
)
def test_any_lens_is_taken_or_refused(document: Any, old: Any, new: Any, entry: Any) -> None:
    try:
        made = parse_lens(document)
    except InvalidSchema:
        return
    try:
        made = parse_lens(prove(made, old, new))
    except InvalidSchema:
        pass
    try:
        made.promote(clone(entry))
    except InvalidSchema:
        pass


UPDATE = {"schema": NEW, "lens": lens_document(*STEPS), "routingKey": {"jsonPointer": "/a"}}
INSTALLED = Rules(revision=1, schemas=(msgspec.json.encode(OLD),), lenses=(b"",))


@settings(brief, max_examples=150)
@given(
    damaged(UPDATE).map(msgspec.json.encode) | nonsense.map(msgspec.json.encode) | st.binary(),
    st.sampled_from([None, INSTALLED]),
    st.booleans(),
)
def test_any_update_is_taken_or_refused(body: bytes, rules: Rules | None, is_empty: bool) -> None:
    if b'"search"' in body:
        return  # search_config.py has its own tests
    try:
        change = plan_update(STREAM, rules, body, is_empty)
    except (InvalidSchema, LensConflict, StreamNotEmpty):
        return
    registry_document(STREAM, change.rules)
    for schema in change.rules.schemas:
        validator_of(schema)
    promotion = Promotion(change.rules)
    try:
        promotion.promote_bytes(1, msgspec.json.encode(ENTRY))
    except InvalidSchema:
        pass
