from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.schemas.dialect import is_date_time
from millstream.schemas.transforms import BUILTINS, parse_transform, text_of
from tests.unit.effort import brief


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ("x", "x"),
        (12, "12"),
        (10**25, "1" + "0" * 25),
        (1.0, "1"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (-1.25, "-1.25"),
        (123456789.125, "123456789.125"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (-1.5e-9, "-1.5e-9"),
        (5e-324, "5e-324"),
    ],
)
def test_keys_of_tables_are_written_as_javascript_writes_values(value: Any, text: str) -> None:
    assert text_of(value) == text


@brief
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_number_reads_as_the_same_number(value: float) -> None:
    assert float(text_of(value)) == value


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("lowercase", "ÄB", "äb"),
        ("uppercase", "äb", "ÄB"),
        ("string_to_int", "-12", -12),
        ("int_to_string", 12, "12"),
        ("int_to_string", 12.0, "12"),
        ("rfc3339_to_unix_millis", "1970-01-01T00:00:01Z", 1000),
        ("rfc3339_to_unix_millis", "1970-01-01T01:00:00.1239999+01:00", 123),
        ("rfc3339_to_unix_millis", "1969-12-31T23:59:59.5Z", -500),
        ("rfc3339_to_unix_millis", "0001-01-01T00:00:00+23:00", -62_135_679_600_000),
        ("rfc3339_to_unix_millis", "9999-12-31T23:59:59-23:00", 253_402_383_599_000),
        ("unix_millis_to_rfc3339", 0, "1970-01-01T00:00:00.000Z"),
        ("unix_millis_to_rfc3339", 1700000000123, "2023-11-14T22:13:20.123Z"),
        ("unix_millis_to_rfc3339", -1, "1969-12-31T23:59:59.999Z"),
        ("unix_millis_to_rfc3339", 10**40, "9999-12-31T23:59:59.999Z"),
        ("unix_millis_to_rfc3339", -1e300, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_what_is_built_in(name: str, value: Any, result: Any) -> None:
    assert BUILTINS[name].apply(value) == result


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lowercase", 1),
        ("string_to_int", "1.5"),
        ("string_to_int", "٣"),
        ("string_to_int", ""),
        ("string_to_int", "9" * 5000),
        ("int_to_string", 1.5),
        ("int_to_string", True),
        ("rfc3339_to_unix_millis", "yesterday"),
        ("rfc3339_to_unix_millis", "0000-01-01T00:00:00Z"),
        ("rfc3339_to_unix_millis", "2016-12-31T23:59:60Z"),
        ("unix_millis_to_rfc3339", 0.5),
    ],
)
def test_values_that_cannot_be_changed_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidSchema):
        BUILTINS[name].apply(value)


@brief
@given(st.integers())
def test_every_time_comes_out_as_one_that_is_taken_back(millis: int) -> None:
    text = BUILTINS["unix_millis_to_rfc3339"].apply(millis)
    assert is_date_time(text)
    if -62_135_596_800_000 <= millis <= 253_402_300_799_999:
        assert BUILTINS["rfc3339_to_unix_millis"].apply(text) == millis


def test_a_default_of_zero_or_null_is_a_default() -> None:
    for default in (0, None, False, ""):
        table = parse_transform({"map": {"a": 1}, "default": default}, "forward")
        assert table.takes_any
        assert table.apply("b") == default


def test_a_table_without_default_refuses_what_it_does_not_name() -> None:
    table = parse_transform({"map": {"1": "one", "true": "yes", "null": "none"}}, "forward")
    assert not table.takes_any
    assert [table.apply(value) for value in (1, 1.0, True, None)] == ["one", "one", "yes", "none"]
    with pytest.raises(InvalidSchema, match="no such value"):
        table.apply(2)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"map": []},
        {"map": {"a": []}},
        {"map": {}, "default": {}},
        {"map": {}, "builtin": "lowercase"},
        {"builtin": "eval"},
        {"builtin": ["lowercase"]},
        {"default": 1},
        {"map": {}, "more": 1},
    ],
)
def test_what_is_no_transform_is_refused(document: Any) -> None:
    with pytest.raises(InvalidSchema, match=r"^forward"):
        parse_transform(document, "forward")
