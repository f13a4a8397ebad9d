"""Reads that pick or promote entries: by key, by time, by filter, through lenses; once or live.

Each is a coroutine. What it looks at comes from memory or in windows from the cold store, and is
looked through in a thread, a step at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from millstream.access.gate import Grant, unauthorized
from millstream.api.arguments import Query, is_now, matches_etag
from millstream.api.headers import NO_STORE
from millstream.api.reads import (
    CACHEABLE,
    CACHEABLE_BY_ONE,
    Page,
    Reads,
    locate,
    page_headers,
    wanted_offset,
)
from millstream.api.shapes import Scan, Shape, Shaper, is_shaping, needs_promotion, shape_of
from millstream.api.slow_requests import Answer, SlowRequests
from millstream.clock import Clock
from millstream.cold.lookups import Lookups
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.errors import (
    ColdUnavailable,
    InvalidOffset,
    InvalidRequest,
    OffsetGone,
    StreamError,
    StreamNotFound,
)
from millstream.http.message import Request
from millstream.http.streaming import BodyStream
from millstream.limits import (
    FILTER_SCAN_BYTES_MAX,
    SHAPED_INLINE_BYTES,
    SHAPED_PAGE_BYTES,
    SHAPED_SECONDS_MAX,
    SHAPED_STEP_BYTES,
)
from millstream.protocol import content_types, sse
from millstream.protocol.cursors import decode_cursor, next_cursor
from millstream.protocol.offsets import AnyOffset, Position
from millstream.state.decisions import gone
from millstream.state.log import Log
from millstream.state.stream import Stream

_KEY_MESSAGES_MAX = 10_000  # of one key in one answer


class LiveSettings(NamedTuple):
    """As in plain live reads."""

    poll_seconds: float
    lifetime_seconds: float
    heartbeat_seconds: float


class Read(NamedTuple):
    """One request."""

    request: Request
    stream: Stream
    shape: Shape
    offset: AnyOffset
    bytes_max: int
    is_now: bool


class ShapedReads:
    def __init__(
        self, engine: Engine, reads: Reads, lookups: Lookups, clock: Clock, live: LiveSettings
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._lookups = lookups
        self._clock = clock
        self._live = live
        self._requests = SlowRequests(engine.faults, "read", _explain)
        # One thread: two would only take the interpreter from each other, and from appends.
        self._thread = Threads("shaped", 1)

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        async with self._requests.running(group):
            yield
        await self._thread.close()

    def open(
        self,
        request: Request,
        key: bytes,
        query: Query,
        live: bytes | None,
        path_key: bytes | None = None,
    ) -> bool:
        """Answers the read, now or later, unless it is one that needs no looking at entries."""
        if path_key is None and not is_shaping(query):
            known = self._engine.machine.find(key)
            if known is None or known.rules is None or known.rules.version < 2:
                return False
        stream = self._reads.find(key)
        shape = shape_of(query, stream, path_key)
        token = query.offset()
        offset = wanted_offset(stream, token)
        if shape is None:
            if not needs_promotion(stream.rules, offset):
                return False
            shape = Shape()
        if live is not None and token is None and shape.since_ms is None:
            raise InvalidOffset("a live read needs an offset; -1 starts at the beginning")
        bytes_max = query.max_bytes(SHAPED_PAGE_BYTES) or SHAPED_PAGE_BYTES
        read = Read(request, stream, shape, offset, bytes_max, is_now(token))
        Shaper(shape, stream.rules, stream.is_json)  # a filter that is none is refused at once
        if live is None:
            self._requests.begin(request, self._catch_up(read))
        elif live == b"sse":
            self._open_events(read, query)
        else:
            request.route = "long_poll"
            timeout_seconds = query.timeout_seconds(self._live.poll_seconds)
            cursor = decode_cursor(query.one(b"cursor"))
            self._requests.begin(request, self._long_poll(read, timeout_seconds, cursor))
        return True

    # One answer

    async def _catch_up(self, read: Read) -> Answer:
        start = await self._start(read)
        scan = await self._scan(read, start)
        return self._page_answer(read, start, scan)

    async def _start(self, read: Read) -> Position:
        if read.shape.since_ms is not None:
            return await self._lookups.seek(read.stream, read.shape.since_ms)
        log = await self._window(read.stream, read.offset, SHAPED_STEP_BYTES)
        return locate(log, read.offset)

    def _page_answer(self, read: Read, start: Position, scan: Scan) -> Answer:
        request, stream = read.request, read.stream
        page = Page(start, scan.position)
        headers = page_headers(stream, page) + self._reads.compression.vary + _limits(scan)
        if read.is_now:
            headers += NO_STORE
        else:
            etag = self._etag(read, page)
            headers += CACHEABLE if request.grant is None else CACHEABLE_BY_ONE
            headers += b"etag: " + etag + b"\r\n"
            if matches_etag(request.headers, etag):
                return 304, headers, b""
        return 200, headers, _body(read, scan)

    def _etag(self, read: Read, page: Page) -> bytes:
        revision = 0 if read.stream.rules is None else read.stream.rules.revision
        plain = self._reads.etag(read.stream, page)
        return b'%b:%d:%b"' % (plain[:-1], revision, read.shape.tag)

    # Waiting for more

    async def _long_poll(self, read: Read, timeout_seconds: float, cursor: int) -> Answer:
        stream = read.stream
        start = await self._start(read)
        with _waiting(self._engine, read) as change:
            deadline = time.monotonic() + self._while_allowed(read, timeout_seconds)
            position = start
            while True:
                change.clear()
                scan = await self._scan(read, position)
                position = scan.position
                has_more = position.ordinal < stream.log.tail_ordinal
                if scan.entries or scan.is_limit_reached or change.is_over or stream.deleted:
                    break
                if has_more:
                    continue
                if stream.closed or not await change.wait(deadline - time.monotonic()):
                    break
        if change.is_revoked:
            raise unauthorized()
        if stream.deleted:
            raise gone(stream) if stream.forks else StreamNotFound("stream does not exist any more")
        told = b"stream-cursor: %d\r\n" % next_cursor(cursor, self._clock.now_ms())
        page = Page(start, position)
        headers = page_headers(stream, page) + NO_STORE + told + _limits(scan)
        if not scan.entries and not scan.is_limit_reached:
            return 204, headers, b""
        headers += b"etag: " + self._etag(read, page) + b"\r\n"
        return 200, headers, _body(read, scan)

    # Events

    def _open_events(self, read: Read, query: Query) -> None:
        if read.shape.filter_text:
            raise InvalidRequest("filter does not support live=sse")
        if read.shape.is_raw:
            raise InvalidRequest("format=raw does not support live=sse")
        cursor = decode_cursor(query.one(b"cursor"))
        read.request.route = "sse"
        self._requests.begin(read.request, self._answer_with_events(read, cursor))

    async def _answer_with_events(self, read: Read, cursor: int) -> None:
        stream, request = read.stream, read.request
        position = await self._start(read)
        headers = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
        if not content_types.is_text(stream.essence):
            headers += b"stream-sse-data-encoding: base64\r\n"
        body = request.stream(200, headers)
        try:
            await self._send_events(read, position, cursor, body)
        except StreamError:
            pass  # coming again, the client hears why
        finally:
            body.end()

    async def _send_events(
        self, read: Read, position: Position, cursor: int, body: BodyStream
    ) -> None:
        """Until either side ends it, the stream does, or the connection has lived long enough."""
        stream = read.stream
        ends_at = time.monotonic() + self._while_allowed(read, self._live.lifetime_seconds)
        with _waiting(self._engine, read, body) as change:
            is_told = False
            while not (body.ended or change.is_over or stream.deleted):
                change.clear()
                scan = await self._scan(read, position)
                is_told = is_told and scan.position == position
                position = scan.position
                is_at_tail = position.ordinal == stream.log.tail_ordinal
                closes = is_at_tail and stream.closed
                if scan.entries or closes or not is_told:
                    told = next_cursor(cursor, self._clock.now_ms())
                    body.write(
                        _event_data(stream, scan)
                        + sse.encode_control(position.token, told, is_at_tail, closes)
                    )
                    is_told = True
                left_seconds = ends_at - time.monotonic()
                if closes or left_seconds <= 0:
                    break
                if body.is_blocked:
                    await change.wait(left_seconds)
                elif is_at_tail and not await change.wait(
                    min(left_seconds, self._live.heartbeat_seconds)
                ):
                    body.write(sse.HEARTBEAT)

    def _while_allowed(self, read: Read, seconds: float) -> float:
        """At most so long, and not longer than the key that opened it is good for."""
        grant: Grant | None = read.request.grant
        return seconds if grant is None else grant.seconds_within(seconds, self._clock.now_ms())

    # Looking

    async def _scan(self, read: Read, start: Position) -> Scan:
        """Entries from `start` on: as many as one answer takes, or as were found in time."""
        stream = read.stream
        shaper = Shaper(read.shape, stream.rules, stream.is_json)
        scan = Scan(shaper, start, read.bytes_max)
        until = time.monotonic() + SHAPED_SECONDS_MAX
        tail = stream.log.tail
        while scan.position.ordinal < tail.ordinal and not scan.is_full:
            if stream.is_trimmed(scan.position):
                raise OffsetGone(stream.earliest)
            if read.shape.key is None:
                await self._step(stream, scan)
            else:
                await self._key_step(stream, scan, read.shape.key, read.bytes_max - scan.size)
            if time.monotonic() > until:
                break
        return scan

    async def _step(self, stream: Stream, scan: Scan) -> None:
        log = await self._window(stream, scan.position, SHAPED_STEP_BYTES)
        end = log.page_end(scan.position, SHAPED_STEP_BYTES)
        first, blocks = log.blocks_between(scan.position.byte, end.byte)

        def work() -> None:
            scan.take(first, blocks, end)

        if end.byte - scan.position.byte <= SHAPED_INLINE_BYTES:
            work()
        else:
            await self._thread.run(work)

    async def _key_step(self, stream: Stream, scan: Scan, key: bytes, bytes_max: int) -> None:
        page = await self._lookups.page_of_key(
            stream, key, scan.position, bytes_max, _KEY_MESSAGES_MAX
        )

        def work() -> None:
            for entry in page.entries:
                scan.add(entry.ordinal, entry.data)
            scan.position = page.end

        if sum(len(entry.data) for entry in page.entries) <= SHAPED_INLINE_BYTES:
            work()
        else:
            await self._thread.run(work)

    async def _window(self, stream: Stream, offset: AnyOffset, bytes_max: int) -> Log:
        cold_reads = self._reads.cold_reads
        log = cold_reads.in_memory(stream, offset, bytes_max)
        if log is not None:
            return log
        told: asyncio.Future[Log | StreamError] = asyncio.get_running_loop().create_future()

        def loaded(window: Log | StreamError) -> None:
            if not told.done():
                told.set_result(window)

        call_off = cold_reads.load(stream, offset, bytes_max, loaded)
        try:
            window = await told
        finally:
            call_off()
        if isinstance(window, StreamError):
            raise window
        return window


class _Change:
    """A watcher that a coroutine waits for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_over = False  # answer now: the client may have left, or the server stops
        self.is_revoked = False

    def stream_changed(self) -> None:
        self._event.set()

    def shut_down(self) -> None:
        self.is_over = True
        self._event.set()

    def revoked(self) -> None:
        self.is_revoked = True
        self.shut_down()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether something happened in time."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


