"""Bootstrap: the snapshot and every message behind it in one multipart answer.

The answer is written piece by piece as the client takes it, and ends where the stream ended when it
began: appends and new snapshots meanwhile do not show in it. What was in memory then is kept for
it. What was not is loaded window by window; when that fails, or when a new snapshot made it go away
meanwhile, the connection is dropped, so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import structlog

from millstream.api.arguments import Query
from millstream.api.compression import Compression
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.reads import Reads
from millstream.api.shapes import promoter
from millstream.api.snapshots import no_blob
from millstream.cold.blob_worker import BlobWorker
from millstream.cold.cold_reads import ColdReads
from millstream.errors import InvalidRequest, StreamError
from millstream.formats.blocks import Block
from millstream.http.message import Request
from millstream.http.streaming import Sink
from millstream.limits import (
    BOOTSTRAP_PIECE_BYTES,
    BOOTSTRAP_TURN_PIECES,
    BOOTSTRAP_WINDOW_BYTES,
)
from millstream.protocol.content_types import DEFAULT_CONTENT_TYPE
from millstream.state.log import Log
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream.bootstrap")

_END = b""  # no piece is empty


class Bootstraps:
    def __init__(self, reads: Reads, blobs: BlobWorker) -> None:
        self._reads = reads
        self._blobs = blobs

    def open(self, request: Request, key: bytes, query: Query) -> None:
        if query.one(b"live") is not None:
            raise InvalidRequest("bootstrap is one answer; tail from its Stream-Next-Offset")
        stream = self._reads.find(key)
        bootstrap = Bootstrap(stream, self._reads.cold_reads)
        snapshot = stream.snapshot
        if snapshot is None:
            self._answer(request, stream, bootstrap, b"")
            return

        def loaded(data: bytes | OSError | None) -> None:
            is_true = bootstrap.is_held or stream.snapshot is snapshot
            if isinstance(data, bytes) and is_true:
                self._answer(request, stream, bootstrap, data)
            elif stream.snapshot is not snapshot and not stream.deleted:
                self._open_again(request, key, query)
            else:
                respond_error(request, no_blob(data if isinstance(data, OSError) else None))

        self._blobs.run(lambda: self._blobs.store.load(snapshot.blob), loaded)

    def _open_again(self, request: Request, key: bytes, query: Query) -> None:
        """The snapshot was superseded while it was read: the new one then."""
        try:
            self.open(request, key, query)
        except StreamError as error:
            respond_error(request, error)

    def _answer(
        self, request: Request, stream: Stream, bootstrap: Bootstrap, snapshot: bytes
    ) -> None:
        """The first window before the first byte: a failure can still be told by then."""
        if bootstrap.is_held:
            bootstrap.write_to(request, snapshot, self._reads.compression)
            return

        def loaded(window: Log) -> None:
            bootstrap.add_window(window)
            bootstrap.write_to(request, snapshot, self._reads.compression)

        start = bootstrap.position
        self._reads.with_log(request, stream, start, BOOTSTRAP_WINDOW_BYTES, loaded)


class Collected(NamedTuple):
    """Blocks in order; the bytes that count, counted from where the first block begins."""

    blocks: list[Block]
    start: int
    end: int


class Bootstrap:
    """One stream as it was when this was made."""

    def __init__(self, stream: Stream, cold_reads: ColdReads) -> None:
        snapshot, log = stream.snapshot, stream.log
        # Drawn after the data was written, from 2^128: no message can contain it but by chance.
        self._boundary = b"millstream-" + secrets.token_hex(16).encode()
        self._snapshot_type = snapshot.content_type if snapshot else DEFAULT_CONTENT_TYPE
        self._comma_bytes = 1 if stream.is_json else 0
        self._promote = promoter(stream.rules, log.first_ordinal)
        self._written = log.first_ordinal  # messages
        self._stream = stream
        self._cold_reads = cold_reads
        self.position = log.first  # behind what is written or collected
        self._first_byte = log.first_byte
        self._end = log.tail
        self._collected: list[Collected] = []
        self._collect_held()
        self._separator = self._part_head(stream.content_type)
        closed = b"stream-closed: true\r\n" if stream.closed else b""
        self._headers = (
            b"content-type: multipart/mixed; boundary=%b\r\nstream-snapshot-offset: %b\r\n"
            b"stream-next-offset: %b\r\nstream-up-to-date: true\r\n"
            % (
                self._boundary,
                snapshot.offset.encode() if snapshot else b"-1",
                stream.tail.encode(),
            )
            + closed
            + NO_STORE
        )

    @property
    def is_held(self) -> bool:
        """Whether all that is left to write is collected."""
        return self.position == self._end

    def _part_head(self, content_type: bytes) -> bytes:
        return b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (self._boundary, content_type)

    # Collecting

    def _collect_held(self) -> None:
        """Everything, when the stream's log holds it: no new snapshot can take it away then."""
        if self.position < self._end and self._stream.is_in_memory(self.position):
            self._collect(self._stream.log)

    def add_window(self, window: Log) -> None:
        """The window holds the position."""
        self._collect(window)
        self._collect_held()

    def _collect(self, log: Log) -> None:
        """What this log has from the position on, as far as the answer goes."""
        end = min(self._end, log.tail)
        (_, start), blocks = log.blocks_between(self.position.byte, end.byte)
        self._collected.append(Collected(blocks, self.position.byte - start, end.byte - start))
        self.position = end

    def load(self, done: Callable[[StreamError | None], None]) -> Callable[[], None] | None:
        """Collects what comes next, now or later; what is returned calls it off."""

        def loaded(window: Log | StreamError) -> None:
            if isinstance(window, StreamError):
                done(window)
            else:
                self.add_window(window)
                done(None)

        place = self.position
        window = self._cold_reads.in_memory(self._stream, place, BOOTSTRAP_WINDOW_BYTES)
        if window is None:
            return self._cold_reads.load(self._stream, place, BOOTSTRAP_WINDOW_BYTES, loaded)
        loaded(window)
        return None

    # Writing

    def write_to(self, request: Request, snapshot: bytes, compression: Compression) -> None:
        body: Sink
        headers, size = self._headers + compression.vary, self._end.byte - self._first_byte
        content_type = self._stream.content_type
        encoding = compression.choose(request, content_type, size + len(snapshot))
        if encoding is None:
            body = request.stream(200, headers, is_finite=True)
        else:
            body = compression.open(request, headers, encoding)
        if not body.ended:
            BodyWriter(body, self, snapshot).write()

    def pieces(self, snapshot: bytes) -> Iterator[bytes | None]:
        """The body: the snapshot's part, then the messages in pieces of bounded size.

        None: what comes next has to be loaded.
        """
        yield self._part_head(self._snapshot_type)[2:]
        if snapshot:
            yield snapshot
        while True:
            collected, self._collected = self._collected, []
            while collected:
                yield from self._parts_of(collected.pop(0))
            if self.is_held:
                break
            yield None
        yield b"\r\n--%b--\r\n" % self._boundary

    def _parts_of(self, collected: Collected) -> Iterator[bytes]:
        blocks, start, end = collected
        for block in blocks:
            first = block.count_within(start) if start > 0 else 0
            last = block.count_within(end)
            yield from self._parts(block.data, block.message_ends[first:last], max(start, 0))
            start -= len(block.data)
            end -= len(block.data)

    def _parts(self, data: bytes, ends: Sequence[int], start: int) -> Iterator[bytes]:
        """The parts of one block, a few at a time: tiny messages grow manifold with their heads."""
        comma, separator = self._comma_bytes, self._separator
        parts: list[bytes] = []
        size = 0
        for end in ends:
            message = data[start : end - comma]
            if self._promote is not None:
                message = self._promote(self._written, message)
            self._written += 1
            parts += (separator, message)
            size += len(separator) + end - start
            start = end
            if size >= BOOTSTRAP_PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)


