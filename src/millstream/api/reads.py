"""HEAD, catch-up reads, and what all read modes share: positions, pages, tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.api import arguments
from millstream.api.arguments import Query
from millstream.api.compression import Compression, encoding_header, tag_suffix
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.long_answers import LongAnswers
from millstream.clock import Clock
from millstream.cold.cold_reads import ColdReads
from millstream.engine.engine import Engine
from millstream.errors import InvalidOffset, OffsetGone, StreamError
from millstream.http.encodings import Encoding
from millstream.http.message import Request
from millstream.http.streaming import Sink
from millstream.limits import ANSWER_FIRST_BYTES, PAGE_BYTES, SINGLE_ANSWER_BYTES
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.offsets import (
    BEGINNING_TOKEN,
    NOW_TOKEN,
    START,
    AnyOffset,
    Offset,
    Position,
    decode_offset,
)
from millstream.state.log import Log
from millstream.state.stream import Stream, resolve_in

CACHEABLE = b"cache-control: public, max-age=60, stale-while-revalidate=300\r\n"
CACHEABLE_BY_ONE = CACHEABLE.replace(b"public", b"private")  # who has the key


class Page(NamedTuple):
    """What one answer carries: everything from `start` to `end`, both on message boundaries."""

    start: Position
    end: Position

    @property
    def size(self) -> int:
        return self.end.byte - self.start.byte

    def reaches_tail(self, stream: Stream) -> bool:
        return self.end.ordinal == stream.log.tail_ordinal


def wanted_offset(stream: Stream, token: bytes | None) -> AnyOffset:
    """What a token asks for. Raises InvalidOffset for what is none, OffsetGone for the trimmed."""
    if token == NOW_TOKEN:
        return stream.log.tail
    offset: AnyOffset = START
    if token is not None and token != BEGINNING_TOKEN:
        offset = decode_offset(token)
    if stream.log.first_ordinal and stream.is_trimmed(offset):
        raise OffsetGone(stream.earliest)
    return offset


def locate(log: Log, offset: AnyOffset) -> Position:
    """The position an offset names in a log or window that holds it. Raises InvalidOffset.

    One byte behind a boundary is that boundary: some clients ask for "the next one" so. The number
    of messages says which boundary, so it can be no other one's place.
    """
    position = resolve_in(log, offset)
    if position is None and offset.ordinal is not None and offset.byte:
        position = resolve_in(log, Offset(offset.ordinal, offset.byte - 1))
    if position is None:
        raise InvalidOffset(
            "offset is not a position in this stream; use a value from Stream-Next-Offset"
        )
    return position


def plan_page(log: Log, start: Position, bytes_max: int) -> Page:
    return Page(start, log.page_end(start, bytes_max))


def page_body(log: Log, page: Page, is_json: bool) -> list[bytes | memoryview]:
    """The bytes of a page as they go on the wire, without copying them."""
    parts = log.slices(page.start.byte, page.end.byte)
    if not is_json:
        return parts
    if not parts:
        return [b"[]"]
    parts[-1] = memoryview(parts[-1])[:-1]  # the comma behind the last message
    return [b"[", *parts, b"]"]


def body_bytes(page: Page, is_json: bool) -> int:
    """How long the page's body is: an array has brackets, and no comma behind its last message."""
    if not is_json:
        return page.size
    return page.size + 1 if page.size else 2


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


class Wish(NamedTuple):
    """What a catch-up read asks for."""

    offset: AnyOffset
    bytes_max: int | None  # None: everything up to the tail
    is_now: bool
    compress: bool | None

    def page(self, stream: Stream, log: Log) -> Page:
        """`log` is the stream's own or a window that holds the offset."""
        start = locate(log, self.offset)
        if self.bytes_max is None:
            return Page(start, stream.log.tail)
        return plan_page(log, start, self.bytes_max)


