"""Bootstrap: the snapshot and every message behind it in one multipart answer.

The answer is written piece by piece as the client takes it, from blocks that stay as they were when
it began: appends and new snapshots meanwhile do not show in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from millstream.api.arguments import Query
from millstream.api.errors import respond_error
from millstream.api.reads import NO_STORE, Reads
from millstream.engine.blob_worker import BlobWorker
from millstream.errors import InvalidRequest, SnapshotNotFound
from millstream.http.message import Request
from millstream.http.streaming import BodyStream
from millstream.limits import BOOTSTRAP_PIECE_BYTES
from millstream.protocol.content_types import DEFAULT_CONTENT_TYPE
from millstream.state.stream import Stream


class Bootstraps:
    def __init__(self, reads: Reads, blobs: BlobWorker) -> None:
        self._reads = reads
        self._blobs = blobs

    def open(self, request: Request, key: bytes, query: Query) -> None:
        if query.one(b"live") is not None:
            raise InvalidRequest("bootstrap is one answer; tail from its Stream-Next-Offset")
        stream = self._reads.find(key)
        bootstrap = Bootstrap(stream)
        snapshot = stream.snapshot
        if snapshot is None:
            bootstrap.write_to(request, b"")
            return

        def loaded(data: bytes | OSError | None) -> None:
            if isinstance(data, bytes):
                bootstrap.write_to(request, data)
            elif stream.snapshot is not snapshot and not stream.deleted:
                self.open(request, key, query)  # superseded while it was read: the new one then
            else:
                respond_error(request, SnapshotNotFound("the snapshot is not there any more"))

        self._blobs.run(lambda: self._blobs.store.load(snapshot.blob), loaded)


class Bootstrap:
    """One stream as it was when this was made."""

    def __init__(self, stream: Stream) -> None:
        snapshot = stream.snapshot
        # Drawn after the data was written, from 2^128: no message can contain it but by chance.
        self._boundary = b"millstream-" + secrets.token_hex(16).encode()
        self._snapshot_type = snapshot.content_type if snapshot else DEFAULT_CONTENT_TYPE
        self._comma_bytes = 1 if stream.is_json else 0
        self._blocks = stream.log.blocks()
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

    def _part_head(self, content_type: bytes) -> bytes:
        return b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (self._boundary, content_type)

    def write_to(self, request: Request, snapshot: bytes) -> None:
        writer = PieceWriter(request.stream(200, self._headers), self.pieces(snapshot))
        writer.write()

    def pieces(self, snapshot: bytes) -> Iterator[bytes]:
        """The body: the snapshot's part, then the messages in pieces of bounded size."""
        yield self._part_head(self._snapshot_type)[2:]
        if snapshot:
            yield snapshot
        for data, ends in self._blocks:
            yield from self._parts(data, ends)
        yield b"\r\n--%b--\r\n" % self._boundary

    def _parts(self, data: bytes, ends: Sequence[int]) -> Iterator[bytes]:
        """The parts of one block, a few at a time: tiny messages grow manifold with their heads."""
        start, comma, separator = 0, self._comma_bytes, self._separator
        parts: list[bytes] = []
        size = 0
        for end in ends:
            parts += (separator, data[start : end - comma])
            size += len(separator) + end - start
            start = end
            if size >= BOOTSTRAP_PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)


class PieceWriter:
    """Writes pieces as the client takes them; holds one at a time."""

    def __init__(self, body: BodyStream, pieces: Iterator[bytes]) -> None:
        self._body = body
        self._pieces = pieces
        body.on_drain = self.write

    def write(self) -> None:
        while not self._body.ended and not self._body.is_blocked:
            piece = next(self._pieces, None)
            if piece is None:
                self._body.end()
                return
            self._body.write(piece)
