"""Filters against a plain evaluation of the expression that they were written from."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidRequest
from millstream.schemas.filters import parse_filter
from millstream.schemas.search_config import parse_search
from tests.unit.effort import brief
from tests.unit.schemas.search_documents import search_with
from tests.unit.schemas.test_queries import ANY_TEXT

SEARCH = parse_search(search_with())

# ("and", a, b, …), ("or", a, b, …), ("not", a), ("has", field), (field, operator, value)
Expression: TypeAlias = tuple[Any, ...]

WORDS = ("", "a", "A", "ab", "a*", "x y", 'q"\\', "AND", "1", "true", "-")
INTEGERS = (-5, 0, 1, 7, 2**64, 2**64 + 1)
OPERATORS = ("=", ">", ">=", "<", "<=")
FLOATS = (-0.5, 0.0, 0.25, 1e300)
clauses = st.one_of(
    st.tuples(st.sampled_from(["level", "id"]), st.just("="), st.sampled_from(WORDS)),
    st.tuples(
        st.just("n"), st.sampled_from(["=", ">", ">=", "<", "<="]), st.sampled_from(INTEGERS)
    ),
    st.tuples(st.just("ratio"), st.sampled_from(OPERATORS), st.sampled_from(FLOATS)),
    st.tuples(st.just("ok"), st.just("="), st.booleans()),
    st.tuples(st.just("has"), st.sampled_from(["level", "id", "n", "ratio", "ok", "message"])),
)
expressions: st.SearchStrategy[Expression] = st.recursive(
    clauses,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("not"), st.tuples(st.just("not"), inner)),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: ("and", *parts)),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: ("or", *parts)),
    ),
    max_leaves=12,
)
anything = st.sampled_from([None, *WORDS, *INTEGERS, *FLOATS, True, False])


def values_like(*usual: Any) -> st.SearchStrategy[Any]:
    """Mostly what the field is for, alone or in arrays."""
    scalars = st.sampled_from(usual) | anything
    pair = st.lists(st.sampled_from(usual), min_size=2, max_size=2)
    return scalars | pair | st.lists(scalars | pair, max_size=4)


fields = st.fixed_dictionaries(
    {
        "level": values_like(*WORDS),
        "id": values_like(*WORDS),
        "n": values_like(*INTEGERS),
        "ratio": values_like(*FLOATS),
        "ok": values_like(True, False),
        "message": values_like(*WORDS),
    }
)
documents = st.builds(
    lambda fields, gone: {name: fields[name] for name in fields if name not in gone},
    fields,
    st.just(()) | st.lists(st.sampled_from(["level", "id", "n", "ratio", "ok", "message"])),
)


def written(expression: Expression, draw: st.DrawFn) -> str:
    """One of the ways to write it down."""
    kind = expression[0]
    if kind == "not":
        return draw(st.sampled_from(["NOT ", "not ", "-"])) + bracketed(expression[1], draw)
    if kind in ("and", "or"):
        joints = [" AND ", " and ", " "] if kind == "and" else [" OR ", " or "]
        parts = [bracketed(part, draw) for part in expression[1:]]
        return draw(st.sampled_from(joints)).join(parts)
    if kind == "has":
        return f"has:{expression[1]}"
    field, operator, value = expression
    text = value if isinstance(value, str) else json.dumps(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    shown_operator = draw(st.sampled_from(["", "="])) if operator == "=" else operator
    return f'{field}:{shown_operator}"{escaped}"'


def bracketed(expression: Expression, draw: st.DrawFn) -> str:
    text = written(expression, draw)
    return f"({text})" if expression[0] in ("and", "or") else text


def leaves(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def as_kind(field: str, raw: Any) -> Any:
    """The plain reading of a value; None: it is of no use to the field."""
    if field in ("level", "id", "message"):
        if not isinstance(raw, str):
            return None
        return raw.lower() if field == "level" else raw
    if field == "ok":
        return {True: True, False: False, "true": True}.get(raw) if _is_flag(raw) else None
    if isinstance(raw, bool) or raw is None:
        return None
    if field == "n":
        if isinstance(raw, str):
            return int(raw) if raw == "1" else None
        return int(raw) if raw == int(raw) else None
    if isinstance(raw, str):
        return 1.0 if raw == "1" else None
    return float(raw)


def _is_flag(raw: Any) -> bool:
    return isinstance(raw, bool) or raw == "true"


def is_true(expression: Expression, document: dict[str, Any]) -> bool:
    kind = expression[0]
    if kind == "not":
        return not is_true(expression[1], document)
    if kind == "and":
        return all(is_true(part, document) for part in expression[1:])
    if kind == "or":
        return any(is_true(part, document) for part in expression[1:])
    field = expression[1] if kind == "has" else kind
    found = [as_kind(field, raw) for raw in leaves(document[field])] if field in document else []
    found = [value for value in found if value is not None]
    if kind == "has":
        return bool(found)
    _, operator, value = expression
    wanted = as_kind(field, value)
    return any(
        {
            "=": value == wanted,
            ">": value > wanted,
            ">=": not value < wanted,
            "<": value < wanted,
            "<=": not value > wanted,
        }[operator]
        for value in found
    )


@st.composite
def filters(draw: st.DrawFn) -> tuple[Expression, str]:
    expression = draw(clauses | expressions)
    return expression, written(expression, draw)


@settings(brief, max_examples=100)
@given(filters(), st.lists(documents, min_size=8, max_size=16))
def test_a_filter_matches_what_its_expression_is_true_of(
    both: tuple[Expression, str], tried: list[dict[str, Any]]
) -> None:
    expression, text = both
    parsed = parse_filter(text, SEARCH)
    for document in tried:
        stored = msgspec.json.decode(msgspec.json.encode(document))
        assert parsed.matches(stored, 1) is is_true(expression, document), (text, document)


@brief
@given(ANY_TEXT)
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        assert parse_filter(text, SEARCH).matches({"n": 1}, 1) in (True, False)
