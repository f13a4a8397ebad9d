"""Commands: every change to the state, as one self-contained value each.

The journal stores them in this shape (see docs/formats/wal.md). New fields go at the end and have
a default, so that an old log still reads.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from millstream.formats.blocks import Keys
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.state.rules import Rules


class Command(msgspec.Struct, array_like=True, tag_field="kind", gc=False):
    """Base of all commands. `now_ms` is the clock reading that apply goes by."""

    now_ms: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class CreateStream(Command, tag=1):
    """Creates, or forks when `fork_from` is set. Content, closure and fork reference in one."""

    path: bytes
    content_type: bytes
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    data: bytes = b""
    ends: bytes = b""
    count: int = 0
    fork_from: bytes | None = None
    fork_ordinal: int | None = None
    fork_byte: int | None = None
    fork_sub_offset: int = 0
    lifetime_given: bool = True
    implies_bucket: bool = True  # False: the bucket must exist already
    # Where fork_ordinal, fork_byte and fork_sub_offset lead in the source of this id, looked up
    # beforehand because boundaries may be cold: source id, anchor and cut (ordinal, byte each).
    fork_place: tuple[StreamId, int, int, int, int] | None = None
    pieces: tuple[bytes, ...] = ()  # as in Append
    # As in AppendEntries; the rules are those of a fork's source.
    keys: Keys = None
    rules_revision: int = 0


class Append(Command, tag=2):
    """Appends and/or closes; producer and sequence state move with the data or not at all."""

    stream_id: StreamId
    data: bytes = b""
    ends: bytes = b""
    count: int = 0
    content_type: bytes | None = None  # essence; None when there is no body to judge
    closes: bool = False
    producer_id: bytes | None = None
    producer_epoch: int = 0
    producer_seq: int = 0
    stream_seq: bytes | None = None
    # Large content instead of `data`: each piece is some whole messages. `ends` counts through all
    # of them.
    pieces: tuple[bytes, ...] = ()


class AppendEntries(Append, tag=14):
    """An append whose messages have a routing key, a time of their own or rules to keep to.

    Its own command, so that the journal keeps nothing of that for any other.
    """

    keys: Keys = None  # one for all messages, or one each
    hint_ms: int | None = None  # append time, as far as it fits; None: `now_ms`
    rules_revision: int = 0  # of the rules it was admitted under; refused under any other


class SetRules(Command, tag=15):
    """Replaces what the stream asks of its entries. `expected_revision` is that of the rules these
    were made from (0: none), so that of two changes at once one is refused."""

    stream_id: StreamId
    expected_revision: int
    rules: Rules  # `revision` and `boundaries` are settled when it is applied
    begins_version: bool = False  # messages from now on are of `rules.version`
    is_fresh: bool = False  # all messages are of `rules.version`: nothing was there before
    needs_empty: bool = False  # refused once there is a message


class DeleteStream(Command, tag=3):
    stream_id: StreamId


class TouchStream(Command, tag=4):
    """A read renewed a sliding lifetime at `now_ms`."""

    stream_id: StreamId


class ExpireStream(Command, tag=5):
    """Removes the stream if its lifetime is over at `now_ms`."""

    stream_id: StreamId


class NoOp(Command, tag=6):
    """Changes nothing; the last record of a clean stop."""


class CreateBucket(Command, tag=7):
    name: bytes


class DeleteBucket(Command, tag=8):
    name: bytes


class PublishSnapshot(Command, tag=9):
    """Makes a stored blob the stream's snapshot and drops the messages before it."""

    stream_id: StreamId
    ordinal: int
    byte: int
    blob: str
    content_type: bytes
    size: int
    digest: str
    is_boundary: bool = False  # the handler has looked: a message of this stream ends there


class PublishRuns(Command, tag=10):
    """The content of these runs is stored in the segment; it may leave memory."""

    segment: Segment
    runs: list[Run]


class ReplaceSegments(Command, tag=11):
    """The new segments hold all that is alive in the old ones; state/swaps.py decides."""

    shard: int
    old: list[str]
    segments: list[Segment]
    runs: list[list[Run]]  # for each new segment
    swaps_seen: int | None = None  # that the catalog knew in which the old ones were found


class TrimStream(Command, tag=12):
    """Retention: what comes before this boundary is given up."""

    stream_id: StreamId
    ordinal: int
    byte: int


class SetRetention(Command, tag=13):
    """How long and how much a bucket's streams keep; None: all of it."""

    bucket: bytes
    age_ms: int | None = None
    bytes_max: int | None = None


# Subscriptions: tags 20 to 35. Streams are named by key.


class InstallKeys(Command, tag=20):
    """The secrets behind signatures and tokens; the first to be committed are kept for ever."""

    signing_seed: bytes
    token_key: bytes


class CreateSubscription(Command, tag=21):
    """A webhook subscription has `webhook_url`, a pull-wake one `wake_stream`."""

    subscription_id: str
    base_url: str  # where this server was reached; callback URLs are built on it
    lease_ttl_ms: int
    pattern: bytes | None = None
    streams: tuple[bytes, ...] = ()
    webhook_url: str | None = None
    wake_stream: bytes | None = None
    description: str | None = None


