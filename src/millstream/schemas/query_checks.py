"""Whether a search query can be answered with the fields that a search config declares."""

from __future__ import annotations

from millstream.errors import InvalidRequest
from millstream.schemas.queries import And, Bare, Fielded, Has, Not, Or, Query, parse_query
from millstream.schemas.search_fields import (
    KEYWORD,
    ORDERED_KINDS,
    TEXT,
    SearchConfig,
    SearchField,
)
from millstream.schemas.shapes import shown
from millstream.schemas.values import canonical_value, words_of
from millstream.schemas.words import QUERY


def check_query(text: str, search: SearchConfig) -> None:
    """Raises InvalidRequest with the reason why it cannot."""
    _check(parse_query(text, QUERY), search)


def _check(query: Query, search: SearchConfig) -> None:
    match query:
        case And(parts) | Or(parts):
            for part in parts:
                _check(part, search)
        case Not(inner):
            _check(inner, search)
        case Has(name):
            _check_has(_field(name, search), name)
        case Fielded():
            _check_fielded(_field(query.field, search), query)
        case Bare():
            _check_bare(query, search)


def _field(name: str, search: SearchConfig) -> SearchField:
    field = search.field(name)
    if field is None:
        raise InvalidRequest(f"unknown search field {shown(name)}")
    return field


def _check_has(field: SearchField, name: str) -> None:
    if not (field.exists or field.exact or field.column or field.kind == TEXT):
        raise InvalidRequest(f"search field {shown(name)} does not support has:")


def _check_fielded(field: SearchField, clause: Fielded) -> None:
    name = shown(clause.field)
    is_comparison = clause.operator != "="
    if is_comparison and not (field.column and field.kind in ORDERED_KINDS):
        raise InvalidRequest(f"search field {name} does not support comparisons")
    if field.kind == TEXT:
        _check_words(clause.value)
    elif field.kind == KEYWORD:
        _check_keyword(field, clause)
    elif not (field.exact or field.column):
        raise InvalidRequest(f"search field {name} does not support equality")
    elif canonical_value(field, clause.value) is None:
        raise InvalidRequest(f"invalid value for search field {name}")


def _check_keyword(field: SearchField, clause: Fielded) -> None:
    name = shown(clause.field)
    if is_prefix(clause.value):
        if not field.prefix:
            raise InvalidRequest(f"search field {name} does not support prefix queries")
    elif not field.exact:
        raise InvalidRequest(f"search field {name} does not support exact queries")


def _check_bare(clause: Bare, search: SearchConfig) -> None:
    if not search.default_fields:
        raise InvalidRequest("search.defaultFields must include at least one text or keyword field")
    if all(default.field.kind == TEXT for default in search.default_fields):
        _check_words(clause.value)
    elif not clause.value.strip():
        raise InvalidRequest("search text clause must not be empty")


def _check_words(value: str) -> None:
    text = value[:-1] if is_prefix(value) else value
    if not text.strip():
        raise InvalidRequest("search text clause must not be empty")
    if not words_of(text):
        raise InvalidRequest("search text clause did not produce any searchable tokens")


def is_prefix(value: str) -> bool:
    """A lone `*` is a star."""
    return len(value) > 1 and value.endswith("*")
