"""SSE: subscribers that stay. One encoding of a frame serves everybody at the same place.

A subscriber that reads slowly is not buffered for: it is left where it is and fed from the stream
again once it reads. One that does not read at all is disconnected by its connection.
"""

from __future__ import annotations

import asyncio

from millstream.api.arguments import Query
from millstream.api.reads import Page, Position, Reads, locate, plan_page
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidOffset
from millstream.http.message import Request
from millstream.http.streaming import BodyStream, encode_chunk
from millstream.protocol import content_types, sse
from millstream.protocol.cursors import current_cursor, decode_cursor, next_cursor
from millstream.state.stream import Stream

_FRAMES_KEPT = 8  # per stream: the newest, and a few for those catching up

Frame = tuple[bytes, bytes]  # as a chunk, and bare for HTTP/1.0


class Subscriptions:
    """All SSE subscribers, and the frames they share."""

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
        self.page_bytes = reads.page_bytes
        self.subscribers = 0
        self.heartbeat: Frame = (encode_chunk(sse.HEARTBEAT), sse.HEARTBEAT)
        self._reads = reads
        self._frames: dict[int, dict[tuple[object, ...], Frame]] = {}

    def open(self, request: Request, key: bytes, query: Query) -> None:
        token = query.offset()
        if token is None:
            raise InvalidOffset("a live read needs an offset; -1 starts at the beginning")
        bytes_max = query.max_bytes(self.page_bytes)
        cursor = decode_cursor(query.one(b"cursor"))
        stream = self._reads.find(key)
        start = locate(stream, token)
        headers = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
        if not content_types.is_text(stream.essence):
            headers += b"stream-sse-data-encoding: base64\r\n"
        body = request.stream(200, headers)
        Subscriber(self, stream, body, start, bytes_max, cursor).begin()

    def frame(self, stream: Stream, page: Page, cursor: int) -> Frame:
        """Data and control for this page, encoded once for all who are at the same place."""
        up_to_date = page.reaches_tail(stream)
        closes = up_to_date and stream.closed
        key = (page, cursor, up_to_date, closes)
        frames = self._frames.setdefault(stream.stream_id, {})
        frame = frames.get(key)
        if frame is None:
            control = sse.encode_control(page.end.token, cursor, up_to_date, closes)
            data = _encode_data(stream, page) + control
            if len(frames) >= _FRAMES_KEPT:
                frames.clear()
            frame = frames[key] = (encode_chunk(data), data)
        return frame

    def forget_frames(self, stream: Stream) -> None:
        if stream.stream_id not in self.engine.watchers:
            self._frames.pop(stream.stream_id, None)


def _encode_data(stream: Stream, page: Page) -> bytes:
    parts = stream.log.slices(page.start.byte, page.end.byte)
    if not parts:
        return b""
    data = b"".join(parts)
    if stream.is_json:
        return sse.encode_json_data(data)
    if content_types.is_text(stream.essence):
        return sse.encode_text_data(data)
    return sse.encode_binary_data(data)


class Subscriber:
    __slots__ = (
        "_body",
        "_bytes_max",
        "_cursor",
        "_ends_at",
        "_hub",
        "_position",
        "_stream",
        "_timer",
        "_watching",
    )

    def __init__(
        self,
        hub: Subscriptions,
        stream: Stream,
        body: BodyStream,
        start: Position,
        bytes_max: int,
        cursor: int,
    ) -> None:
        self._hub = hub
        self._stream = stream
        self._body = body
        self._position = start
        self._bytes_max = bytes_max
        self._cursor = next_cursor(cursor, hub.clock.now_ms())
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self._ends_at = hub.loop.time() + hub.lifetime_seconds

    def begin(self) -> None:
        if self._body.ended:
            return
        self._body.on_end = self._forget
        self._body.on_drain = self._drained
        self._watching = True
        self._hub.subscribers += 1
        self._hub.engine.watch(self._stream, self)
        self._timer = self._hub.loop.call_later(
            min(self._hub.heartbeat_seconds, self._hub.lifetime_seconds), self._beat
        )
        if not self._push():
            # Nothing to deliver: say where the reader stands.
            self._write(Page(self._position, self._position))

    def _forget(self) -> None:
        if self._watching:
            self._watching = False
            self._hub.subscribers -= 1
            self._hub.engine.unwatch(self._stream, self)
            self._hub.forget_frames(self._stream)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._forget()
        self._body.end()

    def shut_down(self) -> None:
        self._end()

    def stream_changed(self) -> None:
        if self._stream.deleted:
            self._end()
        else:
            self._push()

    def _push(self) -> bool:
        """Writes everything the client can take; whether it wrote anything."""
        stream, wrote = self._stream, False
        while not self._body.is_blocked and not self._body.ended:
            if self._position.ordinal == stream.log.tail_ordinal and not stream.closed:
                break
            page = self._next_page()
            if page is None:
                break
            self._write(page)
            wrote = True
        return wrote

    def _drained(self) -> None:
        self._push()

    def _write(self, page: Page) -> None:
        cursor = max(self._cursor, current_cursor(self._hub.clock.now_ms()))
        chunk, data = self._hub.frame(self._stream, page, cursor)
        self._position = page.end
        self._body.write_chunk(chunk, data)
        if self._stream.closed and page.reaches_tail(self._stream):
            self._end()

    def _next_page(self) -> Page | None:
        """The next page, never ending inside a character of text; None: wait for its rest."""
        stream = self._stream
        page = plan_page(stream, self._position, self._bytes_max)
        if stream.is_json or not content_types.is_text(stream.essence) or stream.closed:
            return page
        return whole_characters(stream, page)

    def _beat(self) -> None:
        """The heartbeat, and the end of a connection that has lived long enough."""
        hub = self._hub
        remaining = self._ends_at - hub.loop.time()
        if remaining <= 0.001:
            self._timer = None
            self._end()
            return
        if not self._body.is_blocked:
            self._body.write_chunk(*hub.heartbeat)
        self._timer = hub.loop.call_later(min(hub.heartbeat_seconds, remaining), self._beat)


def whole_characters(stream: Stream, page: Page) -> Page | None:
    """Moves the page's end to a message boundary that is also a boundary of UTF-8 characters.

    Back first; forward when that leaves nothing; None when the character's rest has not come yet.
    """
    log = stream.log
    for ordinal in range(page.end.ordinal, page.start.ordinal, -1):
        end = Position(ordinal, log.byte_at(ordinal))
        if not _splits_character(stream, page.start, end):
            return Page(page.start, end)
        if page.end.byte - end.byte > 3:
            break
    for ordinal in range(page.end.ordinal + 1, log.tail_ordinal + 1):
        end = Position(ordinal, log.byte_at(ordinal))
        if not _splits_character(stream, page.start, end):
            return Page(page.start, end)
        if end.byte - page.end.byte > 3:
            return Page(page.start, end)
    return None


def _splits_character(stream: Stream, start: Position, end: Position) -> bool:
    tail = b"".join(stream.log.slices(max(start.byte, end.byte - 3), end.byte))
    return sse.incomplete_utf8_bytes(tail) > 0
