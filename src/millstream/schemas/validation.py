"""Whether an entry keeps to a schema, and what is wrong with it. Speed matters: every entry of a
stream with a schema comes through `Validator.problem`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from millstream.limits import (
    KIB,
    PROBLEM_TEXT_MAX,
    PROBLEMS_LISTED_MAX,
    SCHEMA_CACHE_BYTES,
    VALIDATION_NODES_FREE,
    VALIDATION_WORK_MAX,
)
from millstream.schemas.dialect import (
    Schema,
    checks_on_one_value,
    compiled,
    pattern_kib,
    patterns_of,
    simplified,
)
from millstream.schemas.documents import decode_document, pointer_text
from millstream.schemas.weighed_cache import WeighedCache


def check_schema(schema: Any) -> None:
    """Raises `InvalidSchema` for what is no schema, or one whose cost we could not bound."""
    compiled(simplified(schema))


class Validator:
    """Of a simplified schema. Takes about a microsecond for a small entry."""

    def __init__(self, schema: Schema) -> None:
        self._compiled = compiled(schema)
        self.checks = checks_on_one_value(schema)
        self.pattern_kib = sum(pattern_kib(pattern) or 0 for pattern in patterns_of(schema))
        self._bytes_free = VALIDATION_WORK_MAX // max(self.checks, self.pattern_kib)
        self._is_counted = bool(self.pattern_kib) or self.checks > VALIDATION_NODES_FREE

    def is_valid(self, value: Any) -> bool:
        return self.problem(value) is None

    def problem(self, value: Any, json_bytes: int | None = None) -> str | None:
        """What is wrong with it, each place with its problem, joined by "; ". None: nothing.

        `json_bytes` is the length it has as JSON, where that is known: it may save counting.
        """
        if self._is_counted and (json_bytes is None or json_bytes > self._bytes_free):
            excess = self._excess(value)
            if excess is not None:
                return excess
        try:
            if self._compiled.is_valid(value):
                return None
            return _joined(self._problems(value))
        except ValueError:
            return "the entry is nested too deeply to be checked"

    def _excess(self, value: Any) -> str | None:
        nodes, characters = _size(value)
        if nodes * self.checks > VALIDATION_WORK_MAX:
            return f"the entry has too many values for its schema: {nodes}"
        if characters * self.pattern_kib > VALIDATION_WORK_MAX:
            return f"the entry is too long for the patterns of its schema: {characters} characters"
        return None

    def _problems(self, value: Any) -> Iterator[str]:
        """All of them if they can be few: the library makes all before it shows the first."""
        if _size(value)[0] * self.checks <= PROBLEMS_LISTED_MAX:
            yield from map(_problem_text, self._compiled.iter_errors(value))
            return
        try:
            self._compiled.validate(value)
        except jsonschema_rs.ValidationError as error:
            yield _problem_text(error)


def _size(value: Any) -> tuple[int, int]:
    """How many values there are in it, and characters of names and texts."""
    nodes, characters, level = 0, 0, [value]
    while level:
        parents, level = level, []
        nodes += len(parents)
        for parent in parents:
            if isinstance(parent, str):
                characters += len(parent)
            elif isinstance(parent, dict):
                characters += sum(map(len, parent))
                level.extend(parent.values())
            elif isinstance(parent, list):
                level.extend(parent)
    return nodes, characters


def _joined(problems: Iterator[str]) -> str:
    text = "; ".join(dict.fromkeys(problems))
    return text if len(text) <= PROBLEM_TEXT_MAX else text[: PROBLEM_TEXT_MAX - 1] + "…"


def _problem_text(error: jsonschema_rs.ValidationError) -> str:
    place = pointer_text(tuple(map(str, error.instance_path)))[:200] or "entry"
    kind = error.kind
    text = _TEXTS.get(kind.name)
    return f"{place} {(text(kind) if text is not None else error.message)[:300]}"


# The words that clients of other servers know from Ajv.
_TEXTS: dict[str, Callable[[Any], str]] = {
    "additionalItems": lambda kind: f"must NOT have more than {kind.limit} items",
    "additionalProperties": lambda kind: (
        f"must NOT have additional properties ({', '.join(kind.unexpected[:10])})"
    ),
    "anyOf": lambda kind: "must match a schema in anyOf",
    "const": lambda kind: "must be equal to constant",
    "contains": lambda kind: "must contain at least 1 valid item(s)",
    "enum": lambda kind: "must be equal to one of the allowed values",
    "exclusiveMaximum": lambda kind: f"must be < {kind.limit}",
    "exclusiveMinimum": lambda kind: f"must be > {kind.limit}",
    "falseSchema": lambda kind: "boolean schema is false",
    "format": lambda kind: f'must match format "{kind.format}"',
    "maxItems": lambda kind: f"must NOT have more than {kind.limit} items",
    "maxLength": lambda kind: f"must NOT have more than {kind.limit} characters",
    "maxProperties": lambda kind: f"must NOT have more than {kind.limit} properties",
    "maximum": lambda kind: f"must be <= {kind.limit}",
    "minItems": lambda kind: f"must NOT have fewer than {kind.limit} items",
    "minLength": lambda kind: f"must NOT have fewer than {kind.limit} characters",
    "minProperties": lambda kind: f"must NOT have fewer than {kind.limit} properties",
    "minimum": lambda kind: f"must be >= {kind.limit}",
    "multipleOf": lambda kind: f"must be multiple of {kind.multiple_of}",
    "not": lambda kind: "must NOT be valid",
    "oneOf": lambda kind: "must match exactly one schema in oneOf",
    "pattern": lambda kind: f'must match pattern "{kind.pattern}"',
    "propertyNames": lambda kind: "property name must be valid",
    "required": lambda kind: f"must have required property '{kind.property}'",
    "type": lambda kind: f"must be {','.join(sorted(kind.types))}",
    "uniqueItems": lambda kind: "must NOT have duplicate items",
}

_validators: WeighedCache[bytes, Validator] = WeighedCache(SCHEMA_CACHE_BYTES)


def validator_of(schema_json: bytes) -> Validator:
    """Of a schema as the rules keep it; the same content gives the same validator."""
    return _validators.get(schema_json, _validator, _weight)


def _validator(schema_json: bytes) -> Validator:
    return Validator(simplified(decode_document(schema_json, "schema")))


def _weight(schema_json: bytes, validator: Validator) -> int:
    """Bytes of memory, as measured; a pattern takes its program, and as much to run it."""
    return 8 * KIB + 40 * len(schema_json) + 2 * KIB * validator.pattern_kib
