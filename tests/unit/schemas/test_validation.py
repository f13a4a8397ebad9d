from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidSchema
from millstream.limits import PATTERNS_MAX, PROBLEM_TEXT_MAX, SUBSCHEMAS_MAX
from millstream.schemas.dialect import simplified
from millstream.schemas.validation import Validator, check_schema, validator_of
from tests.unit.schemas.made import INTEGER, TEXT, record


def problem(schema: Any, value: Any) -> str | None:
    return validator_of(msgspec.json.encode(schema)).problem(value)


def test_an_entry_that_keeps_to_its_schema_has_no_problem() -> None:
    assert problem(record(a=TEXT, n=INTEGER), {"a": "x", "n": 1, "more": True}) is None


def test_all_problems_of_an_entry_are_told_with_their_places() -> None:
    schema = {**record(a=TEXT, n=INTEGER), "additionalProperties": False}
    told = problem(schema, {"n": "x", "z/y": 1})
    assert told is not None
    assert sorted(told.split("; ")) == [
        "/n must be integer",
        "entry must NOT have additional properties (z/y)",
        "entry must have required property 'a'",
    ]


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": ["string", "null"]}, 1, "must be null,string"),
        ({"enum": [1, 2]}, 3, "must be equal to one of the allowed values"),
        ({"const": 1}, True, "must be equal to constant"),
        ({"minimum": 5}, 4, "must be >= 5"),
        ({"maximum": 5}, 6, "must be <= 5"),
        ({"exclusiveMinimum": 5}, 5, "must be > 5"),
        ({"exclusiveMaximum": 5}, 5, "must be < 5"),
        ({"multipleOf": 2}, 3, "must be multiple of 2"),
        ({"minLength": 2}, "a", "must NOT have fewer than 2 characters"),
        ({"maxLength": 2}, "aaa", "must NOT have more than 2 characters"),
        ({"pattern": "^a$"}, "b", 'must match pattern "^a$"'),
        ({"format": "date-time"}, "now", 'must match format "date-time"'),
        ({"minItems": 1}, [], "must NOT have fewer than 1 items"),
        ({"maxItems": 0}, [1], "must NOT have more than 0 items"),
        ({"uniqueItems": True}, [1, 1.0], "must NOT have duplicate items"),
        ({"contains": TEXT}, [1], "must contain at least 1 valid item(s)"),
        ({"items": [{}], "additionalItems": False}, [1, 2], "must NOT have more than 1 items"),
        ({"minProperties": 1}, {}, "must NOT have fewer than 1 properties"),
        ({"maxProperties": 0}, {"a": 1}, "must NOT have more than 0 properties"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "property name must be valid"),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, "must have required property 'b'"),
        ({"anyOf": [TEXT, INTEGER]}, None, "must match a schema in anyOf"),
        ({"oneOf": [{}, INTEGER]}, 1, "must match exactly one schema in oneOf"),
        ({"not": {}}, 1, "must NOT be valid"),
        (False, 1, "boolean schema is false"),
        ({"if": INTEGER, "then": {"minimum": 5}}, 1, "must be >= 5"),
    ],
)
def test_every_kind_of_problem_has_its_words(schema: Any, value: Any, text: str) -> None:
    assert problem(schema, value) == f"entry {text}"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (True, {"any": "thing"}),
        ({}, None),
        (INTEGER, 1.0),
        (INTEGER, 10**400),
        ({"const": 10**30}, 10**30),
        ({"enum": [{"a": 1}]}, {"a": 1.0}),
        ({"multipleOf": 0.01}, 19.99),
        ({"format": "email"}, "no address"),
        ({"format": "uri"}, "::"),
        ({"contentEncoding": "base64", "contentMediaType": "application/json"}, "%%%"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [TEXT]}, [1]),
        ({"$schema": "urn:unknown", "$id": "::not a uri::", "$anchor": 5}, 1),
        ({"unknown": {"type": "nonsense"}, "definitions": 5}, 1),
        ({"type": "string", "nullable": True}, None),
        ({"then": False, "else": False}, 1),
        ({"pattern": r"^\p{L}+$"}, "é"),
        ({"pattern": r"^\d$"}, "1"),
        ({"properties": {"$ref": TEXT}}, {"$ref": "x"}),
        ({"const": {"$ref": "#"}, "default": {"$ref": "#"}}, {"$ref": "#"}),
    ],
)
def test_what_the_dialect_lets_pass(schema: Any, value: Any) -> None:
    assert problem(schema, value) is None


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-31T00:00:00Z",
        "2024-02-29T23:59:59.123456789+05:30",
        "2000-02-29T00:00:00-00:00",
        "2016-12-31T23:59:60Z",
    ],
)
def test_times_of_the_given_shape_pass(text: str) -> None:
    assert problem({"format": "date-time"}, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-31 00:00:00Z",
        "2024-01-31t00:00:00z",
        "2024-01-31T00:00:00",
        "2024-01-31T00:00Z",
        "2024-01-31T00:00:00.Z",
        "2024-01-31T00:00:00.1234567890Z",
        "2024-01-31T00:00:00+0530",
        "2024-13-01T00:00:00Z",
        "2024-04-31T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2024-01-31T24:00:00Z",
        "2024-01-31T00:00:00Z\n",
        "٢٠٢٤-01-31T00:00:00Z",
    ],
)
def test_other_times_do_not_pass(text: str) -> None:
    assert problem({"format": "date-time"}, text) == 'entry must match format "date-time"'


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "https://example.com/x.json"},
        {"properties": {"a": {"items": {"$ref": "#/definitions/b"}}}},
        {"definitions": {"a": {"anyOf": [{"$ref": "#"}]}}},
        {"$defs": {"a": {"$ref": "#"}}},
        {"dependencies": {"a": {"$ref": "#"}}},
        {"unknown": [{"$ref": "#"}]},
        {"items": [{"$ref": "#"}]},
        {"if": {}, "then": {"$ref": "#"}},
        {"then": {"$ref": "#"}},
    ],
)
def test_references_are_refused_wherever_a_schema_can_have_them(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match=r"^external \$ref is not supported$"):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        5,
        "object",
        [],
        {"type": "strnig"},
        {"type": []},
        {"type": [5]},
        {"minLength": -1},
        {"minLength": "1"},
        {"multipleOf": 0},
        {"required": "a"},
        {"required": [1]},
        {"required": ["a", "a"]},
        {"enum": 3},
        {"properties": []},
        {"properties": {"a": 5}},
        {"items": 3},
        {"items": [3]},
        {"allOf": {}},
        {"allOf": []},
        {"anyOf": [5]},
        {"dependencies": 5},
        {"dependencies": {"a": [1]}},
        {"dependencies": {"a": 1}},
        {"patternProperties": {"(": {}}},
        {"pattern": "("},
        {"pattern": 5},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "((a{1000}){1000}){1000}"},
        {"uniqueItems": 1},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match="schema"):
        check_schema(schema)


