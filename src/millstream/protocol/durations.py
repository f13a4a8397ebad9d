"""Times people write in headers and query parameters."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from millstream.errors import InvalidRequest
from millstream.limits import TTL_SECONDS_MAX

_NANOSECONDS = re.compile(rb"[0-9]{1,20}")
_SECONDS = re.compile(rb"0|[1-9][0-9]{0,17}")
_DURATION = re.compile(rb"(0|[1-9][0-9]{0,17})(ms|s|m|h|d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNIT_MS = {b"ms": 1, b"s": 1000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
_RFC3339 = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    rb"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def decode_duration_ms(text: bytes) -> int | None:
    """`15s`, `30m`, `24h`, `1d`, `500ms`, or bare seconds; None when it is none of them."""
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    match = _DURATION.fullmatch(text)
    return None if match is None else int(match[1]) * _UNIT_MS[match[2]]


def decode_ttl_ms(text: bytes) -> int:
    milliseconds = decode_duration_ms(text)
    if milliseconds is None or milliseconds % 1000:
        raise InvalidRequest(
            "Stream-TTL must be seconds without sign or leading zeros, or a duration such as 24h"
        )
    if milliseconds > TTL_SECONDS_MAX * 1000:
        raise InvalidRequest(f"Stream-TTL must not exceed {TTL_SECONDS_MAX} seconds")
    return milliseconds


def decode_timestamp_ms(text: bytes) -> int:
    """An RFC 3339 time with its zone, as milliseconds since 1970."""
    milliseconds = _rfc3339_ms(text)
    if milliseconds is None:
        raise InvalidRequest(
            "Stream-Expires-At must be an RFC 3339 time such as 2030-01-31T12:00:00Z"
        )
    return milliseconds


def decode_moment_ms(text: bytes, what: str) -> int:
    """An RFC 3339 time with its zone, or nanoseconds since 1970."""
    if _NANOSECONDS.fullmatch(text):
        return int(text) // 1_000_000
    milliseconds = _rfc3339_ms(text)
    if milliseconds is None:
        raise InvalidRequest(
            f"{what} must be an RFC 3339 time such as 2030-01-31T12:00:00Z, or nanoseconds "
            "since 1970"
        )
    return milliseconds


def _rfc3339_ms(text: bytes) -> int | None:
    if _RFC3339.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text.decode().upper())
    except ValueError:
        return None
    return (moment - _EPOCH) // _MILLISECOND


def encode_timestamp(milliseconds: int) -> str:
    try:
        moment = _EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        return "9999-12-31T23:59:59.999Z"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
