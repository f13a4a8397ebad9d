"""Answers compressed for clients that ask: small ones at once, all others in threads.

What is compressed is another representation of the same thing: it has its own ETag, and every
answer that could have been compressed says `Vary: Accept-Encoding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millstream.engine.off_loop import OffLoop
from millstream.faults import Faults
from millstream.http.encodings import (
    Compressor,
    Encoding,
    choose_encoding,
    compress,
    new_compressor,
)
from millstream.http.message import Body, Request
from millstream.http.streaming import BodyStream
from millstream.limits import (
    ANSWER_PIECE_BYTES_MIN,
    COMPRESS_BYTES_MIN,
    COMPRESS_ON_LOOP_BYTES,
    COMPRESS_PIECE_BYTES,
    COMPRESS_THREADS,
    COMPRESS_WAITING_MAX,
    COMPRESSED_BODIES_MAX,
    SINGLE_ANSWER_BYTES,
)
from millstream.protocol import content_types

VARY = b"vary: accept-encoding\r\n"
ENDLESS = 2**63  # the size of a live answer


class Compression:
    def __init__(self, *, is_on: bool, faults: Faults) -> None:
        self.faults = faults
        self.vary = VARY if is_on else b""
        self.bodies = 0  # compressed piece by piece just now
        self._is_on = is_on
        self._waiting = 0
        self._threads = OffLoop("compress", COMPRESS_THREADS)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads.start(loop)

    def close(self) -> None:
        self._threads.close()

    def choose(self, request: Request, content_type: bytes, size: int) -> Encoding | None:
        """How an answer of this type and size goes to this client; None: as it is."""
        accepted = request.headers.get(b"accept-encoding")
        if accepted is None or not self._is_on or not request.chunked:
            return None
        encoding, takes_identity = choose_encoding(accepted)
        pays = size >= COMPRESS_BYTES_MIN and content_types.is_compressible(content_type)
        if encoding is None or (takes_identity and not pays):
            return None
        return None if self._is_busy(size) else encoding

    def _is_busy(self, size: int) -> bool:
        """Then an answer goes as it is, rather than wait or take memory for one more compressor."""
        if size <= COMPRESS_ON_LOOP_BYTES:
            return False
        return self._waiting >= COMPRESS_WAITING_MAX or self.bodies >= COMPRESSED_BODIES_MAX

    def run(self, work: Callable[[], bytes], done: Callable[[bytes | Exception], None]) -> None:
        """In a thread; calls back on the loop."""
        self._waiting += 1

        def ended(result: bytes | Exception) -> None:
            self._waiting -= 1
            done(result)

        self._threads.run(work, ended)

    def respond(self, request: Request, headers: bytes, body: bytes, content_type: bytes) -> None:
        """A whole answer, status 200, without an ETag."""
        headers += self.vary
        encoding = self.choose(request, content_type, len(body))
        if encoding is None:
            request.respond(200, headers, body)
        elif request.method == b"HEAD":
            request.respond(200, headers + encoding_header(encoding))
        elif len(body) <= SINGLE_ANSWER_BYTES:
            self.respond_encoded(request, headers, body, encoding)
        else:
            _Feeder(self.open(request, headers, encoding), body).write()

    def respond_encoded(
        self, request: Request, headers: bytes, body: Body, encoding: Encoding
    ) -> None:
        """A whole answer, status 200, compressed so."""
        headers += encoding_header(encoding)
        parts = [body] if isinstance(body, bytes | memoryview) else body

        def work() -> bytes:
            return compress(encoding, b"".join(parts))

        def done(result: bytes | Exception) -> None:
            if isinstance(result, Exception):
                self.faults.report("read", result)
                request.connection.abort()
            else:
                request.respond(200, headers, result)

        if sum(map(len, parts)) <= COMPRESS_ON_LOOP_BYTES:
            request.respond(200, headers, work())
        else:
            self.run(work, done)

    def open(
        self, request: Request, headers: bytes, encoding: Encoding, *, is_live: bool = False
    ) -> CompressedBody:
        """A body that is compressed on its way; of a live one, everything goes out at once."""
        headers += encoding_header(encoding)
        body = request.stream(200, headers, is_finite=not is_live)
        return CompressedBody(self, body, new_compressor(encoding), is_live)


def encoding_header(encoding: Encoding) -> bytes:
    return b"content-encoding: %b\r\n" % encoding


def tag_suffix(encoding: Encoding | None) -> bytes:
    return b"" if encoding is None else b"-" + encoding


class CompressedBody:
    """What a BodyStream is to those who write it. Blocked while a thread works on a piece."""

    def __init__(
        self, compression: Compression, body: BodyStream, compressor: Compressor, is_live: bool
    ) -> None:
        self.on_drain: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.ended = body.ended
        self._compression = compression
        self._body = body
        self._compressor = compressor
        self._is_live = is_live
        self._parts: list[bytes | memoryview] = []  # written while a thread worked
        self._is_working = False
        self._is_last = False  # `end` was called
        body.on_drain = self._drained
        body.on_end = self._left
        self._is_counted = not body.ended
        compression.bodies += self._is_counted

    @property
    def is_blocked(self) -> bool:
        return self._is_working or self._body.is_blocked

    def keep_unsent_below(self, bytes_max: int) -> None:
        self._body.keep_unsent_below(bytes_max)

    def write_chunk(self, chunk: bytes, data: bytes) -> None:
        self.write_parts([data])

    def write(self, data: bytes) -> None:
        self.write_parts([data])

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        if not self.ended:
            self._parts += parts
            self._go_on()

    def end(self) -> None:
        if not self.ended:
            self.ended = self._is_last = True
            self._go_on()

    def abort(self) -> None:
        if not self.ended:
            self._close()
            self._body.abort()

    # What goes through the compressor, in order

    def _go_on(self) -> None:
        if self._is_working:
            return
        parts, self._parts = self._parts, []
        is_last, compressor, is_live = self._is_last, self._compressor, self._is_live

        def work() -> bytes:
            ready = compressor.compress(parts)
            if is_last:
                return ready + compressor.finish()
            return ready + compressor.flush() if is_live else ready

        if sum(map(len, parts)) <= COMPRESS_ON_LOOP_BYTES:
            try:
                self._send(work(), is_last)
            except Exception as error:
                self._send(error, is_last)
            return

        def done(result: bytes | Exception) -> None:
            self._is_working = False
            if self._is_counted:
                self._send(result, is_last)
                self._after_work()

        self._is_working = True
        self._compression.run(work, done)

    def _send(self, data: bytes | Exception, is_last: bool) -> None:
        if isinstance(data, Exception):
            self._compression.faults.report("read", data)
            self._close()
            self._body.abort()
            return
        if data:
            self._body.write(data)
        if is_last:
            self._close()
            self._body.end()

    def _after_work(self) -> None:
        if self._parts or (self._is_last and self._is_counted):
            self._go_on()
        elif not self.is_blocked:
            self._drained()

    def _drained(self) -> None:
        if not self._is_working and not self.ended and self.on_drain is not None:
            self.on_drain()

    def _left(self) -> None:
        was_ended = self.ended
        self._close()
        if not was_ended and self.on_end is not None:
            self.on_end()

    def _close(self) -> None:
        """The compressor is of no use any more."""
        self.ended = True
        self._parts = []
        if self._is_counted:
            self._is_counted = False
            self._compression.bodies -= 1


class _Feeder:
    """Writes what is in memory already, a piece at a time."""

    def __init__(self, body: CompressedBody, content: bytes) -> None:
        self._body = body
        self._content = memoryview(content)
        body.keep_unsent_below(ANSWER_PIECE_BYTES_MIN)
        body.on_drain = self.write

    def write(self) -> None:
        while not self._body.ended and not self._body.is_blocked:
            piece, self._content = (
                self._content[:COMPRESS_PIECE_BYTES],
                self._content[COMPRESS_PIECE_BYTES:],
            )
            self._body.write_parts([piece])
            if not self._content:
                self._body.end()