def test_too_many_subschemas_or_patterns_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="subschemas"):
        check_schema({"anyOf": [{}] * SUBSCHEMAS_MAX})
    with pytest.raises(InvalidSchema, match="patterns"):
        check_schema({"anyOf": [{"pattern": "a"}] * (PATTERNS_MAX + 1)})
    deep: Any = {}
    for _ in range(200):
        deep = {"not": deep}
    with pytest.raises(InvalidSchema, match="nested"):
        check_schema(deep)


def test_the_text_of_a_problem_is_bounded() -> None:
    names = [f"name{number}" * 20 for number in range(100)]
    text = problem({"required": names}, {})
    assert text is not None
    assert len(text) == PROBLEM_TEXT_MAX
    assert text.endswith("…")
    shown = problem({"type": "object"}, "x" * 100_000)
    assert shown == "entry must be object"


def test_of_a_large_entry_only_the_first_problem_is_told() -> None:
    assert problem({"items": INTEGER}, ["x"] * 20_000) == "/0 must be integer"


def test_an_entry_that_is_nested_too_deeply_to_compare_has_a_problem() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    assert problem({"enum": [[[1]], {"a": 1}]}, deep) is not None
    assert problem({"uniqueItems": True}, [deep, deep]) is not None


def test_the_same_schema_has_the_same_validator() -> None:
    assert validator_of(b'{"type":"string"}') is validator_of(
        bytes(bytearray(b'{"type":"string"}'))
    )
    assert validator_of(b'{"type":"string"}') is not validator_of(b'{"type": "string"}')


def test_a_known_length_saves_counting_and_changes_no_verdict() -> None:
    validator = Validator(simplified({"items": {"pattern": "^a*$"}}))
    assert validator.problem(["a"], 5) is None
    assert validator.problem(["b"], 5) == validator.problem(["b"])
