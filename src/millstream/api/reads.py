"""HEAD, catch-up reads, and what all read modes share: positions, pages, tags."""

from __future__ import annotations

from typing import NamedTuple

from millstream.api import arguments
from millstream.api.arguments import Query
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidOffset, OffsetGone
from millstream.http.message import Request
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.offsets import (
    BEGINNING_TOKEN,
    NOW_TOKEN,
    START,
    decode_offset,
    encode_offset,
)
from millstream.state.stream import Stream

CACHEABLE = b"cache-control: public, max-age=60, stale-while-revalidate=300\r\n"
NO_STORE = b"cache-control: no-store\r\n"


class Position(NamedTuple):
    ordinal: int
    byte: int

    @property
    def token(self) -> str:
        return encode_offset(self.ordinal, self.byte)


class Page(NamedTuple):
    """What one answer carries: everything from `start` to `end`, both on message boundaries."""

    start: Position
    end: Position

    def reaches_tail(self, stream: Stream) -> bool:
        return self.end.ordinal == stream.log.tail_ordinal


def tail_position(stream: Stream) -> Position:
    return Position(stream.log.tail_ordinal, stream.log.tail_byte)


def locate(stream: Stream, token: bytes | None) -> Position:
    """The position a token names. Raises InvalidOffset when it is none of this stream's."""
    if token is None or token == BEGINNING_TOKEN:
        offset = START
    elif token == NOW_TOKEN:
        return tail_position(stream)
    else:
        offset = decode_offset(token)
    if stream.log.first_ordinal and stream.is_trimmed(offset):
        raise OffsetGone(stream.earliest)
    place = stream.resolve(offset)
    if place is None:
        raise InvalidOffset(
            "offset is not a position in this stream; use a value from Stream-Next-Offset"
        )
    return Position(*place)


def plan_page(stream: Stream, start: Position, bytes_max: int) -> Page:
    return Page(start, Position(*stream.log.page_end(start.ordinal, start.byte, bytes_max)))


def page_body(stream: Stream, page: Page) -> list[bytes | memoryview]:
    """The bytes of a page as they go on the wire, without copying them."""
    parts = stream.log.slices(page.start.byte, page.end.byte)
    if not stream.is_json:
        return parts
    if not parts:
        return [b"[]"]
    parts[-1] = memoryview(parts[-1])[:-1]  # the comma behind the last message
    return [b"[", *parts, b"]"]


def page_headers(stream: Stream, page: Page) -> bytes:
    """Type, next offset, end offset and, where they are true, up-to-date and closed."""
    headers = b"content-type: %b\r\nstream-next-offset: %b\r\nstream-end-offset: %b\r\n" % (
        stream.content_type,
        page.end.token.encode(),
        stream.tail.encode(),
    )
    if page.reaches_tail(stream):
        headers += b"stream-up-to-date: true\r\n"
        if stream.closed:
            headers += b"stream-closed: true\r\n"
    return headers


class Reads:
    def __init__(self, engine: Engine, clock: Clock, store_id: str, page_bytes: int) -> None:
        self._engine = engine
        self._clock = clock
        self._tag_prefix = store_id[:8].encode()
        self.page_bytes = page_bytes

    def find(self, key: bytes) -> Stream:
        """The stream, its sliding lifetime renewed."""
        now_ms = self._clock.now_ms()
        stream = self._engine.find(key, now_ms)
        if stream.ttl_ms is not None:
            self._engine.lifetimes.renew(stream, now_ms)
        return stream

    def etag(self, stream: Stream, page: Page) -> bytes:
        """Incarnation, range and closure: never the same for different content."""
        return b'"%b-%d:%b:%b%b"' % (
            self._tag_prefix,
            stream.stream_id,
            page.start.token.encode(),
            page.end.token.encode(),
            b":c" if stream.closed and page.reaches_tail(stream) else b"",
        )

    def catch_up(self, request: Request, key: bytes, query: Query) -> None:
        token = query.offset()
        bytes_max = query.max_bytes(self.page_bytes)
        stream = self.find(key)
        page = plan_page(stream, locate(stream, token), bytes_max)
        headers = page_headers(stream, page)
        if arguments.is_now(token):
            request.respond(200, headers + NO_STORE, page_body(stream, page))
            return
        etag = self.etag(stream, page)
        headers += CACHEABLE + b"etag: " + etag + b"\r\n"
        if b"if-none-match" in request.headers and arguments.matches_etag(request.headers, etag):
            request.respond(304, headers)
            return
        request.respond(200, headers, page_body(stream, page))

    def head(self, request: Request, key: bytes) -> None:
        stream = self._engine.find(key, self._clock.now_ms())  # HEAD renews nothing
        whole = Page(Position(0, 0), tail_position(stream))
        etag = self.etag(stream, whole)
        headers = b"content-type: %b\r\nstream-next-offset: %b\r\nstream-end-offset: %b\r\n" % (
            stream.content_type,
            stream.tail.encode(),
            stream.tail.encode(),
        )
        if stream.closed:
            headers += b"stream-closed: true\r\n"
        if stream.snapshot is not None:
            headers += b"stream-snapshot-offset: %b\r\n" % stream.snapshot.offset.encode()
            headers += b"stream-earliest-offset: %b\r\n" % stream.earliest.encode()
        if stream.ttl_ms is not None:
            headers += b"stream-ttl: %d\r\n" % (stream.ttl_ms // 1000)
        if stream.expires_at_ms is not None:
            headers += (
                b"stream-expires-at: %b\r\n" % encode_timestamp(stream.expires_at_ms).encode()
            )
        headers += NO_STORE + b"etag: " + etag + b"\r\n"
        not_modified = arguments.matches_etag(request.headers, etag)
        request.respond(304 if not_modified else 200, headers)