@contextlib.contextmanager
def _waiting(engine: Engine, read: Read, body: BodyStream | None = None) -> Iterator[_Change]:
    """What happens to the stream, the client or its key is heard of in the meantime."""
    change, request, grant = _Change(), read.request, read.request.grant
    if body is None:
        request.on_disconnect = request.on_half_close = change.shut_down
    else:
        body.on_end, body.on_drain = change.shut_down, change.stream_changed
    engine.watch(read.stream, change)
    if grant is not None:
        grant.join(change)
    try:
        yield change
    finally:
        engine.unwatch(read.stream, change)
        if grant is not None:
            grant.leave(change)
        if body is None:
            request.on_disconnect = request.on_half_close = None


def _event_data(stream: Stream, scan: Scan) -> bytes:
    if not scan.entries:
        return b""
    if stream.is_json:
        return sse.encode_json_data(b",".join(scan.entries) + b",")
    data = b"".join(scan.entries)
    if content_types.is_text(stream.essence):
        return sse.encode_text_data(data)
    return sse.encode_binary_data(data)


def _body(read: Read, scan: Scan) -> bytes:
    if read.stream.is_json and not read.shape.is_raw:
        return b"[" + b",".join(scan.entries) + b"]"
    return b"".join(scan.entries)


def _limits(scan: Scan) -> bytes:
    if not scan.is_limit_reached:
        return b""
    return (
        b"stream-filter-scan-limit-reached: true\r\nstream-filter-scan-limit-bytes: %d\r\n"
        b"stream-filter-scanned-bytes: %d\r\n" % (FILTER_SCAN_BYTES_MAX, scan.scanned_bytes)
    )


def _explain(error: Exception) -> StreamError:
    return ColdUnavailable(f"the entries could not be read: {error}")
