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
    InvalidRequest,
    StreamError,
    StreamNotFound,
)
from millstream.formats.blocks import Keys, normal_keys
from millstream.formats.changes import Replacement
from millstream.formats.layout import ShardLayout, StreamId
from millstream.formats.runs import is_run_sound, is_segment_sound
from millstream.protocol import content_types
from millstream.protocol.offsets import Position
from millstream.state.access_keys import AccessKeys
from millstream.state.buckets import Namespace, Retention, split_key
from millstream.state.changes import OpenChanges
from millstream.state.commands import (
    AnyCommand,
    Append,
    AppendEntries,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    NoOp,
    PublishRuns,
    PublishSnapshot,
    ReplaceSegments,
    SetRetention,
    SetRules,
    TouchStream,
    TrimStream,
)
from millstream.state.decisions import (
    bucket_not_found,
    content_torn,
    decide_append,
    decide_existing,
    decide_publish,
    decide_rules_change,
    entry_time_ms,
    fork_places,
    gone,
    has_sound_keys,
    holds_together,
    name_kept_for_forks,
    revision_of,
    rules_changed,
    settle_rules,
)
from millstream.state.horizon import Horizon
from millstream.state.outbox import Outbox
from millstream.state.outcomes import Done, Outcome
from millstream.state.preparation import Preparation
from millstream.state.residents import EMPTY_STORE, Residents, StreamStore
from millstream.state.stream import ForkOrigin, Hinted, Producer, Snapshot, Stream
from millstream.state.subscriptions import Subscriptions
from millstream.state.swaps import Swaps
from millstream.state.system_streams import SystemStreams

_APPENDED = Done.APPENDED  # looking it up in the class takes longer than one thinks


