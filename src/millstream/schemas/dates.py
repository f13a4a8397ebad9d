"""Dates as clients write them: the ISO forms that every JavaScript engine reads the same way."""

from __future__ import annotations

import re
from datetime import date

_DATE = re.compile(
    r"(?P<year>[0-9]{4}|[+-][0-9]{6}(?=-[0-9]{2}-))(?:-(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?)?"
    r"(?:[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,30}))?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats itself
_DAY_MS = 86_400_000
_DATE_MS_MAX = 8_640_000_000_000_000  # of a JavaScript Date


def parse_date_ms(text: str) -> int | None:
    """Milliseconds since 1970; None: not a date in an ISO form. Without a zone it is UTC."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    days = _days(int(match["year"]), int(match["month"] or 1), int(match["day"] or 1))
    time_ms = _time_ms(match)
    zone_ms = _zone_ms(match["zone"] or "Z")
    if days is None or time_ms is None or zone_ms is None or match["year"] == "-000000":
        return None
    moment_ms = days * _DAY_MS + time_ms - zone_ms
    return moment_ms if abs(moment_ms) <= _DATE_MS_MAX else None


def is_rfc3339(text: str) -> bool:
    """A date with its time and its zone, which the calendar has."""
    return _RFC3339.fullmatch(text) is not None and parse_date_ms(text) is not None


def _days(year: int, month: int, day: int) -> int | None:
    """Since 1970, also for years that `date` does not know."""
    cycles, year_of_cycle = divmod(year, _CYCLE_YEARS)
    try:
        ordinal = date(_CYCLE_YEARS + year_of_cycle, month, day).toordinal()
    except ValueError:
        return None
    return ordinal + (cycles - 1) * _CYCLE_DAYS - _EPOCH_DAY


def _time_ms(match: re.Match[str]) -> int | None:
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    millisecond = int(f"{match['fraction'] or ''}000"[:3])
    is_end_of_day = hour == 24 and not (minute or second or millisecond)
    if minute > 59 or second > 59 or (hour > 23 and not is_end_of_day):
        return None
    return ((hour * 60 + minute) * 60 + second) * 1000 + millisecond


def _zone_ms(zone: str) -> int | None:
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:])
    if hours > 23 or minutes > 59:
        return None
    return (hours * 60 + minutes) * 60_000 * (-1 if zone[0] == "-" else 1)