class Reads:
    def __init__(
        self,
        engine: Engine,
        cold_reads: ColdReads,
        clock: Clock,
        store_id: str,
        page_bytes: int,
        compression: Compression,
    ) -> None:
        """`page_bytes` is 0 when a read that does not ask for pages goes to the tail."""
        self.cold_reads = cold_reads
        self.compression = compression
        self._engine = engine
        self._clock = clock
        self._tag_prefix = store_id[:8].encode()
        self.page_bytes = page_bytes or PAGE_BYTES
        self._goes_to_tail = not page_bytes
        self._long_answers = LongAnswers(engine.machine, cold_reads, engine.faults, self._renew)

    def find(self, key: bytes) -> Stream:
        """The stream, its sliding lifetime renewed."""
        now_ms = self._clock.now_ms()
        stream = self._engine.find(key, now_ms)
        if stream.ttl_ms is not None:
            self._engine.lifetimes.renew(stream, now_ms)
        return stream

    def _renew(self, stream: Stream) -> None:
        self._engine.lifetimes.renew(stream, self._clock.now_ms())

    def with_log(
        self,
        request: Request,
        stream: Stream,
        offset: AnyOffset,
        bytes_max: int,
        then: Callable[[Log], None],
    ) -> None:
        """Calls `then` with a log or window that holds the place: now, or once it is loaded.

        When that fails, or when `then` raises a StreamError later, the request is answered so.
        """
        log = self.cold_reads.in_memory(stream, offset, bytes_max)
        if log is not None:
            then(log)
            return

        def loaded(window: Log | StreamError) -> None:
            request.on_disconnect = None
            if isinstance(window, StreamError):
                respond_error(request, window)
                return
            try:
                then(window)
            except StreamError as error:
                respond_error(request, error)

        request.on_disconnect = self.cold_reads.load(stream, offset, bytes_max, loaded)

    def etag(self, stream: Stream, page: Page, encoding: Encoding | None = None) -> bytes:
        """Incarnation, range, closure and coding: never the same for different bytes."""
        return b'"%b-%d:%b:%b%b%b"' % (
            self._tag_prefix,
            stream.stream_id,
            page.start.token.encode(),
            page.end.token.encode(),
            b":c" if stream.closed and page.reaches_tail(stream) else b"",
            tag_suffix(encoding),
        )

    def choose_encoding(
        self, request: Request, stream: Stream, page: Page, wish: bool | None
    ) -> Encoding | None:
        """`wish` is what the request says of its own; False: it wants the page as it is."""
        if wish is False:
            return None
        size = body_bytes(page, stream.is_json)
        return self.compression.choose(request, stream.content_type, size)

    def catch_up(self, request: Request, key: bytes, query: Query) -> None:
        token = query.offset()
        bytes_max = query.max_bytes(self.page_bytes)
        stream = self.find(key)
        offset = wanted_offset(stream, token)
        if bytes_max is None and not self._goes_to_tail:
            bytes_max = self.page_bytes
        wish = Wish(offset, bytes_max, arguments.is_now(token), query.compress())
        if stream.is_in_memory(offset):
            self._respond_page(request, stream, stream.log, wish)
            return

        def respond(log: Log) -> None:
            self._respond_page(request, stream, log, wish)

        window_bytes = ANSWER_FIRST_BYTES if bytes_max is None else bytes_max
        self.with_log(request, stream, offset, window_bytes, respond)

    def _respond_page(self, request: Request, stream: Stream, log: Log, wish: Wish) -> None:
        page = wish.page(stream, log)
        headers = page_headers(stream, page) + self.compression.vary
        encoding = self.choose_encoding(request, stream, page, wish.compress)
        if wish.is_now:
            headers += NO_STORE
        else:
            etag = self.etag(stream, page, encoding)
            headers += CACHEABLE if request.grant is None else CACHEABLE_BY_ONE
            headers += b"etag: " + etag + b"\r\n"
            is_asked = b"if-none-match" in request.headers
            if is_asked and arguments.matches_etag(request.headers, etag):
                request.respond(304, headers)
                return
        if page.size > SINGLE_ANSWER_BYTES or page.end.byte > log.tail_byte:
            self._begin_long_answer(request, stream, log, page, headers, encoding)
        elif encoding is not None:
            body = page_body(log, page, stream.is_json)
            self.compression.respond_encoded(request, headers, body, encoding)
        else:
            request.respond(200, headers, page_body(log, page, stream.is_json))

    def _begin_long_answer(
        self,
        request: Request,
        stream: Stream,
        log: Log,
        page: Page,
        headers: bytes,
        encoding: Encoding | None,
    ) -> None:
        body: Sink
        if encoding is None:
            size = body_bytes(page, stream.is_json)
            body = request.stream(200, headers, size, is_finite=True)
        else:
            body = self.compression.open(request, headers, encoding)
        self._long_answers.begin(body, stream, page.start.byte, page.end.byte, log)

    def head(self, request: Request, key: bytes) -> None:
        stream = self._engine.find(key, self._clock.now_ms())  # HEAD renews nothing
        whole = Page(START, stream.log.tail)
        encoding = self.choose_encoding(request, stream, whole, None)
        etag = self.etag(stream, whole, encoding)
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
        headers += NO_STORE + self.compression.vary + b"etag: " + etag + b"\r\n"
        if encoding is not None:
            headers += encoding_header(encoding)
        not_modified = arguments.matches_etag(request.headers, etag)
        request.respond(304 if not_modified else 200, headers)