class StateMachine:
    def __init__(
        self, shards: int = 1, store: StreamStore = EMPTY_STORE, *, is_tail_lost: bool = False
    ) -> None:
        self.layout = ShardLayout(shards)
        self.shards = shards
        self.horizon = Horizon()
        self.residents = Residents(store, self.horizon, is_tail_lost=is_tail_lost)
        self.find = self.residents.find
        self.find_by_id = self.residents.find_by_id
        self.look_up = self.residents.look_up
        self.by_id = self.residents.by_id
        self.births = 0  # streams ever created
        self.names = Namespace(store)
        self.shared_blobs: dict[str, int] = {}  # blobs that forks share -> snapshots that are it
        self.outbox = Outbox()  # since the engine last took it
        self.changes = OpenChanges(self.residents, self.names, self.horizon, self.layout)
        self._hot_bytes = self.changes.hot_bytes
        self.swaps = Swaps()
        self.subscriptions = Subscriptions(self)
        self.access = AccessKeys()
        self.system = SystemStreams(self)
        self.prepare = Preparation(self, store).steps
        self._appliers: dict[type, Callable[[Any], Outcome]] = {
            **self.subscriptions.appliers(),
            **self.access.appliers(),
            **self.system.appliers(),
            Append: self.apply_append,
            AppendEntries: self.apply_entries,
            SetRules: self._apply_rules,
            CreateStream: self._apply_create,
            DeleteStream: self._apply_delete,
            TouchStream: self._apply_touch,
            ExpireStream: self._apply_expire,
            NoOp: _apply_no_op,
            CreateBucket: self._apply_create_bucket,
            DeleteBucket: self._apply_delete_bucket,
            PublishSnapshot: self._apply_publish,
            PublishRuns: self._apply_publish_runs,
            ReplaceSegments: self._apply_replace_segments,
            TrimStream: self._apply_trim,
            SetRetention: self._apply_retention,
        }

    def take_outbox(self) -> Outbox:
        """What was brought about since the last call."""
        outbox = self.outbox
        if outbox:
            self.outbox = Outbox()
        return outbox

    def apply(self, command: AnyCommand) -> Outcome:
        return self._appliers[type(command)](command)

    # Create and fork

    def decide_create(self, command: CreateStream) -> Outcome | None:
        """None: this would create the stream."""
        if not command.implies_bucket and not self._has_bucket_of(command.path):
            return bucket_not_found()
        existing = self.find(command.path)
        if existing is not None and not existing.is_expired(command.now_ms):
            return decide_existing(existing, command)
        if existing is not None and existing.forks:
            return name_kept_for_forks(existing)
        if command.fork_from is not None:
            planned = self._plan_fork(command)
            return planned if isinstance(planned, StreamError) else None
        return rules_changed() if command.rules_revision else None

    def _apply_create(self, command: CreateStream) -> Outcome:
        decided = self.decide_create(command)
        if decided is None and not (holds_together(command) and has_sound_keys(command)):
            decided = content_torn()
        if decided is not None:
            return decided
        expired = self.find(command.path)
        stream_id = self.layout.next_id(self.births, command.path)
        stream = Stream(stream_id, command.path, command.content_type, command.now_ms)
        stream.set_lifetime(command.ttl_ms, command.expires_at_ms)
        stream.lifetime_given = command.lifetime_given
        if command.fork_from is not None:
            planned = self._plan_fork(command)
            assert not isinstance(planned, StreamError)
            source, stream.origin, cut = planned
            self.changes.touch(source)
            stream.log = source.log.branch(cut)
            # Its append times do not go back behind those it inherits, whatever the clock says.
            stream.last_write_ms = max(command.now_ms, source.last_write_ms)
            stream.rules = None if source.rules is None else source.rules.as_of(cut.ordinal)
            source.forks += 1
            if source.snapshot is not None:
                stream.snapshot = source.snapshot
                self._share_blob(source.snapshot.blob)
            if not command.lifetime_given:
                stream.set_lifetime(source.ttl_ms, source.expires_at_ms)
        if expired is not None:
            self.changes.note_death(command.now_ms)
            self._remove(expired)
            self.system.note_expired(expired, command.now_ms)
        self._add(stream, command.now_ms)
        if command.count:
            pieces = command.pieces or (command.data,)
            keys = normal_keys(command.keys)
            size = stream.log.append_many(pieces, command.ends, stream.last_write_ms, keys)
            self._count_hot(stream.stream_id, size)
        stream.closed = command.closed
        self.subscriptions.stream_created(stream)
        self.system.note_created(stream, command.now_ms)
        return Done.CREATED

    def add_stream(self, path: bytes, content_type: bytes, now_ms: int) -> Stream:
        """A new one under a name that is free."""
        stream_id = self.layout.next_id(self.births, path)
        stream = Stream(stream_id, path, content_type, now_ms)
        self._add(stream, now_ms)
        return stream

    def _add(self, stream: Stream, now_ms: int) -> None:
        self.births += 1
        self.residents.add(stream)
        self.changes.touch(stream)
        self.names.add(stream.path, stream.stream_id, now_ms)

    def _plan_fork(
        self, command: CreateStream
    ) -> tuple[Stream, ForkOrigin, Position] | StreamError:
        """The source, the origin and the cut, or why there can be none."""
        assert command.fork_from is not None
        source = self.find(command.fork_from)
        if source is None or (source.is_expired(command.now_ms) and not source.deleted):
            return StreamNotFound("the stream named in Stream-Forked-From does not exist")
        if source.deleted:
            return ForkSourceUnavailable("the stream named in Stream-Forked-From is deleted")
        if content_types.essence(command.content_type) != source.essence:
            return ContentTypeMismatch(
                f"a fork keeps its source's content type {source.content_type.decode('latin-1')}"
            )
        places = fork_places(source, command)
        if isinstance(places, StreamError):
            return places
        anchor, cut = places
        if command.count and command.rules_revision != revision_of(source):
            return rules_changed()
        origin = ForkOrigin(source.stream_id, source.path, *anchor, command.fork_sub_offset)
        return source, origin, cut

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
        self.names.remove_bucket(command.name)
        return Done.DELETED

    def _apply_retention(self, command: SetRetention) -> Outcome:
        bucket = self.names.buckets.get(command.bucket)
        if bucket is None:
            return bucket_not_found()
        bucket.retention = Retention(command.age_ms, command.bytes_max)
        self.names.changed_buckets.add(command.bucket)
        return Done.ACCEPTED

    # Snapshots

    def _apply_publish(self, command: PublishSnapshot) -> Outcome:
        stream = self.find_by_id(command.stream_id)
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
        self.changes.touch(stream)
        self._set_snapshot(stream, snapshot)
        self.changes.note_death(command.now_ms)
        self._trim(stream, snapshot.position)
        stream.touched_ms = max(stream.touched_ms, command.now_ms)
        self.outbox.altered.add(stream.stream_id)
        return Done.PUBLISHED

    def _refuse_blob(self, command: PublishSnapshot, outcome: Outcome) -> Outcome:
        """The blob was stored for nothing, unless it is the one that is there already."""
        if not self.has_blob(command.stream_id, command.blob):
            self.outbox.unused_blobs.append(command.blob)
        return outcome

    def _set_snapshot(self, stream: Stream, snapshot: Snapshot | None) -> None:
        """A fork shares its source's; the blob goes with the last that is it."""
        previous, stream.snapshot = stream.snapshot, snapshot
        if previous is not None:
            self._release_blob(previous.blob)

    def _share_blob(self, blob: str) -> None:
        self.shared_blobs[blob] = self.shared_blobs.get(blob, 1) + 1
        self.changes.blobs.add(blob)

    def _release_blob(self, blob: str) -> None:
        """Once shared, it is counted to the end: its name only tells of the first that was it."""
        if blob in self.shared_blobs:
            self.changes.blobs.add(blob)
        uses = self.shared_blobs.pop(blob, 1) - 1
        if uses:
            self.shared_blobs[blob] = uses
        else:
            self.outbox.unused_blobs.append(blob)

    def has_blob(self, stream_id: StreamId, blob: str) -> bool:
        """Whether the blob that this stream published is the snapshot of any. Loads no stream."""
        return blob in self.shared_blobs or self.residents.blob_of(stream_id) == blob

    # Cold content

    def _count_hot(self, stream_id: StreamId, size: int) -> None:
        """So much content more, or less, is in no run yet."""
        self._hot_bytes[self.layout.shard_of_id(stream_id)] += size

    def _trim(self, stream: Stream, first: Position) -> None:
        """Its forks may still need what it no longer shows."""
        stream.log.trim(first)
        if not stream.forks:
            self._let_go(stream)

    def _let_go(self, stream: Stream) -> None:
        """No stream needs what comes before its first message."""
        log = stream.log
        cold_before = log.cold_byte
        log.drop(log.first_byte)
        self._count_hot(stream.stream_id, cold_before - log.cold_byte)
        if log.first_ordinal:
            self.changes.trims[stream.stream_id] = log.first_ordinal

    def _apply_publish_runs(self, command: PublishRuns) -> Outcome:
        """Runs of streams that ended or were trimmed meanwhile are garbage from the start."""
        segment, shard_of_id = command.segment, self.layout.shard_of_id
        if not is_segment_sound(segment, self.shards):
            return InvalidRequest(f"{segment.name} cannot be published as a segment")
        self.changes.add_segment(segment)
        for run in command.runs:
            stream = self.by_id.get(run.stream_id)  # who has unpublished content is in memory
            is_sound = shard_of_id(run.stream_id) == segment.shard and is_run_sound(run)
            if stream is not None and is_sound:
                self.changes.touch(stream)
                if stream.log.publish(command.segment, run):
                    self._hot_bytes[segment.shard] -= run.size
                    self.outbox.altered.add(run.stream_id)
        return Done.PUBLISHED

    def _apply_replace_segments(self, command: ReplaceSegments) -> Outcome:
        """The catalog has nothing to decide: it keeps what is alive of the new runs."""
        is_sound = len(command.segments) == len(command.runs) and all(
            segment.shard == command.shard and is_segment_sound(segment, self.shards)
            for segment in command.segments
        )
        if not is_sound:
            return InvalidRequest("these cannot take the place of other segments")
        conflict = self.swaps.decide(command)
        if conflict is not None:
            for segment in command.segments:  # written for nothing: no run will refer to them
                self.changes.add_segment(segment)
            return conflict
        self.swaps.record(command.old)
        self.changes.replacements.append(Replacement(command.old, command.segments, command.runs))
        return Done.ACCEPTED

    def _apply_trim(self, command: TrimStream) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None or stream.deleted or command.ordinal <= stream.log.first_ordinal:
            return Done.NOTHING
        if command.byte < stream.log.first_byte:
            return Done.NOTHING
        if stream.snapshot is not None:  # readers who start from it need all that follows
            return Done.NOTHING
        log = stream.log
        is_published = command.ordinal <= log.cold_ordinal and command.byte <= log.cold_byte
        first = Position(command.ordinal, command.byte)  # what is published was looked up before
        if not is_published and stream.resolve_unpublished(first) is None:
            return Done.NOTHING
        self.changes.touch(stream)
        self.changes.note_death(command.now_ms)
        self._trim(stream, first)
        self.outbox.altered.add(stream.stream_id)
        return Done.ACCEPTED

    # Append and close

    def apply_append(
        self, command: Append, entry_ms: int | None = None, keys: Keys = None
    ) -> Outcome:
        """`entry_ms` is the messages' append time if it is not that of the write."""
        stream = self.by_id.get(command.stream_id)
        if stream is None:
            stream = self.find_by_id(command.stream_id)
            if stream is None:
                return StreamNotFound("stream does not exist")
        decided = decide_append(stream, command)
        if decided is not None:
            return decided
        data, now_ms = command.data, command.now_ms
        if now_ms < stream.last_write_ms:  # clocks may be set back; append times never go back
            now_ms = stream.last_write_ms
        time_ms = now_ms if entry_ms is None else entry_ms
        is_plain = data and command.count == 1 and not command.ends
        if not is_plain and not holds_together(command):
            return content_torn()
        if stream.epoch != self.changes.epoch:
            self.changes.touch(stream)
        if is_plain or command.count:
            if stream.subscribers or stream.subscribers_as_of != self.subscriptions.version:
                self.subscriptions.stream_grows(stream)
            if is_plain:
                stream.log.append(data, None, time_ms, keys)
                # Not `_count_hot`: every append comes by here, and its two calls take 0.1 µs.
                self._hot_bytes[command.stream_id % self.shards] += len(data)
            else:
                pieces = command.pieces or (data,)
                size = stream.log.append_many(pieces, command.ends, time_ms, keys)
                self._count_hot(command.stream_id, size)
        if command.producer_id is not None or command.stream_seq is not None:
            _record_writer(stream, command)
        if command.closes:
            stream.closed = True
        stream.last_write_ms = now_ms
        if now_ms > stream.touched_ms:
            stream.touched_ms = now_ms
        return _APPENDED

    def apply_entries(self, command: AppendEntries) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None:
            return StreamNotFound("stream does not exist")
        if not has_sound_keys(command):
            return content_torn()
        entry_ms, first = entry_time_ms(stream, command), stream.log.tail_ordinal
        outcome = self.apply_append(command, entry_ms, normal_keys(command.keys))
        if outcome is _APPENDED and command.count:
            if command.hint_ms is not None:
                stream.hinted = Hinted(stream.log.tail_ordinal, entry_ms)
            if stream.rules is not None and stream.rules.touch:
                begun = self.outbox.touched.get(stream.stream_id, (first, first))[0]
                self.outbox.touched[stream.stream_id] = (begun, stream.log.tail_ordinal)
        return outcome

    def _apply_rules(self, command: SetRules) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None or (stream.is_expired(command.now_ms) and not stream.deleted):
            return StreamNotFound("stream does not exist")
        if stream.deleted:
            return gone(stream)
        decided = decide_rules_change(stream, command)
        if decided is not None:
            return decided
        self.changes.touch(stream)
        stream.rules = settle_rules(stream, command)
        self.system.note_rules(stream, command.now_ms)
        self.outbox.changed_rules.append(stream.stream_id)
        return Done.ACCEPTED

    # The end of a stream

    def _apply_delete(self, command: DeleteStream) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None or (stream.is_expired(command.now_ms) and not stream.deleted):
            return StreamNotFound("stream does not exist")
        if stream.deleted:
            return gone(stream)
        self.changes.note_death(command.now_ms)
        self._end(stream)
        self.system.note_deleted(stream, command.now_ms)
        return Done.DELETED

    def _apply_expire(self, command: ExpireStream) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None or stream.deleted or not stream.is_expired(command.now_ms):
            return Done.NOTHING
        self.changes.note_death(command.now_ms)
        self._end(stream)
        self.system.note_expired(stream, command.now_ms)
        return Done.DELETED

    def _apply_touch(self, command: TouchStream) -> Outcome:
        stream = self.find_by_id(command.stream_id)
        if stream is None or command.now_ms <= stream.touched_ms:
            return Done.NOTHING
        self.changes.touch(stream)
        stream.touched_ms = command.now_ms
        return Done.TOUCHED

    def _end(self, stream: Stream) -> None:
        """Hard when it has no forks; else the name stays taken until the last fork is gone."""
        if stream.forks:
            self.outbox.ended.append(stream.stream_id)
            self.changes.touch(stream)
            self._leave_names(stream)
            stream.deleted = True  # its content stays: forks read it
            stream.producers = None
        else:
            self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        """Takes the stream out, and with it every deleted ancestor that was only kept for it.

        A chain of forks may be of any length: this must not call itself.
        """
        last: Stream | None = stream
        while last is not None:
            last = self._take_out(last)

    def _take_out(self, stream: Stream) -> Stream | None:
        """Its source, when that is deleted and no fork needs it any more."""
        self.outbox.ended.append(stream.stream_id)
        self.changes.touch(stream)
        if not stream.deleted:
            self._leave_names(stream)
        self.residents.remove(stream)
        log = stream.log
        self._count_hot(stream.stream_id, log.cold_byte - log.tail_byte)
        self.changes.trims.pop(stream.stream_id, None)
        stream.deleted = True
        if stream.origin is None:
            return None
        source = self.find_by_id(stream.origin.source_id)
        assert source is not None
        self.changes.touch(source)
        source.forks -= 1
        if source.forks:
            return None
        if source.deleted:
            return source
        self._let_go(source)
        return None

    def _leave_names(self, stream: Stream) -> None:
        self.subscriptions.stream_ended(stream)
        self.names.remove(stream.path, stream.stream_id)
        self._set_snapshot(stream, None)


def _apply_no_op(command: NoOp) -> Outcome:
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
