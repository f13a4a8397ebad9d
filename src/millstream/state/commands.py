"""Commands: every change to the state, as one self-contained value each.

The journal stores them in this shape (see formats/commands.py). New fields go at the end and have
a default, so that an old log still reads.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, array_like=True, tag_field="kind", gc=False):
    """Base of all commands. `now_ms` is the clock reading that apply goes by."""

    now_ms: int


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


class Append(Command, tag=2):
    """Appends and/or closes; producer and sequence state move with the data or not at all."""

    stream_id: int
    data: bytes = b""
    ends: bytes = b""
    count: int = 0
    content_type: bytes | None = None  # essence; None when there is no body to judge
    closes: bool = False
    producer_id: bytes | None = None
    producer_epoch: int = 0
    producer_seq: int = 0
    stream_seq: bytes | None = None


class DeleteStream(Command, tag=3):
    stream_id: int


class TouchStream(Command, tag=4):
    """A read renewed a sliding lifetime at `now_ms`."""

    stream_id: int


class ExpireStream(Command, tag=5):
    """Removes the stream if its lifetime is over at `now_ms`."""

    stream_id: int


class Mark(Command, tag=6):
    """Changes nothing; the last record of a clean stop."""


class CreateBucket(Command, tag=7):
    name: bytes


class DeleteBucket(Command, tag=8):
    name: bytes


class PublishSnapshot(Command, tag=9):
    """Makes a stored blob the stream's snapshot and drops the messages before it."""

    stream_id: int
    ordinal: int
    byte: int
    blob: str
    content_type: bytes
    size: int
    digest: str


AnyCommand = (
    CreateStream
    | Append
    | DeleteStream
    | TouchStream
    | ExpireStream
    | Mark
    | CreateBucket
    | DeleteBucket
    | PublishSnapshot
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)

encode_command = _encoder.encode


def decode_command(payload: bytes) -> AnyCommand:
    """Raises msgspec.DecodeError or ValidationError for bytes that are no command of ours."""
    return _decoder.decode(payload)
