from __future__ import annotations

from typing import Any

import pytest

from millstream.api.arguments import Query
from millstream.api.long_poll import LongPolls
from millstream.api.reads import Reads
from millstream.cold.cold_reads import ColdReads
from millstream.errors import InvalidOffset, InvalidRequest, StreamNotFound
from millstream.protocol.cursors import current_cursor
from millstream.state.commands import Append
from tests.unit.api.fake_request import UNCOMPRESSED, FakeRequest
from tests.unit.engine.world import World

TAIL = b"offset=0000000000000001_0000000000000003"


class Library:
    """A stream `a` with one message, and whoever waits at its tail for twenty seconds."""

    def __init__(self, **fields: Any) -> None:
        self.world = World()
        self.stream = self.world.create(data=b"one", count=1, **fields)
        windows = ColdReads(self.world.machine, None, None, 1)
        reads = Reads(self.world.engine, windows, self.world.clock, "0" * 32, 1000, UNCOMPRESSED)
        self.polls = LongPolls(
            self.world.engine, reads, self.world.clock, self.world.loop.asyncio_loop, 20.0
        )

    def poll(self, query: bytes = TAIL) -> FakeRequest:
        request = FakeRequest()
        self.polls.open(request.request, b"a", Query(query))
        return request

    def append(self, data: bytes = b"two") -> None:
        self.world.append(data=data)
        self.world.commit()

    def assert_nobody_waits(self) -> None:
        assert self.polls.waiting == 0
        assert self.world.engine.watcher_count == 0


@pytest.mark.parametrize("query", [b"offset=-1", b"offset=0000000000000000_0000000000000000"])
def test_whoever_is_behind_is_answered_at_once(query: bytes) -> None:
    library = Library()
    status, headers, body = library.poll(query).answer
    assert (status, body) == (200, b"one")
    assert headers["stream-next-offset"] == "0000000000000001_0000000000000003"
    assert headers["cache-control"] == "no-store"
    library.assert_nobody_waits()


@pytest.mark.parametrize("query", [TAIL, b"offset=now"])
def test_an_append_answers_everybody_who_waits(query: bytes) -> None:
    library = Library()
    waiting = [library.poll(query) for _ in range(3)]
    assert library.polls.waiting == 3
    assert not any(request.is_answered for request in waiting)
    library.append()
    assert [request.answer[::2] for request in waiting] == [(200, b"two")] * 3
    library.assert_nobody_waits()
    assert library.world.loop.timers == 0


def test_when_the_time_is_up_the_answer_says_that_there_is_nothing_new() -> None:
    library = Library()
    request = library.poll()
    library.world.loop.advance(19_999)
    assert not request.is_answered
    library.world.loop.advance(1)
    status, headers, body = request.answer
    assert (status, body) == (204, b"")
    assert headers["stream-up-to-date"] == "true"
    assert int(headers["stream-cursor"]) == current_cursor(library.world.now_ms)
    library.assert_nobody_waits()


def test_a_request_may_ask_for_another_time() -> None:
    library = Library()
    request = library.poll(TAIL + b"&timeout=2s")
    library.world.loop.advance(2000)
    assert request.answer[0] == 204


def test_the_cursor_is_greater_than_the_clients() -> None:
    library = Library()
    ahead = current_cursor(library.world.now_ms) + 1000
    request = library.poll(TAIL + b"&cursor=%d" % ahead)
    library.append()
    assert int(request.answer[1]["stream-cursor"]) > ahead


def test_an_answer_is_given_once() -> None:
    library = Library()
    request = library.poll()
    library.append()
    library.append()
    library.world.loop.advance(60_000)
    assert request.answer[2] == b"two"


def test_a_close_ends_the_wait_and_shows() -> None:
    library = Library()
    request = library.poll()
    library.world.submit(Append(library.world.now_ms, library.stream.stream_id, closes=True))
    library.world.commit()
    status, headers, _ = request.answer
    assert (status, headers["stream-closed"]) == (204, "true")


def test_at_the_end_of_a_closed_stream_nobody_waits() -> None:
    library = Library(closed=True)
    status, headers, _ = library.poll().answer
    assert (status, headers["stream-closed"]) == (204, "true")
    library.assert_nobody_waits()


def test_a_delete_ends_the_wait() -> None:
    library = Library()
    request = library.poll()
    library.world.delete()
    library.world.commit()
    assert request.answer[0] == 404
    library.assert_nobody_waits()


def test_a_delete_of_a_forked_stream_ends_the_wait_with_gone() -> None:
    library = Library()
    library.world.create(b"f", fork_from=b"a")
    request = library.poll()
    library.world.delete(b"a")
    library.world.commit()
    assert request.answer[0] == 410


def test_expiry_ends_the_wait() -> None:
    library = Library(ttl_ms=5000)
    request = library.poll()
    library.world.loop.advance(5001)
    assert request.answer[0] == 404
    library.assert_nobody_waits()


def test_a_stop_answers_everybody_who_waits() -> None:
    library = Library()
    waiting = [library.poll() for _ in range(3)]
    library.world.engine.end_watchers()
    assert [request.answer[0] for request in waiting] == [204, 204, 204]
    library.assert_nobody_waits()


def test_a_client_that_leaves_is_forgotten() -> None:
    library = Library()
    request = library.poll()
    assert request.on_disconnect is not None
    request.on_disconnect()
    library.assert_nobody_waits()
    assert library.world.loop.timers == 0
    library.append()
    assert not request.is_answered


def test_a_wait_needs_an_offset_of_a_stream_that_exists() -> None:
    library = Library()
    with pytest.raises(InvalidOffset):
        library.poll(b"")
    with pytest.raises(InvalidOffset):
        library.poll(b"offset=0000000000000009_0000000000000009")
    with pytest.raises(InvalidRequest):
        library.poll(TAIL + b"&timeout=soon")
    library.world.delete()
    library.world.commit()
    with pytest.raises(StreamNotFound):
        library.poll()
