"""Long-polls hear everything that can happen to their stream, and nothing else."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.api import JSON, TEXT, Api, Call, halves


def test_an_append_wakes_every_waiting_reader(api: Api) -> None:
    path = api.stream(b"one")
    call = Call("GET", f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    waiting = [api.hold(call) for _ in range(100)]
    for each in waiting:
        each.send()
    api.settle()
    appended = api.append(path, b"two")
    replies = [each.reply() for each in waiting]
    assert {(reply.status, reply.body) for reply in replies} == {(200, b"two")}
    assert {reply.next_offset for reply in replies} == {appended.next_offset}


def test_an_append_to_another_stream_wakes_nobody(api: Api) -> None:
    path, other = api.stream(), api.stream()
    waiting = api.wait(f"{path}?offset=-1&live=long-poll&timeout_ms=300")
    assert api.append(other, b"x").status == 204
    assert waiting.reply().status == 204


def test_a_deleted_stream_ends_its_long_polls_with_404(api: Api) -> None:
    path = api.stream(b"one")
    waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    started = time.monotonic()
    assert api.delete(path).status == 204
    assert waiting.reply().status == 404
    assert time.monotonic() - started < 10


def test_a_long_poll_never_reads_from_the_successor_of_its_stream(api: Api) -> None:
    path = api.stream(b"one")
    call = Call("GET", f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    waiting = api.hold(call)
    waiting.send()
    api.settle()
    create = Call("PUT", path, b"onetwo", {"Content-Type": TEXT})
    deleted, _ = api.together([Call("DELETE", path), create])
    assert deleted.status == 204
    assert waiting.reply().status == 404


def test_a_soft_deleted_stream_ends_its_long_polls(api: Api) -> None:
    path = api.stream(b"one")
    assert api.fork(path)[1].status == 201
    waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    assert api.delete(path).status == 204
    assert waiting.reply().status in (404, 410)


def test_an_expired_stream_ends_its_long_polls_with_404(api: Api) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=0.8)
    path = api.stream(b"one", headers={"Stream-Expires-At": expires.isoformat()})
    waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    assert waiting.reply().status == 404
    late = (datetime.now(UTC) - expires).total_seconds()
    assert -0.05 < late < 2


def test_a_reader_that_keeps_polling_keeps_the_stream_alive(api: Api) -> None:
    path = api.stream(b"one", headers={"Stream-TTL": "3"})
    offset = api.tail(path)
    for _ in range(5):
        assert api.get(f"{path}?offset={offset}&live=long-poll&timeout_ms=800").status == 204


@pytest.mark.parametrize(
    ("query", "shortest"), [("timeout=1s", 0.9), ("timeout_ms=200", 0.15), ("timeout_ms=1", 0)]
)
def test_a_request_may_choose_its_own_timeout(memory_api: Api, query: str, shortest: float) -> None:
    path = memory_api.stream(b"one")
    tail = memory_api.tail(path)
    started = time.monotonic()
    reply = memory_api.get(f"{path}?offset={tail}&live=long-poll&{query}")
    assert shortest <= time.monotonic() - started < 10
    assert (reply.status, reply.body) == (204, b"")
    assert (reply.next_offset, reply.headers["stream-up-to-date"]) == (tail, "true")
    assert reply.headers["stream-cursor"].isdigit()


@pytest.mark.parametrize("query", ["timeout=soon", "timeout=-1s", "timeout_ms=x", "timeout_ms=-5"])
def test_a_timeout_that_is_none_is_refused(memory_api: Api, query: str) -> None:
    path = memory_api.stream(b"one")
    assert memory_api.get(f"{path}?offset=-1&live=long-poll&{query}").status == 400


def test_live_true_is_a_long_poll(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    tail = memory_api.tail(path)
    ready = memory_api.get(f"{path}?offset=-1&live=true")
    assert (ready.status, ready.body) == (200, b"one")
    assert ready.headers["cache-control"] == "no-store"
    assert ready.headers["stream-cursor"].isdigit()
    assert memory_api.get(f"{path}?offset={tail}&live=true&timeout_ms=50").status == 204
    waiting = memory_api.wait(f"{path}?offset={tail}&live=true")
    assert memory_api.append(path, b"two").status == 204
    assert waiting.reply().body == b"two"


def test_waiting_at_now_delivers_only_what_comes_later(api: Api) -> None:
    path = api.stream(b"1", content_type=JSON)
    waiting = api.wait(f"{path}?offset=now&live=long-poll&timeout=30s")
    assert api.append(path, b"[2,3]", JSON).status == 204
    heard = waiting.reply()
    assert (heard.status, heard.body) == (200, b"[2,3]")
    assert halves(heard.next_offset)[0] == 3


@pytest.mark.parametrize("cursor", ["0", "99999999", "9" * 16])
def test_a_cursor_only_goes_up(memory_api: Api, cursor: str) -> None:
    path = memory_api.stream(b"one")
    reply = memory_api.get(f"{path}?offset=-1&live=long-poll&cursor={cursor}")
    assert int(reply.headers["stream-cursor"]) > int(cursor)


@pytest.mark.parametrize("cursor", ["", "abc", "-5", "1e9", "%00"])
def test_a_cursor_that_is_none_is_ignored(memory_api: Api, cursor: str) -> None:
    path = memory_api.stream(b"one")
    reply = memory_api.get(f"{path}?offset=-1&live=long-poll&cursor={cursor}")
    assert (reply.status, reply.body) == (200, b"one")
    assert reply.headers["stream-cursor"].isdigit()


def test_the_cursor_counts_twenty_second_intervals(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    cursor = int(memory_api.get(f"{path}?offset=-1&live=long-poll").headers["stream-cursor"])
    since = datetime.now(UTC) - datetime(2024, 10, 9, tzinfo=UTC)
    assert abs(cursor - since.total_seconds() / 20) <= 1


def test_a_reader_that_leaves_does_not_disturb_the_others(api: Api) -> None:
    path = api.stream(b"one")
    query = f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s"
    leaver, stayer = api.wait(query), api.wait(query)
    leaver.close()
    api.settle()
    assert api.append(path, b"two").status == 204
    assert stayer.reply().body == b"two"
