"""Snapshots: publish, find, read. The blob is stored first; one command then makes it visible."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.own_urls import OwnUrls
from millstream.api.reads import Reads
from millstream.clock import Clock
from millstream.cold.blob_worker import BlobWorker
from millstream.engine.engine import Engine
from millstream.errors import (
    BodyTooLarge,
    ColdUnavailable,
    InvalidOffset,
    InvalidRequest,
    OffsetGone,
    SnapshotConflict,
    SnapshotNotFound,
    StreamError,
)
from millstream.http.message import Request
from millstream.protocol import content_types
from millstream.protocol.offsets import BEGINNING_TOKEN, NOW_TOKEN, Offset, decode_offset
from millstream.state.commands import PublishSnapshot
from millstream.state.decisions import decide_publish
from millstream.state.log import Log
from millstream.state.outcomes import Outcome
from millstream.state.stream import Snapshot, Stream, resolve_in
from millstream.tier.blobs import snapshot_digest
from millstream.tier.object_kinds import snapshot_blob


def is_snapshot_url(url: bytes) -> bool:
    """Whether a body sent here may be as large as a snapshot."""
    parts = url.partition(b"?")[0].split(b"/")
    return len(parts) == 5 and parts[3] == b"snapshot" and parts[1] != b"v1"


class Snapshots:
    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        blobs: BlobWorker,
        clock: Clock,
        own_urls: OwnUrls,
        bytes_max: int,
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._blobs = blobs
        self._clock = clock
        self._own_urls = own_urls
        self._bytes_max = bytes_max

    # Publish

    def publish(self, request: Request, key: bytes, token: bytes) -> None:
        if len(request.body) > self._bytes_max:  # it may be set lower than other bodies may be
            raise BodyTooLarge(f"a snapshot must not exceed {self._bytes_max} bytes")
        offset = _decode_snapshot_offset(token)
        content_type = request.headers.get(b"content-type", b"").strip()
        content_type = content_type or content_types.DEFAULT_CONTENT_TYPE
        if not content_types.is_valid(content_type):
            raise InvalidRequest("Content-Type must be a media type such as application/json")
        stream = self._engine.find(key, self._clock.now_ms())

        def publish(log: Log) -> None:
            self._publish_at(request, stream, _resolve(stream, log, offset), content_type)

        if _needs_look_up(stream, offset):
            self._reads.with_log(request, stream, offset, 0, publish)
        else:
            publish(stream.log)

    def _publish_at(
        self, request: Request, stream: Stream, claim: Claim, content_type: bytes
    ) -> None:
        ordinal, byte, is_boundary = claim
        command = PublishSnapshot(
            self._clock.now_ms(),
            stream.stream_id,
            ordinal,
            byte,
            "",
            content_type,
            len(request.body),
            "",
            is_boundary,
        )
        decided = decide_publish(stream, command)
        if isinstance(decided, StreamError) and not _is_current(stream, ordinal):
            raise decided
        name = snapshot_blob(stream.stream_id, ordinal, secrets.token_hex(8))
        self._blobs.hold(name)

        def store() -> str:
            digest = snapshot_digest(content_type, request.body)
            self._blobs.store.store(name, request.body)
            return digest

        def stored(result: str | OSError) -> None:
            if isinstance(result, OSError):
                self._blobs.release(name)
                away = ColdUnavailable(f"the snapshot could not be stored: {result}")
                respond_error(request, away)
                return
            command.blob, command.digest = name, result
            self._engine.submit(command, self._published, (request, command))

        self._blobs.run(store, stored)

    def _published(self, waiting: tuple[Request, PublishSnapshot], outcome: Outcome) -> None:
        request, command = waiting
        self._blobs.release(command.blob)
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
            return
        offset = b"%016d_%016d" % (command.ordinal, command.byte)
        stream = self._engine.machine.find_by_id(command.stream_id)
        assert stream is not None
        headers = b"stream-snapshot-offset: %b\r\nstream-next-offset: %b\r\n" % (
            offset,
            stream.tail.encode(),
        )
        request.respond(204, headers + NO_STORE)

    # Find and read

    def redirect(self, request: Request, key: bytes) -> None:
        snapshot = _snapshot_of(self._reads.find(key))
        root = self._own_urls.root(request) or ""
        path = request.path.decode("latin-1")
        headers = (
            f"location: {root}{path}/{snapshot.offset}\r\n"
            f"stream-snapshot-offset: {snapshot.offset}\r\n"
        )
        request.respond(307, headers.encode() + NO_STORE)

    def read(self, request: Request, key: bytes, token: bytes) -> None:
        stream = self._reads.find(key)
        snapshot = _named_snapshot(stream, token)

        def loaded(data: bytes | OSError | None) -> None:
            if not isinstance(data, bytes):
                respond_error(request, no_blob(data))
                return
            headers = _snapshot_headers(stream, snapshot)
            self._reads.compression.respond(request, headers, data, snapshot.content_type)

        self._blobs.run(lambda: self._blobs.store.load(snapshot.blob), loaded)

    def delete(self, request: Request, key: bytes, token: bytes) -> None:
        stream = self._engine.find(key, self._clock.now_ms())
        _named_snapshot(stream, token)
        raise SnapshotConflict("the latest snapshot stays; /bootstrap needs it")


def no_blob(found: OSError | None) -> StreamError:
    """Why a snapshot that the stream has cannot be read."""
    if found is None:
        return SnapshotNotFound("the snapshot is superseded")
    return ColdUnavailable(f"the snapshot cannot be read now: {found}")


def _decode_snapshot_offset(token: bytes) -> Offset:
    if token in (BEGINNING_TOKEN, NOW_TOKEN):
        raise InvalidOffset("a snapshot's offset must be a value from Stream-Next-Offset")
    return decode_offset(token)


class Claim(NamedTuple):
    """Where a snapshot is to be published."""

    ordinal: int
    byte: int
    is_boundary: bool  # of the stream: it was looked up. Else the state machine has to


def _is_beyond(stream: Stream, offset: Offset) -> bool:
    ordinal, byte = offset
    return (ordinal or 0) > stream.log.tail_ordinal or (byte or 0) > stream.log.tail_byte


def _needs_look_up(stream: Stream, offset: Offset) -> bool:
    """Whether only content that is not in memory tells if a message ends there."""
    if stream.is_trimmed(offset) or _is_beyond(stream, offset) or stream.is_in_memory(offset):
        return False
    current = stream.snapshot
    return current is None or offset != (current.ordinal, current.byte)


def _resolve(stream: Stream, log: Log, offset: Offset) -> Claim:
    """Where the offset leads in the stream; `log` holds the place if the stream does.

    An offset that was given in one unit only is refused here as publishing there would be.
    """
    ordinal, byte = offset
    position = resolve_in(log, offset)
    if position is not None:
        return Claim(*position, is_boundary=True)
    if ordinal is not None and byte is not None:
        return Claim(ordinal, byte, is_boundary=False)
    if stream.is_trimmed(offset):
        raise OffsetGone(stream.earliest)
    if _is_beyond(stream, offset):
        raise SnapshotConflict(f"the snapshot's offset is beyond the tail {stream.tail}")
    raise InvalidOffset("the snapshot's offset is not the end of a message")


def _is_current(stream: Stream, ordinal: int) -> bool:
    return stream.snapshot is not None and stream.snapshot.ordinal == ordinal


def _snapshot_of(stream: Stream) -> Snapshot:
    if stream.snapshot is None:
        raise SnapshotNotFound("the stream has no snapshot")
    return stream.snapshot


def _named_snapshot(stream: Stream, token: bytes) -> Snapshot:
    """The latest snapshot if the token names it; anything else is not there (any more)."""
    snapshot = _snapshot_of(stream)
    try:
        ordinal, byte = _decode_snapshot_offset(token)
    except InvalidOffset:
        raise SnapshotNotFound("no snapshot is published at this offset") from None
    if ordinal not in (None, snapshot.ordinal) or byte not in (None, snapshot.byte):
        raise SnapshotNotFound("no snapshot is published at this offset (any more)")
    return snapshot


def _snapshot_headers(stream: Stream, snapshot: Snapshot) -> bytes:
    up_to_date = stream.log.tail_ordinal == snapshot.ordinal
    return (
        b"content-type: %b\r\nstream-snapshot-offset: %b\r\nstream-next-offset: %b\r\n"
        b"stream-up-to-date: %b\r\n"
        % (
            snapshot.content_type,
            snapshot.offset.encode(),
            snapshot.offset.encode(),
            b"true" if up_to_date else b"false",
        )
        + NO_STORE
    )
