"""The rules: what would become of a command, given the stream as it is. Changes nothing."""

from __future__ import annotations

from itertools import accumulate
from sys import byteorder

import msgspec
import numpy as np

from millstream.errors import (
    BucketNotFound,
    ContentTypeMismatch,
    InvalidOffset,
    InvalidRequest,
    OffsetGone,
    ProducerEpochStart,
    ProducerFenced,
    ProducerGap,
    RulesChanged,
    SequenceRegression,
    SnapshotConflict,
    StreamClosed,
    StreamError,
    StreamExists,
    StreamGone,
    StreamNotEmpty,
    StreamNotFound,
)
from millstream.limits import BLOCK_BYTES
from millstream.protocol import content_types
from millstream.protocol.offsets import Offset, Position
from millstream.state.commands import (
    Append,
    AppendEntries,
    CreateStream,
    PublishSnapshot,
    SetRules,
)
from millstream.state.log import Log
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from millstream.state.stream import Stream


def bucket_not_found() -> StreamError:
    return BucketNotFound("bucket does not exist; create it with PUT /{bucket}")


def decide_publish(stream: Stream, command: PublishSnapshot) -> Outcome | None:
    """None: this would become the stream's snapshot. Alignment is checked last, as documented."""
    offset = Offset(command.ordinal, command.byte)
    if stream.is_trimmed(offset):
        return OffsetGone(stream.earliest)
    log = stream.log
    if command.ordinal > log.tail_ordinal or command.byte > log.tail_byte:
        return SnapshotConflict(f"the snapshot's offset is beyond the tail {stream.tail}")
    current = stream.snapshot
    if current is not None and current.position == (command.ordinal, command.byte):
        if current.digest == command.digest:
            return Done.EXISTED
        return SnapshotConflict("another snapshot is published at this offset already")
    is_published = command.ordinal <= log.cold_ordinal and command.byte <= log.cold_byte
    is_told = command.is_boundary and is_published  # what is in memory anyway is looked up
    if not is_told and stream.resolve_unpublished(offset) is None:
        return InvalidOffset("the snapshot's offset is not the end of a message")
    return None


def decide_append(stream: Stream, command: Append) -> Outcome | None:
    """None: this would append. The order of the checks is the protocol's."""
    if stream.deleted:
        return gone(stream)
    if stream.is_mortal and stream.is_expired(command.now_ms):
        return StreamNotFound("stream does not exist")
    if command.producer_id is not None:
        decided = _decide_producer(stream, command)
        if decided is not None:
            return decided
    if stream.closed:
        if command.closes and not command.count and command.producer_id is None:
            return Done.ALREADY_CLOSED
        return closed(stream)
    if command.content_type is not None and command.content_type != stream.essence:
        return _type_mismatch(stream)
    if (
        command.stream_seq is not None
        and stream.stream_seq is not None
        and command.stream_seq <= stream.stream_seq
    ):
        return SequenceRegression(
            f"Stream-Seq must be greater than {stream.stream_seq.decode('latin-1')!r}"
        )
    if stream.rules is not None and command.count:
        return _decide_rules(stream.rules, command)
    return None


def _decide_rules(rules: Rules, command: Append) -> Outcome | None:
    """What was admitted under other rules, or none, may not keep to these."""
    revision = command.rules_revision if isinstance(command, AppendEntries) else 0
    return None if revision == rules.revision else rules_changed()


def rules_changed() -> StreamError:
    return RulesChanged("the stream's schema or profile changed at the same moment; send it again")


def _decide_producer(stream: Stream, command: Append) -> Outcome | None:
    assert command.producer_id is not None
    known = stream.producers.get(command.producer_id) if stream.producers else None
    epoch, seq = command.producer_epoch, command.producer_seq
    if known is None:
        expected = 0
    elif epoch < known.epoch:
        return ProducerFenced(
            f"Producer-Epoch {epoch} is stale; the current epoch is {known.epoch}", known.epoch
        )
    elif epoch > known.epoch:
        return None if seq == 0 else ProducerEpochStart("a new Producer-Epoch starts at seq 0")
    elif seq <= known.seq:
        return Done.DUPLICATE
    else:
        expected = known.seq + 1
    if seq == expected:
        return None
    return ProducerGap(f"Producer-Seq {seq} leaves a gap; send {expected} first", expected, seq)


def is_final(decided: Outcome) -> bool:
    """Whether no command still on its way through the journal could turn this answer around."""
    return not isinstance(decided, ProducerGap | ProducerEpochStart)


def gone(stream: Stream) -> StreamError:
    return StreamGone("stream is deleted and only kept for its forks")


def closed(stream: Stream) -> StreamError:
    return StreamClosed("stream is closed; no further appends are possible", stream.tail)


def _type_mismatch(stream: Stream) -> StreamError:
    return ContentTypeMismatch(
        f"this stream's content type is {stream.content_type.decode('latin-1')}"
    )


def name_kept_for_forks(existing: Stream) -> StreamError:
    return StreamExists("a deleted stream of this name is still kept for its forks")


def decide_existing(existing: Stream, command: CreateStream) -> Outcome:
    """The same configuration: existed. Anything else: the name is taken."""
    if existing.deleted:
        return name_kept_for_forks(existing)
    if content_types.essence(command.content_type) != existing.essence:
        return StreamExists(
            f"stream exists with content type {existing.content_type.decode('latin-1')}"
        )
    if not _same_lifetime(existing, command):
        return StreamExists("stream exists with another TTL or expiry")
    if existing.closed != command.closed:
        return StreamExists(f"stream exists and is {'closed' if existing.closed else 'open'}")
    if not _same_origin(existing, command):
        return StreamExists("stream exists and was forked differently")
    return Done.EXISTED


