"""Long-poll: one answer, as soon as there is something to say or the time is up."""

from __future__ import annotations

import asyncio

from millstream.access.gate import Grant, unauthorized
from millstream.api.arguments import Query
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.reads import (
    Page,
    Reads,
    locate,
    page_body,
    page_headers,
    plan_page,
    wanted_offset,
)
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidOffset, StreamError, StreamNotFound
from millstream.http.message import Request
from millstream.protocol.cursors import decode_cursor, next_cursor
from millstream.protocol.offsets import Position
from millstream.state.decisions import gone
from millstream.state.log import Log
from millstream.state.stream import Stream


class LongPolls:
    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        timeout_seconds: float,
    ) -> None:
        self.engine = engine
        self.reads = reads
        self.clock = clock
        self.loop = loop
        self._timeout_seconds = timeout_seconds
        self.waiting = 0

    def open(self, request: Request, key: bytes, query: Query) -> None:
        token = query.offset()
        if token is None:
            raise InvalidOffset("a live read needs an offset; -1 starts at the beginning")
        page_bytes = self.reads.page_bytes
        bytes_max = query.max_bytes(page_bytes) or page_bytes
        timeout_seconds = query.timeout_seconds(self._timeout_seconds)
        cursor = decode_cursor(query.one(b"cursor"))
        compress = query.compress() or False  # what comes soon is short, and must not wait
        stream = self.reads.find(key)
        offset = wanted_offset(stream, token)

        def located(log: Log) -> None:
            start = locate(log, offset)
            poll = LongPoll(self, request, stream, start, bytes_max, cursor, compress)
            if start.ordinal < log.tail_ordinal:
                poll.answer_page(log)
            elif poll.has_answer():
                poll.answer()
            else:
                poll.wait(timeout_seconds)

        self.reads.with_log(request, stream, offset, bytes_max, located)


class LongPoll:
    """One waiting request. Whatever happens first answers it, and only once."""

    __slots__ = (
        "_bytes_max",
        "_compress",
        "_cursor",
        "_grant",
        "_polls",
        "_request",
        "_start",
        "_stream",
        "_timer",
    )

    def __init__(
        self,
        polls: LongPolls,
        request: Request,
        stream: Stream,
        start: Position,
        bytes_max: int,
        cursor: int,
        compress: bool = False,
    ) -> None:
        self._polls = polls
        self._request = request
        self._grant: Grant | None = request.grant
        self._stream = stream
        self._start = start
        self._bytes_max = bytes_max
        self._cursor = cursor
        self._compress = compress
        self._timer: asyncio.TimerHandle | None = None

    def has_answer(self) -> bool:
        stream = self._stream
        return stream.log.tail_ordinal > self._start.ordinal or stream.closed or stream.deleted

    def wait(self, timeout_seconds: float) -> None:
        polls, grant = self._polls, self._grant
        if grant is not None:
            timeout_seconds = grant.seconds_within(timeout_seconds, polls.clock.now_ms())
        polls.waiting += 1
        self._timer = polls.loop.call_later(timeout_seconds, self._timed_out)
        self._request.on_disconnect = self._forget
        self._request.on_half_close = self.shut_down
        polls.engine.watch(self._stream, self)
        if grant is not None:
            grant.join(self)

    def _forget(self) -> None:
        polls = self._polls
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._request.on_disconnect = self._request.on_half_close = None
            polls.waiting -= 1
            polls.engine.unwatch(self._stream, self)
            if self._grant is not None:
                self._grant.leave(self)

    def revoked(self) -> None:
        """The key that opened it is no more."""
        if self._timer is not None:
            self._forget()
            respond_error(self._request, unauthorized())

    def stream_changed(self) -> None:
        if self.has_answer():
            self._forget()
            self.answer()

    def _timed_out(self) -> None:
        self._forget()
        self.answer()

    def shut_down(self) -> None:
        self._forget()
        self.answer()

    def answer(self) -> None:
        stream = self._stream
        if stream.deleted:
            respond_error(self._request, ended(stream))
        elif stream.log.tail_ordinal > self._start.ordinal:
            # What came may be cold already, when memory is short.
            reads, start = self._polls.reads, self._start
            reads.with_log(self._request, stream, start, self._bytes_max, self.answer_page)
        else:
            tail = stream.log.tail
            headers = page_headers(stream, Page(tail, tail)) + NO_STORE
            self._request.respond(204, headers + self._cursor_header())

    def answer_page(self, log: Log) -> None:
        stream = self._stream
        page = plan_page(log, self._start, self._bytes_max)
        reads, request = self._polls.reads, self._request
        encoding = reads.choose_encoding(request, stream, page, self._compress)
        etag = b"etag: " + reads.etag(stream, page, encoding) + b"\r\n"
        headers = page_headers(stream, page) + NO_STORE + etag + self._cursor_header()
        if self._compress:
            headers += reads.compression.vary
        body = page_body(log, page, stream.is_json)
        if encoding is None:
            request.respond(200, headers, body)
        else:
            reads.compression.respond_encoded(request, headers, body, encoding)

    def _cursor_header(self) -> bytes:
        cursor = next_cursor(self._cursor, self._polls.clock.now_ms())
        return b"stream-cursor: %d\r\n" % cursor


def ended(stream: Stream) -> StreamError:
    """What readers hear who waited when the stream was deleted or expired."""
    return gone(stream) if stream.forks else StreamNotFound("stream does not exist any more")
