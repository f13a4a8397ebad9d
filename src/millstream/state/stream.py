"""One stream: its configuration, its content and what its writers have done."""

from __future__ import annotations

from typing import NamedTuple

from millstream.formats.layout import StreamId
from millstream.protocol import content_types
from millstream.protocol.offsets import AnyOffset, Position, encode_offset
from millstream.state.log import Log
from millstream.state.rules import Rules


class Producer(NamedTuple):
    """What a producer was acknowledged last, and where the stream ended with it."""

    epoch: int
    seq: int
    ordinal: int
    byte: int


class ForkOrigin(NamedTuple):
    """Where a fork came from, as it was asked for."""

    source_id: StreamId
    source_path: bytes
    ordinal: int
    byte: int
    sub_offset: int


class Snapshot(NamedTuple):
    """A blob that stands for every message before its position."""

    ordinal: int
    byte: int
    blob: str  # its name in the blob store
    content_type: bytes
    size: int
    digest: str

    @property
    def position(self) -> Position:
        return Position(self.ordinal, self.byte)

    @property
    def offset(self) -> str:
        return encode_offset(self.ordinal, self.byte)


class Hinted(NamedTuple):
    """The append time of the message that ends at `ordinal`, when it is not that of its write."""

    ordinal: int
    time_ms: int


NO_HINT = Hinted(-1, 0)


class Stream:
    """Mutable, and only ever changed by the state machine (`accessed_ms` by the engine)."""

    __slots__ = (
        "__weakref__",
        "accessed_ms",
        "closed",
        "content_type",
        "created_ms",
        "deleted",
        "epoch",
        "essence",
        "expires_at_ms",
        "forks",
        "hinted",
        "is_json",
        "is_mortal",
        "last_write_ms",
        "lifetime_given",
        "log",
        "origin",
        "path",
        "producers",
        "rules",
        "snapshot",
        "stream_id",
        "stream_seq",
        "subscribers",
        "subscribers_as_of",
        "touched_ms",
        "ttl_ms",
    )

    def __init__(self, stream_id: StreamId, path: bytes, content_type: bytes, now_ms: int) -> None:
        self.stream_id = stream_id  # never used twice: the incarnation of this name
        self.path = path
        self.content_type = content_type
        self.essence = content_types.essence(content_type)
        self.is_json = content_types.is_json(self.essence)
        self.created_ms = now_ms
        self.last_write_ms = now_ms
        self.ttl_ms: int | None = None
        self.expires_at_ms: int | None = None
        self.is_mortal = False  # has a TTL or an expiry
        self.lifetime_given = True  # False: a fork that inherited it
        self.touched_ms = now_ms  # last renewal of a sliding lifetime that is in the journal
        self.accessed_ms = now_ms  # last renewal at all; not part of the replicated state
        self.closed = False
        self.deleted = False  # soft: only kept for its forks
        self.forks = 0
        self.origin: ForkOrigin | None = None
        self.producers: dict[bytes, Producer] | None = None
        self.stream_seq: bytes | None = None
        self.snapshot: Snapshot | None = None
        self.rules: Rules | None = None
        self.hinted = NO_HINT
        self.subscribers: tuple[str, ...] = ()  # subscriptions that follow it
        self.subscribers_as_of = -1  # when this was true: a version of all patterns
        self.epoch = 0  # of the checkpoint that will see its last change
        self.log = Log()

    @property
    def tail(self) -> str:
        return encode_offset(self.log.tail_ordinal, self.log.tail_byte)

    @property
    def last_entry_ms(self) -> int:
        """The append time of its last message, or what the next one's must not be before."""
        ordinal, time_ms = self.hinted
        return time_ms if ordinal == self.log.tail_ordinal else self.last_write_ms

    def set_lifetime(self, ttl_ms: int | None, expires_at_ms: int | None) -> None:
        self.ttl_ms, self.expires_at_ms = ttl_ms, expires_at_ms
        self.is_mortal = ttl_ms is not None or expires_at_ms is not None

    def deadline_ms(self, renewed_ms: int) -> int | None:
        """When the lifetime ends if it was last renewed at `renewed_ms`; None: never."""
        if self.ttl_ms is not None:
            return renewed_ms + self.ttl_ms
        return self.expires_at_ms

    def is_expired(self, now_ms: int) -> bool:
        deadline = self.deadline_ms(self.touched_ms)
        return deadline is not None and now_ms >= deadline

    @property
    def earliest(self) -> str:
        return encode_offset(self.log.first_ordinal, self.log.first_byte)

    def is_trimmed(self, offset: AnyOffset) -> bool:
        """Whether the offset lies before what the stream still holds."""
        ordinal, byte = offset
        if ordinal is not None and ordinal < self.log.first_ordinal:
            return True
        return byte is not None and byte < self.log.first_byte

    def resolve(self, offset: AnyOffset) -> Position | None:
        """The position an offset names, or None when it is no boundary that is in memory."""
        return resolve_in(self.log, offset)

    def resolve_unpublished(self, offset: AnyOffset) -> Position | None:
        """The position an offset names among what is in no run yet.

        What is published may have left memory, here or where the journal is replayed: a command
        that depends on a boundary in it has to bring it along.
        """
        position = resolve_in(self.log, offset)
        if position is None or position.ordinal < self.log.cold_ordinal:
            return None
        return position

    def is_in_memory(self, offset: AnyOffset) -> bool:
        """Whether memory alone tells if the offset is a boundary, and holds what follows."""
        ordinal, byte = offset
        if ordinal is not None:
            return ordinal >= self.log.held_ordinal
        assert byte is not None
        return byte >= self.log.held_byte


def resolve_in(log: Log, offset: AnyOffset) -> Position | None:
    """The boundary an offset names among what this log holds."""
    ordinal, byte = offset
    if ordinal is None:
        assert byte is not None
        ordinal = log.ordinal_at(byte)
        return None if ordinal is None else Position(ordinal, byte)
    if not log.held_ordinal <= ordinal <= log.tail_ordinal:
        return None
    real_byte = log.byte_at(ordinal)
    return Position(ordinal, real_byte) if byte is None or byte == real_byte else None
