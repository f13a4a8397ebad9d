"""SSE: readers that stay. One encoding of a frame serves all that are at the same place.

A reader that reads slowly is not buffered for: it is left where it is and fed from the stream
again once it reads. One that does not read at all is disconnected by its connection. One that is so
far behind that its place is not in memory gets its pages from windows, one at a time, until it has
caught up with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.access.gate import Grant
from millstream.api.arguments import Query
from millstream.api.compression import ENDLESS
from millstream.api.reads import Page, Reads, locate, plan_page, wanted_offset
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidOffset, StreamError
from millstream.http.message import Request
from millstream.http.streaming import Sink, encode_chunk
from millstream.limits import SSE_PAGE_BYTES, SSE_TURN_BYTES, SSE_TURN_SUBSCRIBERS
from millstream.protocol import content_types, sse
from millstream.protocol.cursors import current_cursor, decode_cursor, next_cursor
from millstream.protocol.offsets import Position
from millstream.state.log import Log
from millstream.state.outbox import Outbox
from millstream.state.stream import Stream

_FRAMES_KEPT = 8  # per stream: the newest, and a few for those catching up
_CHARACTER_BYTES_MAX = 4  # so much may be needed behind a page to end it between two characters

Frame = tuple[bytes, bytes]  # as a chunk, and bare for HTTP/1.0


class SseReaders:
    """All SSE readers of the server."""

    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        lifetime_seconds: float,
        heartbeat_seconds: float,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.loop = loop
        self.lifetime_seconds = lifetime_seconds
        self.heartbeat_seconds = heartbeat_seconds
        self.readers = 0
        self.heartbeat: Frame = (encode_chunk(sse.HEARTBEAT), sse.HEARTBEAT)
        self.page_bytes = min(reads.page_bytes, SSE_PAGE_BYTES)
        self.cold_reads = reads.cold_reads
        self._reads = reads
        self._feeds: dict[int, Feed] = {}

    def open(self, request: Request, key: bytes, query: Query) -> None:
        token = query.offset()
        if token is None:
            raise InvalidOffset("a live read needs an offset; -1 starts at the beginning")
        bytes_max = query.max_bytes(self.page_bytes) or self.page_bytes
        cursor = decode_cursor(query.one(b"cursor"))
        compress = query.compress() or False
        stream = self._reads.find(key)
        offset = wanted_offset(stream, token)

        def located(log: Log) -> None:
            start = locate(log, offset)
            headers = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
            if not content_types.is_text(stream.essence):
                headers += b"stream-sse-data-encoding: base64\r\n"
            body = self._open_body(request, headers, compress)
            if not body.ended:
                own_max = bytes_max if bytes_max < self.page_bytes else None
                feed = self._feed(stream)
                SseReader(feed, body, start, own_max, cursor, request.grant).begin(log)

        window_bytes = bytes_max + _CHARACTER_BYTES_MAX
        self._reads.with_log(request, stream, offset, window_bytes, located)

    def _open_body(self, request: Request, headers: bytes, compress: bool) -> Sink:
        """Compressed only for who asks twice: each such reader costs a compressor, and the work
        that others share."""
        if not compress:
            return request.stream(200, headers)
        compression = self._reads.compression
        headers += compression.vary
        encoding = compression.choose(request, b"text/event-stream", ENDLESS)
        if encoding is None:
            return request.stream(200, headers)
        return compression.open(request, headers, encoding, is_live=True)

    def heard(self, outbox: Outbox) -> None:
        """Readers of a stream whose schema changed come again: what they have not read yet is in
        another form now."""
        for stream_id in outbox.changed_rules:
            feed = self._feeds.get(stream_id)
            if feed is not None:
                feed.shut_down()

    def _feed(self, stream: Stream) -> Feed:
        feed = self._feeds.get(stream.stream_id)
        if feed is None:
            feed = self._feeds[stream.stream_id] = Feed(self, stream)
            self.engine.watch(stream, feed)
        return feed

    def forget_feed(self, feed: Feed) -> None:
        if self._feeds.pop(feed.stream.stream_id, None) is not None:
            self.engine.unwatch(feed.stream, feed)


class Feed:
    """The readers of one stream and the frames they share."""

    def __init__(self, hub: SseReaders, stream: Stream) -> None:
        self.hub = hub
        self.stream = stream
        self.readers: set[SseReader] = set()
        self.is_plain_text = not stream.is_json and content_types.is_text(stream.essence)
        self._frames: dict[tuple[object, ...], Frame] = {}
        self._untold: list[SseReader] = []
        self._is_round_due = False  # something happened since that round began

    def add(self, reader: SseReader) -> None:
        self.readers.add(reader)
        self.hub.readers += 1

    def remove(self, reader: SseReader) -> None:
        if reader in self.readers:
            self.readers.remove(reader)
            self.hub.readers -= 1
            if not self.readers:
                self.hub.forget_feed(self)

    def shut_down(self) -> None:
        for reader in list(self.readers):
            reader.end()

    def stream_changed(self) -> None:
        """Tells all readers, some at a time; who is told late is told all there is by then."""
        if self.stream.deleted:
            self.shut_down()
        elif len(self.readers) <= SSE_TURN_SUBSCRIBERS:
            self._tell(list(self.readers))
        elif self._untold:
            self._is_round_due = True  # once those are told who have not heard of the last one
        else:
            self._untold = list(self.readers)
            self._tell_some()

    def _tell_some(self) -> None:
        some, self._untold = (
            self._untold[:SSE_TURN_SUBSCRIBERS],
            self._untold[SSE_TURN_SUBSCRIBERS:],
        )
        self._tell(some)
        if self._untold:
            self.hub.loop.call_soon(self._tell_some)
        elif self._is_round_due:
            self._is_round_due = False
            self.stream_changed()

    def _tell(self, readers: list[SseReader]) -> None:
        """Most of them wait at the same place: they all get the very same bytes."""
        if self.stream.deleted:
            return
        cursor = current_cursor(self.hub.clock.now_ms())
        log = self.stream.log
        place: Position | None = None
        page: Page | None = None
        chunk = data = b""
        for reader in readers:
            if reader.body.is_blocked or reader.body.ended:
                continue
            if (
                reader.cursor > cursor
                or reader.bytes_max is not None
                or reader.position.ordinal < log.held_ordinal
            ):
                reader.push()
                continue
            if reader.position is not place and reader.position != place:
                place = reader.position
                page = self.next_page(log, place, self.hub.page_bytes)
                if page is not None:
                    chunk, data = self.frame(log, page, cursor)
            if page is not None:
                reader.deliver(page, chunk, data)
            else:
                reader.end_if_trimmed()

    def next_page(self, log: Log, start: Position, bytes_max: int) -> Page | None:
        """The next page, never ending inside a character of text; None: nothing (whole) yet.

        `log` is the stream's own or a window that holds the place.
        """
        stream = self.stream
        if start.ordinal == stream.log.tail_ordinal and not stream.closed:
            return None
        if start.ordinal < stream.log.first_ordinal:
            return None
        page = plan_page(log, start, bytes_max)
        if self.is_plain_text and not stream.closed:
            return whole_characters(log, page)
        return page

    def frame(self, log: Log, page: Page, cursor: int) -> Frame:
        """Data and control for this page, encoded once for all who are at the same place."""
        up_to_date = page.reaches_tail(self.stream)
        closes = up_to_date and self.stream.closed
        key = (page, cursor, up_to_date, closes)
        frame = self._frames.get(key)
        if frame is None:
            control = sse.encode_control(page.end.token, cursor, up_to_date, closes)
            data = self._encode_data(log, page) + control
            if len(self._frames) >= _FRAMES_KEPT:
                self._frames.clear()
            frame = self._frames[key] = (encode_chunk(data), data)
        return frame

    def _encode_data(self, log: Log, page: Page) -> bytes:
        parts = log.slices(page.start.byte, page.end.byte)
        if not parts:
            return b""
        data = b"".join(parts)
        if self.stream.is_json:
            return sse.encode_json_data(data)
        if self.is_plain_text:
            return sse.encode_text_data(data)
        return sse.encode_binary_data(data)


class SseReader:
    __slots__ = (
        "_call_off",
        "_ends_at",
        "_feed",
        "_grant",
        "_timer",
        "_widest",
        "body",
        "bytes_max",
        "cursor",
        "position",
    )

    def __init__(
        self,
        feed: Feed,
        body: Sink,
        start: Position,
        bytes_max: int | None,
        cursor: int,
        grant: Grant | None,
    ) -> None:
        hub = feed.hub
        self._feed = feed
        self._grant = grant  # it ends with the key that opened it
        self.body = body
        self.position = start
        self.bytes_max = bytes_max  # None: the server's page size
        self.cursor = next_cursor(cursor, hub.clock.now_ms())  # never tell the client a lower one
        self._call_off: Callable[[], None] | None = None  # of the window that is being loaded
        self._widest = 0  # byte up to which a window was looked through for a whole character
        lifetime_seconds = hub.lifetime_seconds
        if grant is not None:
            lifetime_seconds = grant.seconds_within(lifetime_seconds, hub.clock.now_ms())
        self._ends_at = hub.loop.time() + lifetime_seconds
        self._timer: asyncio.TimerHandle | None = hub.loop.call_later(
            min(hub.heartbeat_seconds, lifetime_seconds), self._beat
        )

    def begin(self, log: Log) -> None:
        """`log` holds the place where the reader begins."""
        self.body.on_end = self._forget
        self.body.on_drain = self.push
        self._feed.add(self)
        if self._grant is not None:
            self._grant.join(self)
            if self.body.ended:  # revoked while its place was looked up
                return
        before = self.position
        if log is not self._feed.stream.log:
            self._push_from(log)
        self.push()
        if self.position == before and not self.body.ended:
            # Nothing to deliver: say where the reader stands.
            self._write(log, Page(before, before))

    def _forget(self) -> None:
        self._feed.remove(self)
        if self._grant is not None:
            self._grant.leave(self)
        if self._call_off is not None:
            self._call_off()
            self._call_off = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        self._forget()
        self.body.end()

    def revoked(self) -> None:
        self.end()

    def push(self) -> None:
        """Writes everything there is, as far as the client can take it."""
        log, began = self._feed.stream.log, self.position.byte
        while not self.body.is_blocked and not self.body.ended and self._call_off is None:
            if self.position.byte - began >= SSE_TURN_BYTES:
                self._feed.hub.loop.call_soon(self.push)
                return
            if self.position.ordinal < log.held_ordinal:
                if not self._push_old():
                    break
                continue
            page = self._feed.next_page(log, self.position, self._page_bytes)
            if page is None:
                self.end_if_trimmed()
                break
            self._write(log, page)

    @property
    def _page_bytes(self) -> int:
        return self._feed.hub.page_bytes if self.bytes_max is None else self.bytes_max

    def _push_old(self) -> bool:
        """One page of what the stream's log does not hold; False: it comes later, if at all."""
        stream, windows = self._feed.stream, self._feed.hub.cold_reads
        if self.position.ordinal < stream.log.first_ordinal:
            self.end()
            return False
        window_bytes = self._page_bytes + _CHARACTER_BYTES_MAX
        window = windows.in_memory(stream, self.position, window_bytes)
        if window is None:
            self._load(window_bytes)
            return False
        return self._push_from(window)

    def _load(self, bytes_max: int) -> None:
        hub = self._feed.hub
        self._call_off = hub.cold_reads.load(
            self._feed.stream, self.position, bytes_max, self._loaded
        )

    def _loaded(self, window: Log | StreamError) -> None:
        self._call_off = None
        if isinstance(window, StreamError):
            self.end()  # coming again, the client hears why
            return
        if not self.body.is_blocked and self._push_from(window):
            self.push()

    def _push_from(self, window: Log) -> bool:
        """Writes one page of this window; False: a wider one must be loaded first."""
        log = self._feed.stream.log
        if self.position.ordinal < log.first_ordinal:
            self.end()
            return False
        page = self._feed.next_page(window, self.position, self._page_bytes)
        if page is None:
            if window.tail_ordinal == log.tail_ordinal:
                return False  # a character's rest has not come yet
            if window.tail_byte > self._widest:
                self._widest = window.tail_byte
                self._load(window.tail_byte - self.position.byte + _CHARACTER_BYTES_MAX)
                return False
            page = plan_page(window, self.position, self._page_bytes)
        self._write(window, page)
        return True

    def end_if_trimmed(self) -> None:
        """A snapshot replaced what this reader has not read yet: coming again it hears 410."""
        if self.position.ordinal < self._feed.stream.log.first_ordinal:
            self.end()

    def _write(self, log: Log, page: Page) -> None:
        cursor = max(self.cursor, current_cursor(self._feed.hub.clock.now_ms()))
        chunk, data = self._feed.frame(log, page, cursor)
        self.position = page.end
        self.body.write_chunk(chunk, data)
        self._end_if_complete(page)

    def deliver(self, page: Page, chunk: bytes, data: bytes) -> None:
        """The next page, already encoded; the rest follows when there is more than one."""
        self.position = page.end
        self.body.write_chunk(chunk, data)
        stream = self._feed.stream
        if stream.closed:
            self._end_if_complete(page)
        if page.end.ordinal != stream.log.tail_ordinal:
            self.push()

    def _end_if_complete(self, page: Page) -> None:
        if self._feed.stream.closed and page.reaches_tail(self._feed.stream):
            self.end()

    def _beat(self) -> None:
        """The heartbeat, and the end of a connection that has lived long enough."""
        hub = self._feed.hub
        remaining = self._ends_at - hub.loop.time()
        if remaining <= 0.001:
            self._timer = None
            self.end()
            return
        if not self.body.is_blocked:
            self.body.write_chunk(*hub.heartbeat)
        self._timer = hub.loop.call_later(min(hub.heartbeat_seconds, remaining), self._beat)


def whole_characters(log: Log, page: Page) -> Page | None:
    """Moves the page's end to a message boundary that is also a boundary of UTF-8 characters.

    Back first; forward when that leaves nothing; None when the character's rest has not come yet.
    """
    for ordinal in range(page.end.ordinal, page.start.ordinal, -1):
        end = Position(ordinal, log.byte_at(ordinal))
        if not _splits_character(log, page.start, end):
            return Page(page.start, end)
        if page.end.byte - end.byte > 3:
            break
    for ordinal in range(page.end.ordinal + 1, log.tail_ordinal + 1):
        end = Position(ordinal, log.byte_at(ordinal))
        if not _splits_character(log, page.start, end) or end.byte - page.end.byte > 3:
            return Page(page.start, end)
    return None


def _splits_character(log: Log, start: Position, end: Position) -> bool:
    tail = b"".join(log.slices(max(start.byte, end.byte - 3), end.byte))
    return sse.incomplete_utf8_bytes(tail) > 0