def _same_lifetime(existing: Stream, command: CreateStream) -> bool:
    if not command.lifetime_given:
        return not existing.lifetime_given
    given = (command.ttl_ms, command.expires_at_ms)
    return existing.lifetime_given and given == (existing.ttl_ms, existing.expires_at_ms)


def _same_origin(existing: Stream, command: CreateStream) -> bool:
    """An omitted fork offset matches: the source's tail may have moved since."""
    origin = existing.origin
    if origin is None or command.fork_from is None:
        return origin is None and command.fork_from is None
    return (
        origin.source_path == command.fork_from
        and command.fork_ordinal in (None, origin.ordinal)
        and command.fork_byte in (None, origin.byte)
        and origin.sub_offset == command.fork_sub_offset
    )


def holds_together(command: Append | CreateStream) -> bool:
    """Whether the content is as many messages as it says."""
    if not command.count:
        return True
    if command.pieces or len(command.data) > BLOCK_BYTES:
        return _large_holds_together(command)
    if not command.ends:
        return command.count == 1 and bool(command.data)
    is_counted = len(command.ends) == 4 * command.count
    return is_counted and int.from_bytes(command.ends[-4:], byteorder) == len(command.data)


def _large_holds_together(command: Append | CreateStream) -> bool:
    """Its blocks are cut at the ends, so each of them must be one."""
    pieces = command.pieces or (command.data,)
    borders = list(accumulate(map(len, pieces)))
    if not all(pieces) or (command.pieces and command.data):
        return False
    if not command.ends:
        return command.count == 1
    if len(command.ends) != 4 * command.count:
        return False
    ends = np.frombuffer(command.ends, np.uint32)
    is_ascending = bool(ends[0] > 0) and bool((ends[1:] > ends[:-1]).all())
    if not is_ascending or int(ends[-1]) != borders[-1]:
        return False
    return bool((ends[np.searchsorted(ends, borders)] == borders).all())


def has_sound_keys(command: AppendEntries | CreateStream) -> bool:
    """Whether there is one key for all messages, or one for each."""
    keys = command.keys
    return not isinstance(keys, tuple) or len(keys) == command.count


def entry_time_ms(stream: Stream, command: AppendEntries) -> int:
    """What is hinted at, but neither before the message in front nor after the write itself."""
    written_ms = max(command.now_ms, stream.last_write_ms)
    if command.hint_ms is None:
        return written_ms
    return min(max(command.hint_ms, stream.last_entry_ms), written_ms)


def revision_of(stream: Stream) -> int:
    return 0 if stream.rules is None else stream.rules.revision


def decide_rules_change(stream: Stream, command: SetRules) -> Outcome | None:
    """None: these would become the stream's rules."""
    if command.expected_revision != revision_of(stream):
        return rules_changed()
    if command.needs_empty and stream.log.tail_ordinal:
        return StreamNotEmpty("first schema requires empty stream")
    if not stream.is_json:
        return InvalidRequest("only a stream of application/json can have a schema or a profile")
    return None


def settle_rules(stream: Stream, command: SetRules) -> Rules:
    """The new rules with their revision, and with the boundary that belongs to this moment."""
    before = stream.rules
    boundaries = () if before is None else before.boundaries
    version = command.rules.version
    if command.is_fresh:
        boundaries = ((0, version),) if version else ()
    elif command.begins_version:
        boundaries = (*boundaries, (stream.log.tail_ordinal if version > 1 else 0, version))
    return msgspec.structs.replace(
        command.rules, revision=command.expected_revision + 1, boundaries=boundaries
    )


def content_torn() -> StreamError:
    return InvalidRequest("the messages do not add up to the content")


def fork_places(source: Stream, command: CreateStream) -> tuple[Position, Position] | StreamError:
    """Where a fork leaves its source, as asked for, and where its content is cut."""
    tail = source.log.tail
    if command.fork_sub_offset < 0:
        return InvalidRequest("Stream-Fork-Sub-Offset must be a whole number")
    if command.fork_ordinal is None and command.fork_byte is None:
        if command.fork_sub_offset:
            return beyond_tail()
        return tail, tail
    offset = Offset(command.fork_ordinal, command.fork_byte)
    if source.is_trimmed(offset):
        return OffsetGone(source.earliest)
    place = command.fork_place
    if place is not None and place[0] == source.stream_id:
        anchor, cut = Position(*place[1:3]), Position(*place[3:])
        first = source.log.first
        is_inside = first.ordinal <= anchor.ordinal <= cut.ordinal <= tail.ordinal
        if is_inside and first.byte <= anchor.byte <= cut.byte <= tail.byte:
            return anchor, cut
        return InvalidOffset("Stream-Fork-Offset is not a position in the source stream")
    found = source.resolve_unpublished(offset)
    if found is None:
        return InvalidOffset("Stream-Fork-Offset is not a position in the source stream")
    cut_there = cut_past(source.log, found, command.fork_sub_offset, source.is_json)
    return beyond_tail() if cut_there is None else (found, cut_there)


def beyond_tail() -> StreamError:
    return InvalidRequest("Stream-Fork-Sub-Offset reaches beyond the source's tail")


def cut_past(log: Log, anchor: Position, sub_offset: int, is_json: bool) -> Position | None:
    """The place `sub_offset` messages or bytes past the anchor: a boundary of the fork, which
    counts a message that it cuts through. `log` must hold what lies between the two.
    """
    ordinal, byte = anchor
    if is_json:
        if ordinal + sub_offset > log.tail_ordinal:
            return None
        return Position(ordinal + sub_offset, log.byte_at(ordinal + sub_offset))
    cut = byte + sub_offset
    if cut > log.tail_byte:
        return None
    boundary = log.last_boundary(cut)
    return boundary if boundary.byte == cut else Position(boundary.ordinal + 1, cut)
