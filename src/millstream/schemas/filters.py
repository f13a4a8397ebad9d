"""`filter=`: which records a reader wants to see."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from millstream.errors import InvalidRequest
from millstream.schemas.queries import And, Fielded, Has, Not, Or, Query, parse_query
from millstream.schemas.search_fields import ORDERED_KINDS, TEXT, SearchConfig, SearchField
from millstream.schemas.shapes import shown
from millstream.schemas.values import Value, canonical_value, values_of
from millstream.schemas.words import FILTER


class Filter:
    """Whether a record matches. Holds no state between records: any thread may use it."""

    def __init__(self, test: Test) -> None:
        self._test = test

    def matches(self, document: Any, version: int) -> bool:
        """Of a document that was promoted to this version. A field with several values matches
        when one of them does; never raises."""
        return self._test(_Record(document, version))


def parse_filter(text: str, search: SearchConfig) -> Filter:
    """Raises InvalidRequest for what is no filter, or none that these fields can answer."""
    return Filter(_test_of(parse_query(text, FILTER), search))


class _Record:
    """One document whose values are looked up once for each field, however often it is named."""

    __slots__ = ("_document", "_values", "_version")

    def __init__(self, document: Any, version: int) -> None:
        self._document = document
        self._version = version
        self._values: dict[str, list[Any]] = {}

    def values(self, field: SearchField) -> list[Any]:
        found = self._values.get(field.name)
        if found is None:
            found = self._values[field.name] = values_of(field, self._version, self._document)
        return found


Test: TypeAlias = Callable[[_Record], bool]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _test_of(query: Query, search: SearchConfig) -> Test:
    match query:
        case And(parts):
            tests = [_test_of(part, search) for part in parts]
            return lambda record: all(test(record) for test in tests)
        case Or(parts):
            tests = [_test_of(part, search) for part in parts]
            return lambda record: any(test(record) for test in tests)
        case Not(inner):
            refused = _test_of(inner, search)
            return lambda record: not refused(record)
        case Has(name):
            return _has_test(_field(name, search), name)
        case Fielded():
            return _value_test(_field(query.field, search), query)
        case _:
            raise AssertionError("the filter language has no bare terms")


def _field(name: str, search: SearchConfig) -> SearchField:
    field = search.field(name)
    if field is None:
        raise InvalidRequest(f"filter field {shown(name)} is not indexed")
    return field


def _has_test(field: SearchField, name: str) -> Test:
    if not (field.exists or field.exact or field.column):
        raise InvalidRequest(f"filter field {shown(name)} does not support has:")
    return lambda record: bool(record.values(field))


def _value_test(field: SearchField, clause: Fielded) -> Test:
    name = shown(clause.field)
    value = None if field.kind == TEXT else canonical_value(field, clause.value)
    if value is None:
        raise InvalidRequest(f"invalid value for filter field {name}")
    if clause.operator == "=":
        if not (field.exact or field.column):
            raise InvalidRequest(f"filter field {name} does not support equality filters")
        return lambda record: value in record.values(field)
    return _comparison(field, clause.operator, value, name)


def _comparison(field: SearchField, sign: str, value: Value, name: str) -> Test:
    if field.kind not in ORDERED_KINDS:
        raise InvalidRequest(f"comparison operator not supported for filter field {name}")
    if not field.column:
        raise InvalidRequest(f"filter field {name} does not support comparisons")
    compare = _COMPARISONS[sign]
    furthest = max if sign.startswith(">") else min  # if any value matches, this one does

    def test(record: _Record) -> bool:
        values = record.values(field)
        return bool(values) and compare(furthest(values), value)

    return test
