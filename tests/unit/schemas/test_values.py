from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.limits import SEARCH_VALUES_MAX
from millstream.schemas.search_fields import KINDS, Binding, SearchField
from millstream.schemas.values import (
    canonical_text,
    canonical_value,
    number_text,
    parse_number,
    raw_values_of,
    values_of,
    words_of,
)
from tests.unit.effort import brief


def field_of(kind: str, normalizer: str | None = None, *bindings: Binding) -> SearchField:
    return SearchField("f", kind, bindings or (Binding(1, ("f",)),), normalizer)


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("keyword", "Ab", "Ab"),
        ("keyword", "", ""),
        ("keyword", 5, None),
        ("text", "Some Words", "Some Words"),
        ("text", ["x"], None),
        ("integer", 5, 5),
        ("integer", 5.0, 5),
        ("integer", 5.5, None),
        ("integer", True, None),
        ("integer", " -12 ", -12),
        ("integer", "012", None),
        ("integer", "1e3", None),
        ("integer", 2**70, 2**70),
        ("integer", str(2**70), 2**70),
        ("integer", "9" * 401, None),
        ("integer", math.inf, None),
        ("float", 1, 1.0),
        ("float", "1.5e2", 150.0),
        ("float", ".5", 0.5),
        ("float", "0x10", None),
        ("float", "nan", None),
        ("float", "1_000", None),
        ("float", "", None),
        ("float", "1e999", None),
        ("float", math.inf, None),
        ("float", 10**400, None),
        ("float", False, None),
        ("date", 1.9, 1),
        ("date", "1970-01-01T00:00:01Z", 1000),
        ("date", "1794772424705", 1_794_772_424_705),
        ("date", "2026", 1_767_225_600_000),
        ("date", "12", 12),
        ("date", "yesterday", None),
        ("date", True, None),
        ("bool", True, True),
        ("bool", " TRUE ", True),
        ("bool", "false", False),
        ("bool", 1, None),
        ("bool", None, None),
    ],
)
def test_canonical_values(kind: str, raw: Any, expected: Any) -> None:
    value = canonical_value(field_of(kind), raw)
    assert value == expected
    assert type(value) is type(expected)


def test_keywords_are_lower_cased_where_the_field_says_so() -> None:
    assert canonical_value(field_of("keyword", "lowercase_v1"), "ÄB") == "äb"
    assert canonical_value(field_of("keyword", "identity_v1"), "ÄB") == "ÄB"


def test_the_binding_of_the_highest_version_that_is_not_newer_counts() -> None:
    field = field_of("keyword", None, Binding(2, ("old",)), Binding(5, ("new",)))
    document = {"old": "o", "new": "n"}
    versions = [values_of(field, version, document) for version in (1, 2, 4, 5, 9)]
    assert versions == [[], ["o"], ["o"], ["n"], ["n"]]


def test_arrays_are_flattened_and_what_is_of_another_kind_is_missing() -> None:
    document = {"f": [1, [2, ["3", [None]], {"a": 1}], [], "x"]}
    assert values_of(field_of("integer"), 1, document) == [1, 2, 3]
    assert list(raw_values_of(field_of("integer"), 1, document)) == [1, 2, "3", None, {"a": 1}, "x"]


def test_an_array_may_be_deep_and_only_its_first_values_are_looked_at() -> None:
    deep: Any = 7
    for _ in range(50_000):
        deep = [deep]
    try:
        assert values_of(field_of("integer"), 1, {"f": deep}) == [7]
    finally:
        while isinstance(deep, list):  # freed level by level, not by one deep recursion
            deep = deep.pop()
    wide = {"f": list(range(SEARCH_VALUES_MAX + 5))}
    assert values_of(field_of("integer"), 1, wide) == list(range(SEARCH_VALUES_MAX))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (12.5, "12.5"),
        (1e21, "1e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1.25e-7, "1.25e-7"),
        (-0.001, "-0.001"),
        (2**70, "1180591620717411303424"),
    ],
)
def test_numbers_are_written_as_javascript_writes_them(number: float, expected: str) -> None:
    assert number_text(number) == expected


@brief
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_number_is_read_back(number: float) -> None:
    assert float(number_text(number)) == number
    parsed = parse_number(number_text(number))
    assert parsed is not None
    assert float(parsed) == number


def test_canonical_texts() -> None:
    assert [canonical_text(value) for value in ("a", True, False, 1, 1.5)] == [
        "a",
        "true",
        "false",
        "1",
        "1.5",
    ]


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert words_of("Über-Card_declined: 42×") == ["über", "card", "declined", "42"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**320)
    | st.floats()
    | st.text()
    | st.from_regex(r"[0-9eE+. :TZ-]{0,30}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@brief
@given(JSON, st.sampled_from(KINDS), st.sampled_from([None, "lowercase_v1"]))
def test_canonical_values_are_stable(raw: Any, kind: str, normalizer: str | None) -> None:
    field = field_of(kind, normalizer)
    value = canonical_value(field, raw)
    if value is not None:
        assert canonical_value(field, value) == value
        if kind != "date":  # a small date would be read as a year
            assert canonical_value(field, canonical_text(value)) == value
