"""JSON Schema as streams take it: draft 7, no references, and formats but `date-time` ignored.

`simplified` leaves what says something about entries and nothing else: annotations, unknown
keywords, other formats and `$schema` are gone, `true` is `{}`, `nullable` is a type. Validators
are compiled from that form and proofs compare it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

from millstream.errors import InvalidSchema
from millstream.limits import KIB, PATTERN_KIB_MAX, PATTERNS_MAX, SUBSCHEMAS_MAX
from millstream.schemas.documents import check_shape, clone

Schema = dict[str, Any] | bool  # simplified: `False`, or keywords

_PLAIN = frozenset(
    {
        *("type", "enum", "const", "required"),
        *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern"),
        *("maxItems", "minItems", "uniqueItems", "maxProperties", "minProperties"),
    }
)
_ONE = frozenset({"additionalProperties", "additionalItems", "contains", "propertyNames", "not"})
_BRANCHES = ("if", "then", "else")
_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_MAPS = frozenset({"properties", "patternProperties"})
_VALUES = frozenset({"default", "examples", "enum", "const"})  # JSON inside, not schemas

_DATE_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)"
    r"(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_SHORT_MONTHS = frozenset({"04", "06", "09", "11"})


TYPES: Final = frozenset({"null", "boolean", "object", "array", "string", "integer", "number"})


def is_date_time(text: str) -> bool:
    """`YYYY-MM-DDThh:mm:ss`, up to nine digits of a fraction, then `Z` or an offset."""
    if _DATE_TIME.fullmatch(text) is None:
        return False
    day = text[8:10]
    if day < "29":
        return True
    year, month = text[:4], text[5:7]
    if month != "02" and month not in _SHORT_MONTHS:
        return True
    if month != "02":
        return day != "31"
    number = int(year)
    is_leap = number % 4 == 0 and (number % 100 != 0 or number % 400 == 0)
    return is_leap and day == "29"


def simplified(schema: Any, what: str = "schema") -> Schema:
    """What this schema asks for, in documents of its own. Raises `InvalidSchema`.

    A keyword's value may still be nonsense; compiling tells (`compiled`).
    """
    check_shape(schema, what)
    form: Schema = clone(_Simplifier(what).simplified(schema))
    return form


class _Simplifier:
    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def simplified(self, schema: Any) -> Schema:
        self._count += 1
        if self._count > SUBSCHEMAS_MAX:
            raise InvalidSchema(f"{self._what} has more than {SUBSCHEMAS_MAX} subschemas")
        if isinstance(schema, bool):
            return {} if schema else False
        if not isinstance(schema, dict):
            raise InvalidSchema(f"{self._what}: a schema must be an object or a boolean")
        if "$ref" in schema:
            raise _reference()
        form: dict[str, Any] = {}
        for keyword, value in schema.items():
            self._take(form, schema, keyword, value)
        _take_type(form, schema)
        return form

    def _take(self, form: dict[str, Any], schema: Any, keyword: str, value: Any) -> None:
        if keyword in _PLAIN:
            form[keyword] = value
        elif keyword in _ONE or (keyword in _BRANCHES and "if" in schema):
            form[keyword] = self.simplified(value)
        elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            form[keyword] = self._list(keyword, value)
        elif keyword in _MAPS:
            form[keyword] = self._map(keyword, value)
        elif keyword == "items":
            form[keyword] = self.simplified(value)
        elif keyword == "dependencies":
            form[keyword] = self._dependencies(value)
        elif keyword == "format":
            if value == "date-time":
                form[keyword] = value
        elif keyword not in _VALUES and _mentions_reference(value):
            raise _reference()

    def _list(self, keyword: str, value: Any) -> list[Schema]:
        if not isinstance(value, list):
            raise InvalidSchema(f"{self._what}: {keyword} must be an array of schemas")
        return [self.simplified(each) for each in value]

    def _map(self, keyword: str, value: Any) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise InvalidSchema(f"{self._what}: {keyword} must be an object of schemas")
        return {name: self.simplified(each) for name, each in value.items()}

    def _dependencies(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidSchema(f"{self._what}: dependencies must be an object")
        return {
            name: each if isinstance(each, list) else self.simplified(each)
            for name, each in value.items()
        }


def _take_type(form: dict[str, Any], schema: dict[str, Any]) -> None:
    """`nullable` is no word of draft 7, but one that schemas made for Ajv use."""
    if schema.get("nullable") is not True or "type" not in form:
        return
    types = form["type"]
    if isinstance(types, str):
        types = [types]
    if isinstance(types, list) and "null" not in types:
        form["type"] = [*types, "null"]


def _reference() -> InvalidSchema:
    return InvalidSchema("external $ref is not supported")


def _mentions_reference(value: Any) -> bool:
    """In a keyword we do not know: `definitions`, for one, are of no use without references."""
    level = [value]
    while level:
        parents, level = level, []
        for parent in parents:
            if isinstance(parent, dict):
                if "$ref" in parent:
                    return True
                level.extend(parent.values())
            elif isinstance(parent, list):
                level.extend(parent)
    return False


def subschemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The direct ones, each with its keyword."""
    if isinstance(schema, bool):
        return
    for keyword, value in schema.items():
        if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            yield from ((keyword, each) for each in value)
        elif keyword in _MAPS or keyword == "dependencies":
            yield from ((keyword, each) for each in value.values() if not isinstance(each, list))
        elif keyword in _ONE or keyword in _BRANCHES or keyword == "items":
            yield keyword, value


