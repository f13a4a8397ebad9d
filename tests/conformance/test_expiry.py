"""Streams with an end: how it may be written, what it means, and what is left afterwards."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.api import JSON, TEXT, Api, fresh_path, producer


def test_a_time_to_live_of_zero_is_already_over(api: Api) -> None:
    # Reference defect 10: Stream-TTL: 0 is answered with 500.
    path = fresh_path()
    for _ in range(2):
        created = api.put(path, b"x", content_type=TEXT, headers={"Stream-TTL": "0"})
        assert created.status == 201
    for method in ("GET", "HEAD", "DELETE"):
        assert api.call(method, path).status == 404
    assert api.append(path, b"x").status == 404


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("15s", 15), ("30m", 1800), ("24h", 86400), ("1d", 86400), ("3600", 3600), ("90s", 90)],
)
def test_a_time_to_live_may_be_a_duration(memory_api: Api, written: str, seconds: int) -> None:
    path = fresh_path()
    headers = {"Stream-TTL": written}
    assert memory_api.put(path, content_type=TEXT, headers=headers).status == 201
    assert memory_api.head(path).headers["stream-ttl"] == str(seconds)
    assert memory_api.put(path, content_type=TEXT, headers=headers).status == 200
    plain = {"Stream-TTL": str(seconds)}
    assert memory_api.put(path, content_type=TEXT, headers=plain).status == 200


@pytest.mark.parametrize(
    "written",
    ["", "s", "1.5s", "-5s", "+5s", "05s", "15 s", "1w", "1h30m", "1e3", "0x10", "00", "1_0", "١"],
)
def test_a_time_to_live_that_is_none_is_refused(memory_api: Api, written: str) -> None:
    path = fresh_path()
    headers = {"Stream-TTL": written.encode().decode("latin-1")}
    assert memory_api.put(path, content_type=TEXT, headers=headers).status == 400
    assert memory_api.head(path).status == 404


def test_an_absurdly_long_life_is_answered_and_not_a_server_error(api: Api) -> None:
    for written in ("99999999999999999999", "9" * 60, "999999999999d"):
        path = fresh_path()
        created = api.put(path, content_type=TEXT, headers={"Stream-TTL": written})
        assert created.status in (201, 400)
        assert api.get(path).status == (200 if created.status == 201 else 404)


def test_two_ends_are_refused(memory_api: Api) -> None:
    path = fresh_path()
    both = {"Stream-TTL": "60", "Stream-Expires-At": "2040-01-01T00:00:00Z"}
    assert memory_api.put(path, content_type=TEXT, headers=both).status == 400
    assert memory_api.head(path).status == 404


@pytest.mark.parametrize(
    "written",
    [
        "",
        "2040-01-01T00:00:00",
        "2040-01-01T00:00:00.5",
        "2040-01-01",
        "2209032000",
        "2040-13-01T00:00:00Z",
        "2040-02-30T00:00:00Z",
        "2040-01-01T25:00:00Z",
        "2040-01-01T00:61:00Z",
        "2040-01-01T00:00Z",
        "20400101T000000Z",
        "Sun, 01 Jan 2040 00:00:00 GMT",
        "tomorrow",
    ],
)
def test_a_time_without_a_zone_or_sense_is_refused(memory_api: Api, written: str) -> None:
    path = fresh_path()
    headers = {"Stream-Expires-At": written}
    assert memory_api.put(path, content_type=TEXT, headers=headers).status == 400
    assert memory_api.head(path).status == 404


@pytest.mark.parametrize(
    "written",
    [
        "2040-01-01T00:00:00Z",
        "2040-01-01T02:00:00+02:00",
        "2039-12-31T19:00:00-05:00",
        "2040-01-01T00:00:00.000Z",
        "2040-01-01T00:00:00.000000000Z",
    ],
)
def test_the_same_instant_written_differently_is_the_same_expiry(
    memory_api: Api, written: str
) -> None:
    path = fresh_path()
    first = {"Stream-Expires-At": "2040-01-01T00:00:00Z"}
    assert memory_api.put(path, content_type=TEXT, headers=first).status == 201
    again = {"Stream-Expires-At": written}
    assert memory_api.put(path, content_type=TEXT, headers=again).status == 200
    shown = datetime.fromisoformat(memory_api.head(path).headers["stream-expires-at"])
    assert shown == datetime(2040, 1, 1, tzinfo=UTC)


def test_an_expired_stream_leaves_nothing_behind(api: Api) -> None:
    path = fresh_path()
    assert api.put(path, b"old", content_type=TEXT, headers={"Stream-TTL": "1"}).status == 201
    assert (
        api.append(path, b"old", headers={**producer("p", 4, 0), "Stream-Seq": "z"}).status == 200
    )
    tag, offset = api.get(path).headers["etag"], api.tail(path)
    wait_until_gone(api, path)
    assert api.append(path, b"x").status == 404
    assert api.put(path, content_type=JSON, headers={"Stream-TTL": "60"}).status == 201
    read = api.get(path, headers={"If-None-Match": tag})
    assert (read.status, read.body) == (200, b"[]")
    assert api.get(f"{path}?offset={offset}").status == 400
    fresh = {**producer("p", 0, 0), "Stream-Seq": "a"}
    assert api.append(path, b"1", JSON, fresh).status == 200


def test_head_does_not_renew_and_reading_does(api: Api) -> None:
    looked_at, read = (api.stream(b"x", headers={"Stream-TTL": "3"}) for _ in range(2))
    deadline = time.monotonic() + 30
    while api.head(looked_at).status == 200:
        assert time.monotonic() < deadline
        assert api.get(read).status == 200
        time.sleep(0.1)
    assert api.head(looked_at).status == 404
    assert api.head(read).status == 200


def test_an_absolute_end_is_not_moved_by_reads_and_writes(api: Api) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=0.8)
    path = api.stream(headers={"Stream-Expires-At": expires.isoformat()})
    while api.append(path, b"x").status == 204:
        time.sleep(0.1)
    late = (datetime.now(UTC) - expires).total_seconds()
    assert -0.05 < late < 10
    assert api.get(path).status == 404


def test_an_end_in_the_past_never_shows_a_stream(api: Api) -> None:
    path = fresh_path()
    headers = {"Stream-Expires-At": "2001-01-01T00:00:00Z"}
    assert api.put(path, b"x", content_type=TEXT, headers=headers).status in (201, 400)
    assert api.get(path).status == 404


def wait_until_gone(api: Api, path: str) -> None:
    """HEAD does not renew a sliding window, so looking does no harm."""
    deadline = time.monotonic() + 5
    while api.head(path).status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
