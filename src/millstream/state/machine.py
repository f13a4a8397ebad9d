"""The state machine: all streams, and the only code that changes them.

The rules are in decisions.py; `apply` asks them and does what they allow. Handlers ask them too, to
answer at once what can never change back; the journal's order settles the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.errors import (
    BucketExists,
    BucketNotEmpty,
    ContentTypeMismatch,
    ForkSourceUnavailable,
    InvalidOffset,
    InvalidRequest,
    OffsetGone,
    StreamError,
    StreamNotFound,
)
from millstream.protocol import content_types
from millstream.protocol.offsets import Offset
from millstream.state.buckets import Namespace, split_key
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    Mark,
    PublishSnapshot,
    TouchStream,
)
from millstream.state.decisions import (
    bucket_not_found,
    cut_past,
    decide_append,
    decide_existing,
    decide_publish,
    gone,
    name_kept_for_forks,
)
from millstream.state.log import Log, decode_ends
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import ForkOrigin, Producer, Snapshot, Stream
from millstream.state.subscriptions import Subscriptions


class StateMachine:
    def __init__(self) -> None:
        self.by_path: dict[bytes, Stream] = {}
        self.by_id: dict[int, Stream] = {}
        self.next_stream_id = 1
        self.names = Namespace()
        self.blob_uses: dict[str, int] = {}  # blob -> snapshots that are it; forks share them
        self.ended: list[int] = []  # streams that ended since the engine last looked
        self.unused_blobs: list[str] = []  # blobs nobody needs since the engine last looked
        self.subscriptions = Subscriptions(self)
        self._appliers: dict[type, Callable[[Any], Outcome]] = {
            **self.subscriptions.appliers(),
            Append: self.apply_append,
            CreateStream: self._apply_create,
            DeleteStream: self._apply_delete,
            TouchStream: self._apply_touch,
            ExpireStream: self._apply_expire,
            Mark: _apply_mark,
            CreateBucket: self._apply_create_bucket,
            DeleteBucket: self._apply_delete_bucket,
            PublishSnapshot: self._apply_publish,
        }

    def apply(self, command: AnyCommand) -> Outcome:
        return self._appliers[type(command)](command)

    # Create and fork

    def decide_create(self, command: CreateStream) -> Outcome | None:
        """None: this would create the stream."""
        if not command.implies_bucket and not self._has_bucket_of(command.path):
            return bucket_not_found()
        existing = self.by_path.get(command.path)
        if existing is not None and not existing.is_expired(command.now_ms):
            return decide_existing(existing, command)
        if existing is not None and existing.forks:
            return name_kept_for_forks(existing)
        if command.fork_from is not None:
            planned = self._plan_fork(command)
            return planned if isinstance(planned, StreamError) else None
        return None

    def _apply_create(self, command: CreateStream) -> Outcome:
        decided = self.decide_create(command)
        if decided is not None:
            return decided
        expired = self.by_path.get(command.path)
        stream = Stream(self.next_stream_id, command.path, command.content_type, command.now_ms)
        stream.set_lifetime(command.ttl_ms, command.expires_at_ms)
        stream.lifetime_given = command.lifetime_given
        if command.fork_from is not None:
            planned = self._plan_fork(command)
            assert not isinstance(planned, StreamError)
            source, stream.origin, stream.log = planned
            source.forks += 1
            self._set_snapshot(stream, source.snapshot)
            if not command.lifetime_given:
                stream.set_lifetime(source.ttl_ms, source.expires_at_ms)
        if expired is not None:
            self._remove(expired)
        self.next_stream_id += 1
        self.by_path[stream.path] = stream
        self.by_id[stream.stream_id] = stream
        self.names.add(stream.path, command.now_ms)
        if command.count:
            stream.log.append(command.data, decode_ends(command.ends), command.count)
        stream.closed = command.closed
        self.subscriptions.stream_created(stream)
        return Done.CREATED

    def _plan_fork(self, command: CreateStream) -> tuple[Stream, ForkOrigin, Log] | StreamError:
        """The source, the origin and the inherited content, or why there can be none."""
        assert command.fork_from is not None
        source = self.by_path.get(command.fork_from)
        if source is None or (source.is_expired(command.now_ms) and not source.deleted):
            return StreamNotFound("the stream named in Stream-Forked-From does not exist")
        if source.deleted:
            return ForkSourceUnavailable("the stream named in Stream-Forked-From is deleted")
        if content_types.essence(command.content_type) != source.essence:
            return ContentTypeMismatch(
                f"a fork keeps its source's content type {source.content_type.decode('latin-1')}"
            )
        anchor: tuple[int, int] | None = (source.log.tail_ordinal, source.log.tail_byte)
        if command.fork_ordinal is not None or command.fork_byte is not None:
            offset = Offset(command.fork_ordinal, command.fork_byte)
            if source.is_trimmed(offset):
                return OffsetGone(source.earliest)
            anchor = source.resolve(offset)
        if anchor is None:
            return InvalidOffset("Stream-Fork-Offset is not a position in the source stream")
        cut = cut_past(source, anchor, command.fork_sub_offset)
        if cut is None:
            return InvalidRequest("Stream-Fork-Sub-Offset reaches beyond the source's tail")
        origin = ForkOrigin(source.stream_id, source.path, *anchor, command.fork_sub_offset)
        return source, origin, source.log.prefix(*cut)

    # Buckets

    def _has_bucket_of(self, path: bytes) -> bool:
        return split_key(path)[0] in self.names.buckets

    def _apply_create_bucket(self, command: CreateBucket) -> Outcome:
        if command.name in self.names.buckets:
            return BucketExists("bucket exists already")
        self.names.add_bucket(command.name, command.now_ms)
        return Done.CREATED

    def _apply_delete_bucket(self, command: DeleteBucket) -> Outcome:
        bucket = self.names.buckets.get(command.name)
        if bucket is None:
            return bucket_not_found()
        if bucket.streams:
            return BucketNotEmpty(f"bucket still has {bucket.streams} streams; delete them first")
        del self.names.buckets[command.name]
        return Done.DELETED

    # Snapshots

    def _apply_publish(self, command: PublishSnapshot) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None or (stream.is_expired(command.now_ms) and not stream.deleted):
            return self._refuse_blob(command, StreamNotFound("stream does not exist"))
        if stream.deleted:
            return self._refuse_blob(command, gone(stream))
        decided = decide_publish(stream, command)
        if decided is not None:
            return self._refuse_blob(command, decided)
        snapshot = Snapshot(
            command.ordinal,
            command.byte,
            command.blob,
            command.content_type,
            command.size,
            command.digest,
        )
        self._set_snapshot(stream, snapshot)
        stream.log.trim(command.ordinal, command.byte)
        stream.touched_ms = max(stream.touched_ms, command.now_ms)
        return Done.PUBLISHED

    def _refuse_blob(self, command: PublishSnapshot, outcome: Outcome) -> Outcome:
        """The blob was stored for nothing."""
        if command.blob not in self.blob_uses:
            self.unused_blobs.append(command.blob)
        return outcome

    def _set_snapshot(self, stream: Stream, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.blob_uses[snapshot.blob] = self.blob_uses.get(snapshot.blob, 0) + 1
        previous, stream.snapshot = stream.snapshot, snapshot
        if previous is not None:
            self.blob_uses[previous.blob] -= 1
            if not self.blob_uses[previous.blob]:
                del self.blob_uses[previous.blob]
                self.unused_blobs.append(previous.blob)

    # Append and close

    def apply_append(self, command: Append) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None:
            return StreamNotFound("stream does not exist")
        decided = decide_append(stream, command)
        if decided is not None:
            return decided
        if command.count:
            ends = decode_ends(command.ends) if command.ends else None
            stream.log.append(command.data, ends, command.count)
            if stream.subscribers is not None:
                self.subscriptions.stream_grew(stream)
        if command.producer_id is not None or command.stream_seq is not None:
            _record_writer(stream, command)
        if command.closes:
            stream.closed = True
        stream.last_write_ms = command.now_ms
        if command.now_ms > stream.touched_ms:
            stream.touched_ms = command.now_ms
        return Done.APPENDED

    # The end of a stream

    def _apply_delete(self, command: DeleteStream) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None or (stream.is_expired(command.now_ms) and not stream.deleted):
            return StreamNotFound("stream does not exist")
        if stream.deleted:
            return gone(stream)
        self._end(stream)
        return Done.DELETED

    def _apply_expire(self, command: ExpireStream) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None or stream.deleted or not stream.is_expired(command.now_ms):
            return Done.NOTHING
        self._end(stream)
        return Done.DELETED

    def _apply_touch(self, command: TouchStream) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None or command.now_ms <= stream.touched_ms:
            return Done.NOTHING
        stream.touched_ms = command.now_ms
        return Done.TOUCHED

    def _end(self, stream: Stream) -> None:
        """Hard when nobody forked it; else the name stays taken until the last fork is gone."""
        if stream.forks:
            self.ended.append(stream.stream_id)
            self._leave_names(stream)
            stream.deleted = True
            stream.log = Log()  # forks hold the blocks they inherited themselves
            stream.producers = None
        else:
            self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        """Takes the stream out, and with it every deleted ancestor that was only kept for it."""
        self.ended.append(stream.stream_id)
        if not stream.deleted:
            self._leave_names(stream)
        del self.by_id[stream.stream_id]
        if self.by_path.get(stream.path) is stream:
            del self.by_path[stream.path]
        stream.deleted = True
        if stream.origin is None:
            return
        source = self.by_id[stream.origin.source_id]
        source.forks -= 1
        if source.deleted and not source.forks:
            self._remove(source)

    def _leave_names(self, stream: Stream) -> None:
        if stream.subscribers is not None:
            self.subscriptions.stream_ended(stream)
        self.names.remove(stream.path)
        self._set_snapshot(stream, None)


def _apply_mark(command: Mark) -> Outcome:
    return Done.NOTHING


def _record_writer(stream: Stream, command: Append) -> None:
    if command.producer_id is not None:
        if stream.producers is None:
            stream.producers = {}
        stream.producers[command.producer_id] = Producer(
            command.producer_epoch,
            command.producer_seq,
            stream.log.tail_ordinal,
            stream.log.tail_byte,
        )
    if command.stream_seq is not None:
        stream.stream_seq = command.stream_seq