def checks_on_one_value(schema: Schema) -> int:
    """At most so many checks are made on any one value within an entry, roughly 100 ns each."""
    if isinstance(schema, bool):
        return 1
    total = 1 + _cost_of_values(schema) + len(schema.get("dependencies", ()))
    deepest = 0
    for keyword, each in subschemas(schema):
        cost = checks_on_one_value(each)
        if keyword == "properties":
            deepest = max(deepest, cost)  # a value has one name
        else:
            total += cost
    return total + deepest


def _cost_of_values(schema: dict[str, Any]) -> int:
    """Texts and whole numbers are looked up, everything else is compared one by one."""
    options = schema.get("enum")
    if not isinstance(options, list):
        return 0
    floats = sum(isinstance(option, float) for option in options)
    return 40 * floats + 3 * sum(isinstance(option, dict | list) for option in options)


def patterns_of(schema: Schema) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from schema.get("patternProperties", ())
    for _, each in subschemas(schema):
        yield from patterns_of(each)


def _check_patterns(schema: Schema) -> None:
    for count, pattern in enumerate(patterns_of(schema), 1):
        if count > PATTERNS_MAX:
            raise InvalidSchema(f"schema has more than {PATTERNS_MAX} patterns")
        if pattern_kib(pattern) is None:
            raise InvalidSchema(
                f"schema: pattern {pattern[:100]!r} is not supported: it must be a regular"
                " expression without look-around and references back, and a count such as"
                " {1,255} in it must be small; use maxLength for a long one"
            )


@lru_cache(maxsize=1024)
def pattern_kib(pattern: str) -> int | None:
    """How large the pattern is as a program, which is what a character may cost; None: too large,
    or not one that takes time in proportion to the text."""
    kib = 2
    while kib <= PATTERN_KIB_MAX:
        try:
            _compile({"pattern": pattern}, kib)
        except ValueError:
            kib *= 2
        else:
            return kib
    return None


def compiled(schema: Schema) -> jsonschema_rs.Draft7Validator:
    """Of a simplified schema. Raises `InvalidSchema` for keywords with values they cannot have."""
    _check_patterns(schema)
    try:
        return _compile(schema, PATTERN_KIB_MAX)
    except jsonschema_rs.ValidationError as error:
        place = "".join(f".{part}" for part in error.instance_path)
        raise InvalidSchema(f"schema{place[:200]}: {error.message[:300]}") from None
    except ValueError as error:
        raise InvalidSchema(f"schema: {str(error)[:300]}") from None


def _compile(schema: Schema, pattern_kib_max: int) -> jsonschema_rs.Draft7Validator:
    size = pattern_kib_max * KIB
    return jsonschema_rs.Draft7Validator(
        schema,
        formats={"date-time": is_date_time},
        validate_formats=True,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=size),
        mask="value",
        offline=True,
    )