class BodyWriter:
    """Writes pieces as the client takes them; holds one at a time, and at most one window."""

    def __init__(self, body: Sink, bootstrap: Bootstrap, snapshot: bytes) -> None:
        self._body = body
        self._bootstrap = bootstrap
        self._pieces = bootstrap.pieces(snapshot)
        self._is_loading = False
        self._is_next_turn_due = False
        self._call_off: Callable[[], None] | None = None
        body.on_drain = self.write
        body.on_end = self._forget

    def write(self) -> None:
        """As much as the client takes, but not all at once: others want the loop as well."""
        for _ in range(BOOTSTRAP_TURN_PIECES):
            if self._body.ended or self._body.is_blocked or self._is_loading:
                return
            piece = next(self._pieces, _END)
            if piece is None:
                self._is_loading = True
                self._call_off = self._bootstrap.load(self._loaded)
            elif piece == _END:
                self._body.end()
            else:
                self._body.write(piece)
        if not self._is_next_turn_due:
            self._is_next_turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_next_turn_due = False
        self.write()

    def _loaded(self, error: StreamError | None) -> None:
        was_now, self._is_loading = self._call_off is None, False
        self._call_off = None
        if error is not None:
            logger.warning("bootstrap cannot go on", error=error.message)
            self._body.abort()
        elif not was_now:
            self.write()

    def _forget(self) -> None:
        if self._call_off is not None:
            self._call_off()
