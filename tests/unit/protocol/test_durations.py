from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import InvalidRequest
from millstream.limits import TTL_SECONDS_MAX
from millstream.protocol.durations import (
    decode_duration_ms,
    decode_timestamp_ms,
    decode_ttl_ms,
    encode_timestamp,
)
from tests.unit.effort import brief

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS_UNTIL_2300 = 10_413_792_000_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (b"0", 0),
        (b"15", 15_000),
        (b"0s", 0),
        (b"15s", 15_000),
        (b"30m", 1_800_000),
        (b"24h", 86_400_000),
        (b"1d", 86_400_000),
        (b"500ms", 500),
    ],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(text: bytes, milliseconds: int) -> None:
    assert decode_duration_ms(text) == milliseconds


NO_DURATIONS = [
    b"",
    b" ",
    b"s",
    b"-1",
    b"+1",
    b"1.5",
    b"1.5h",
    b"1e3",
    b"01",
    b"00",
    b"01s",
    b" 1",
    b"1 ",
    b"1 s",
    b"1\n",
    b"1s\n",
    b"1w",
    b"1S",
    b"1h30m",
    b"0x10",
    b"1_000",
    b"infinity",
    b"9" * 19,
    b"9" * 5000,
    "٣".encode(),
    "１".encode() + b"s",
]


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_anything_else_is_no_duration(text: bytes) -> None:
    assert decode_duration_ms(text) is None


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_a_ttl_that_is_no_duration_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Stream-TTL"):
        decode_ttl_ms(text)


@pytest.mark.parametrize("text", [b"1ms", b"999ms", b"1001ms"])
def test_a_ttl_of_broken_seconds_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Stream-TTL"):
        decode_ttl_ms(text)


def test_a_ttl_of_zero_is_legal() -> None:
    assert decode_ttl_ms(b"0") == 0


def test_a_ttl_may_last_a_century_and_not_a_second_longer() -> None:
    assert decode_ttl_ms(b"%d" % TTL_SECONDS_MAX) == TTL_SECONDS_MAX * 1000
    with pytest.raises(InvalidRequest, match="must not exceed"):
        decode_ttl_ms(b"%d" % (TTL_SECONDS_MAX + 1))
    with pytest.raises(InvalidRequest, match="must not exceed"):
        decode_ttl_ms(b"999999999999999999d")


@pytest.mark.parametrize(
    "text",
    [
        b"2030-01-31T12:00:00Z",
        b"2030-01-31t12:00:00z",
        b"2030-01-31 12:00:00Z",
        b"2030-01-31T12:00:00.000Z",
        b"2030-01-31T12:00:00.000000000Z",
        b"2030-01-31T13:30:00+01:30",
        b"2030-01-31T04:00:00-08:00",
        b"2030-01-31T12:00:00-00:00",
    ],
)
def test_a_timestamp_may_be_spelled_in_every_way_of_rfc_3339(text: bytes) -> None:
    assert decode_timestamp_ms(text) == 1_896_091_200_000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"tomorrow",
        b"1896091200",
        b"2030-01-31",
        b"2030-01-31T12:00:00",  # no zone
        b"2030-01-31T12:00Z",
        b"2030-01-31T12:00:00.Z",
        b"2030-01-31T12:00:00,5Z",
        b"2030-01-31T12:00:00.0000000000Z",
        b"2030-01-31T12:00:00+0100",
        b"2030-01-31T12:00:00+24:00",
        b"2030-02-30T12:00:00Z",
        b"2030-13-01T12:00:00Z",
        b"2030-01-31T25:00:00Z",
        b"2030-01-31T12:60:00Z",
        b"2030-01-31T12:00:00Z\n",
        b" 2030-01-31T12:00:00Z",
        b"20300131T120000Z",
        b"0000-01-31T12:00:00Z",
        "２０30-01-31T12:00:00Z".encode(),
        b"2030-01-31T12:00:00Z\xff",
    ],
)
def test_a_timestamp_that_is_no_rfc_3339_moment_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Stream-Expires-At"):
        decode_timestamp_ms(text)


def spelled(milliseconds: int) -> str:
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(st.integers(0, MILLISECONDS_UNTIL_2300))
@example(2_158_761_639_957)  # as a float of seconds it was a millisecond short
@brief
def test_a_timestamp_decodes_to_its_exact_millisecond(milliseconds: int) -> None:
    assert decode_timestamp_ms(spelled(milliseconds).encode()) == milliseconds


@given(st.integers(0, MILLISECONDS_UNTIL_2300))
@brief
def test_a_timestamp_is_shown_with_its_exact_millisecond(milliseconds: int) -> None:
    assert encode_timestamp(milliseconds) == spelled(milliseconds)


def test_a_moment_beyond_the_calendar_is_shown_as_its_last() -> None:
    assert encode_timestamp(10**17) == "9999-12-31T23:59:59.999Z"
