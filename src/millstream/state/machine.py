"""The state machine: all streams, and the only code that changes them.

`decide_*` says what would happen and changes nothing; `apply` decides and does. Handlers use the
former to answer at once what can never change back, the journal's order settles the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from millstream.errors import (
    ContentTypeMismatch,
    ForkSourceUnavailable,
    InvalidOffset,
    InvalidRequest,
    ProducerEpochStart,
    ProducerFenced,
    ProducerGap,
    SequenceRegression,
    StreamClosed,
    StreamError,
    StreamExists,
    StreamGone,
    StreamNotFound,
)
from millstream.protocol import content_types
from millstream.protocol.offsets import Offset
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    DeleteStream,
    ExpireStream,
    Mark,
    TouchStream,
)
from millstream.state.log import Log, decode_ends
from millstream.state.stream import ForkOrigin, Producer, Stream


class Done(Enum):
    """What an accepted command did."""

    CREATED = auto()
    EXISTED = auto()
    APPENDED = auto()
    DUPLICATE = auto()
    ALREADY_CLOSED = auto()
    DELETED = auto()
    TOUCHED = auto()
    NOTHING = auto()


Outcome = Done | StreamError  # a refusal is returned, not raised: it is an answer


class StateMachine:
    def __init__(self) -> None:
        self.by_path: dict[bytes, Stream] = {}
        self.by_id: dict[int, Stream] = {}
        self.next_stream_id = 1
        self.ended: list[int] = []  # streams that ended since the engine last looked
        self._appliers: dict[type, Callable[[Any], Outcome]] = {
            Append: self.apply_append,
            CreateStream: self._apply_create,
            DeleteStream: self._apply_delete,
            TouchStream: self._apply_touch,
            ExpireStream: self._apply_expire,
            Mark: _apply_mark,
        }

    def apply(self, command: AnyCommand) -> Outcome:
        return self._appliers[type(command)](command)

    # Create and fork

    def decide_create(self, command: CreateStream) -> Outcome | None:
        """None: this would create the stream."""
        existing = self.by_path.get(command.path)
        if existing is not None and not existing.is_expired(command.now_ms):
            return _compare_with_existing(existing, command)
        if existing is not None and existing.forks:
            return _name_kept_for_forks(existing)
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
            if not command.lifetime_given:
                stream.set_lifetime(source.ttl_ms, source.expires_at_ms)
        if expired is not None:
            self._remove(expired)
        self.next_stream_id += 1
        self.by_path[stream.path] = stream
        self.by_id[stream.stream_id] = stream
        if command.count:
            stream.log.append(command.data, decode_ends(command.ends), command.count)
        stream.closed = command.closed
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
            anchor = source.resolve(Offset(command.fork_ordinal, command.fork_byte))
        if anchor is None:
            return InvalidOffset("Stream-Fork-Offset is not a position in the source stream")
        cut = _cut_past(source, anchor, command.fork_sub_offset)
        if cut is None:
            return InvalidRequest("Stream-Fork-Sub-Offset reaches beyond the source's tail")
        origin = ForkOrigin(source.stream_id, source.path, *anchor, command.fork_sub_offset)
        return source, origin, source.log.prefix(*cut)

    # Append and close

    def apply_append(self, command: Append) -> Outcome:
        stream = self.by_id.get(command.stream_id)
        if stream is None:
            return StreamNotFound("stream does not exist")
        decided = decide_append(stream, command)
        if decided is not None:
            return decided
        if command.producer_id is not None or command.stream_seq is not None:
            _record_writer(stream, command)
        if command.count:
            ends = decode_ends(command.ends) if command.ends else None
            stream.log.append(command.data, ends, command.count)
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
            stream.deleted = True
            stream.log = stream.log.prefix(0, 0)  # forks hold the blocks they inherited themselves
            stream.producers = None
        else:
            self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        """Takes the stream out, and with it every deleted ancestor that was only kept for it."""
        self.ended.append(stream.stream_id)
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


def _apply_mark(command: Mark) -> Outcome:
    return Done.NOTHING


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
    return None


def _record_writer(stream: Stream, command: Append) -> None:
    if command.producer_id is not None:
        if stream.producers is None:
            stream.producers = {}
        stream.producers[command.producer_id] = Producer(
            command.producer_epoch, command.producer_seq
        )
    if command.stream_seq is not None:
        stream.stream_seq = command.stream_seq


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


def _name_kept_for_forks(existing: Stream) -> StreamError:
    return StreamExists("a deleted stream of this name is still kept for its forks")


def _compare_with_existing(existing: Stream, command: CreateStream) -> Outcome:
    """The same configuration: existed. Anything else: the name is taken."""
    if existing.deleted:
        return _name_kept_for_forks(existing)
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


def _cut_past(source: Stream, anchor: tuple[int, int], sub_offset: int) -> tuple[int, int] | None:
    """(messages held, byte) of the place `sub_offset` messages or bytes past the anchor."""
    ordinal, byte = anchor
    log = source.log
    if source.is_json:
        if ordinal + sub_offset > log.tail_ordinal:
            return None
        return ordinal + sub_offset, log.byte_at(ordinal + sub_offset)
    cut = byte + sub_offset
    if cut > log.tail_byte:
        return None
    held, boundary = log.last_boundary(cut)
    return (held, cut) if boundary == cut else (held + 1, cut)