class DeleteSubscription(Command, tag=22):
    subscription_id: str


class LinkStreams(Command, tag=23):
    subscription_id: str
    streams: tuple[bytes, ...]


class UnlinkStream(Command, tag=24):
    subscription_id: str
    stream: bytes


class IssueWake(Command, tag=25):
    """Begins a wake if there is work, none is in flight, and it is this generation's turn."""

    subscription_id: str
    generation: int
    wake_id: str
    jitter_permille: int = 0


class AnnounceWake(Command, tag=26):
    """Tries again to write the event of a pull-wake."""

    subscription_id: str
    wake_id: str
    jitter_permille: int = 0


class ReportDelivery(Command, tag=27):
    """What became of a webhook. `done` acknowledges the tails that it told of."""

    subscription_id: str
    wake_id: str
    delivered: bool
    done: bool = False
    tails: tuple[tuple[StreamId, int, int], ...] = ()  # stream_id, ordinal, byte
    jitter_permille: int = 0


class ClaimWake(Command, tag=28):
    """A worker takes the wake; `wake_id` is for the case that there is none in flight yet."""

    subscription_id: str
    worker: str
    wake_id: str
    jitter_permille: int = 0


class AckWake(Command, tag=29):
    """Progress and a sign of life; with `done` the wake is over."""

    subscription_id: str
    wake_id: str
    generation: int
    acks: tuple[tuple[bytes, int | None, int | None], ...] = ()  # key, ordinal, byte
    done: bool = False


class ReleaseWake(Command, tag=30):
    subscription_id: str
    wake_id: str
    generation: int


class ExpireLease(Command, tag=31):
    """Ends the wake if its lease is over at `now_ms`."""

    subscription_id: str
    wake_id: str


# Access keys: tags 40 and 41.


class CreateKey(Command, tag=40):
    """`digest` is the SHA-256 of the secret, which is kept nowhere."""

    key_id: str
    digest: bytes
    scopes: tuple[str, ...]
    expires_ms: int | None = None
    name: str = ""


class RevokeKey(Command, tag=41):
    key_id: str


# System streams: tags 50 and 51.


class KeepSystemStream(Command, tag=50):
    """Creates one of the server's own streams if it is not there. `is_kept` False: the server
    writes nothing to it any more, and what it holds stays."""

    path: bytes
    is_kept: bool = True
    rules: Rules | None = None  # for a new one; None: those of a plain stream


class WriteSystemStream(Command, tag=51):
    """What the server has to say in one of its own streams, as in AppendEntries."""

    path: bytes
    data: bytes
    ends: bytes
    count: int
    keys: Keys = None


AnyCommand = (
    CreateStream
    | Append
    | AppendEntries
    | SetRules
    | DeleteStream
    | TouchStream
    | ExpireStream
    | NoOp
    | CreateBucket
    | DeleteBucket
    | PublishSnapshot
    | PublishRuns
    | ReplaceSegments
    | TrimStream
    | SetRetention
    | InstallKeys
    | CreateSubscription
    | DeleteSubscription
    | LinkStreams
    | UnlinkStream
    | IssueWake
    | AnnounceWake
    | ReportDelivery
    | ClaimWake
    | AckWake
    | ReleaseWake
    | ExpireLease
    | CreateKey
    | RevokeKey
    | KeepSystemStream
    | WriteSystemStream
)

# What is taken while the disk is full: it frees room, or needs next to none.
MAKES_ROOM: frozenset[type[Command]] = frozenset(
    {
        DeleteStream,
        DeleteBucket,
        DeleteSubscription,
        ExpireStream,
        ExpireLease,
        TrimStream,
        SetRetention,
        TouchStream,
        UnlinkStream,
        PublishRuns,
        ReplaceSegments,
        RevokeKey,
        NoOp,
    }
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)

encode_command = _encoder.encode

_NO_PIECES = b"\x90"  # MessagePack's empty array


def _fields_behind_pieces(kind: type[Command]) -> tuple[str, ...]:
    names = kind.__struct_fields__
    return names[names.index("pieces") + 1 :]


_BEHIND = {kind: _fields_behind_pieces(kind) for kind in (Append, AppendEntries, CreateStream)}


def encode_in_parts(command: AnyCommand) -> list[bytes]:
    """Decodes to the same as what `encode_command` gives, but large pieces are not copied."""
    if not isinstance(command, Append | CreateStream) or not command.pieces:
        return [encode_command(command)]
    pieces = command.pieces
    whole = encode_command(msgspec.structs.replace(command, pieces=()))
    behind = b"".join(encode_command(getattr(command, name)) for name in _BEHIND[type(command)])
    assert whole.endswith(_NO_PIECES + behind)
    head = whole[: len(whole) - len(behind) - 1]
    parts = [head + b"\xdd" + len(pieces).to_bytes(4, "big")]
    for piece in pieces:
        parts += (b"\xc6" + len(piece).to_bytes(4, "big"), piece)
    if behind:
        parts.append(behind)
    return parts


def decode_command(payload: bytes) -> AnyCommand:
    """Raises msgspec.DecodeError or ValidationError for bytes that are no command of ours."""
    return _decoder.decode(payload)
