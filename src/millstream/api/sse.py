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
    """All SSE subscribers of the server."""

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
        self.subscribers = 0
        self.heartbeat: Frame = (encode_chunk(sse.HEARTBEAT), sse.HEARTBEAT)
        self.page_bytes = reads.page_bytes
        self._reads = reads
        self._feeds: dict[int, Feed] = {}

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
        if not body.ended:
            own_max = bytes_max if bytes_max < self.page_bytes else None
            Subscriber(self._feed(stream), body, start, own_max, cursor).begin()

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
    """The subscribers of one stream and the frames they share."""

    def __init__(self, hub: Subscriptions, stream: Stream) -> None:
        self.hub = hub
        self.stream = stream
        self.subscribers: set[Subscriber] = set()
        self.is_plain_text = not stream.is_json and content_types.is_text(stream.essence)
        self._frames: dict[tuple[object, ...], Frame] = {}

    def add(self, subscriber: Subscriber) -> None:
        self.subscribers.add(subscriber)
        self.hub.subscribers += 1

    def remove(self, subscriber: Subscriber) -> None:
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)
            self.hub.subscribers -= 1
            if not self.subscribers:
                self.hub.forget_feed(self)

    def shut_down(self) -> None:
        for subscriber in list(self.subscribers):
            subscriber.end()

    def stream_changed(self) -> None:
        """Most subscribers wait at the same place: they all get the very same bytes."""
        if self.stream.deleted:
            self.shut_down()
            return
        cursor = current_cursor(self.hub.clock.now_ms())
        place: Position | None = None
        page: Page | None = None
        chunk = data = b""
        for subscriber in list(self.subscribers):
            if subscriber.body.is_blocked:
                continue
            if subscriber.cursor > cursor or subscriber.bytes_max is not None:
                subscriber.push()
                continue
            if subscriber.position is not place and subscriber.position != place:
                place = subscriber.position
                page = self.next_page(place, None)
                if page is not None:
                    chunk, data = self.frame(page, cursor)
            if page is not None:
                subscriber.deliver(page, chunk, data)
            else:
                subscriber.end_if_trimmed()

    def next_page(self, start: Position, bytes_max: int | None) -> Page | None:
        """The next page, never ending inside a character of text; None: nothing (whole) yet."""
        stream = self.stream
        if start.ordinal == stream.log.tail_ordinal and not stream.closed:
            return None
        if start.ordinal < stream.log.first_ordinal:
            return None
        page = plan_page(stream, start, bytes_max or self.hub.page_bytes)
        if self.is_plain_text and not stream.closed:
            return whole_characters(stream, page)
        return page

    def frame(self, page: Page, cursor: int) -> Frame:
        """Data and control for this page, encoded once for all who are at the same place."""
        up_to_date = page.reaches_tail(self.stream)
        closes = up_to_date and self.stream.closed
        key = (page, cursor, up_to_date, closes)
        frame = self._frames.get(key)
        if frame is None:
            control = sse.encode_control(page.end.token, cursor, up_to_date, closes)
            data = self._encode_data(page) + control
            if len(self._frames) >= _FRAMES_KEPT:
                self._frames.clear()
            frame = self._frames[key] = (encode_chunk(data), data)
        return frame

    def _encode_data(self, page: Page) -> bytes:
        parts = self.stream.log.slices(page.start.byte, page.end.byte)
        if not parts:
            return b""
        data = b"".join(parts)
        if self.stream.is_json:
            return sse.encode_json_data(data)
        if self.is_plain_text:
            return sse.encode_text_data(data)
        return sse.encode_binary_data(data)


class Subscriber:
    __slots__ = ("_ends_at", "_feed", "_timer", "body", "bytes_max", "cursor", "position")

    def __init__(
        self, feed: Feed, body: BodyStream, start: Position, bytes_max: int | None, cursor: int
    ) -> None:
        hub = feed.hub
        self._feed = feed
        self.body = body
        self.position = start
        self.bytes_max = bytes_max  # None: the server's page size
        self.cursor = next_cursor(cursor, hub.clock.now_ms())  # never tell the client a lower one
        self._ends_at = hub.loop.time() + hub.lifetime_seconds
        self._timer: asyncio.TimerHandle | None = hub.loop.call_later(
            min(hub.heartbeat_seconds, hub.lifetime_seconds), self._beat
        )

    def begin(self) -> None:
        self.body.on_end = self._forget
        self.body.on_drain = self.push
        self._feed.add(self)
        before = self.position
        self.push()
        if self.position == before and not self.body.ended:
            self._write(Page(before, before))  # nothing to deliver: say where the reader stands

    def _forget(self) -> None:
        self._feed.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        self._forget()
        self.body.end()

    def push(self) -> None:
        """Writes everything there is, as far as the client can take it."""
        while not self.body.is_blocked and not self.body.ended:
            page = self._feed.next_page(self.position, self.bytes_max)
            if page is None:
                self.end_if_trimmed()
                break
            self._write(page)

    def end_if_trimmed(self) -> None:
        """A snapshot replaced what this reader has not read yet: coming again it hears 410."""
        if self.position.ordinal < self._feed.stream.log.first_ordinal:
            self.end()

    def _write(self, page: Page) -> None:
        cursor = max(self.cursor, current_cursor(self._feed.hub.clock.now_ms()))
        chunk, data = self._feed.frame(page, cursor)
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
        if not _splits_character(stream, page.start, end) or end.byte - page.end.byte > 3:
            return Page(page.start, end)
    return None


def _splits_character(stream: Stream, start: Position, end: Position) -> bool:
    tail = b"".join(stream.log.slices(max(start.byte, end.byte - 3), end.byte))
    return sse.incomplete_utf8_bytes(tail) > 0
