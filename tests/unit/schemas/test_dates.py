from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.schemas.dates import is_rfc3339, parse_date_ms
from tests.unit.effort import brief

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2026", 1_767_225_600_000),
        ("2026-01", 1_767_225_600_000),
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T00:00", 1_767_225_600_000),
        ("2026-01-01 00:00:00", 1_767_225_600_000),
        ("2026-01-01t02:00:00+02:00", 1_767_225_600_000),
        ("2025-12-31T22:30:00-01:30", 1_767_225_600_000),
        ("2025-12-31T24:00:00Z", 1_767_225_600_000),
        ("2026-01-01T00:00:00.1239999Z", 1_767_225_600_123),
        ("2024-02-29", 1_709_164_800_000),
        ("+275760-09-13T00:00:00Z", 8_640_000_000_000_000),
        ("-271821-04-20T00:00:00Z", -8_640_000_000_000_000),
        ("0000-01-01", -62_167_219_200_000),
    ],
)
def test_iso_forms_are_read_as_javascript_reads_them(text: str, expected_ms: int) -> None:
    assert parse_date_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "12",
        "12345",
        "2026-13-01",
        "2026-02-29",
        "2026-1-1",
        "2026-01-01T24:00:01Z",
        "2026-01-01T23:60Z",
        "2026-01-01T23:59:60Z",
        "2026-01-01T23:59:59.Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T",
        "2026-01-01Z",
        "-000000-01-01",
        "-123456",
        "+275760-09-13T00:00:00.001Z",
        "٢٠٢٦-01-01",
    ],
)
def test_anything_else_is_no_date(text: str) -> None:
    assert parse_date_ms(text) is None


@brief
@given(
    st.datetimes().filter(lambda moment: 1 < moment.year < 9999),  # UTC may be in the next one
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_dates_agree_with_the_calendar_of_python(moment: datetime, zone_minutes: int) -> None:
    sign = "-" if zone_minutes < 0 else "+"
    hours, minutes = divmod(abs(zone_minutes), 60)
    text = f"{moment.isoformat(timespec='milliseconds')}{sign}{hours:02d}:{minutes:02d}"
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    utc = moment - timedelta(minutes=zone_minutes)
    assert parse_date_ms(text) == (utc - _EPOCH) // timedelta(milliseconds=1)
    assert is_rfc3339(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00Z", True),
        ("2026-01-01T00:00:00.123456789+01:00", True),
        ("2026-01-01T00:00:00", False),
        ("2026-01-01", False),
        ("2026-01-01 00:00:00Z", False),
        ("2026-02-30T00:00:00Z", False),
    ],
)
def test_rfc3339_asks_for_time_and_zone(text: str, expected: bool) -> None:
    assert is_rfc3339(text) is expected
