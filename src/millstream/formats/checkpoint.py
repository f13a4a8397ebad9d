"""A checkpoint's bytes: a header block, then blocks, then an end block, each with length and CRC.

    block   kind u8 | length u32 | crc u32 (over kind, length and payload) | payload

Kinds: HEADER (what it covers), DATA (raw bytes of one content block, shared by forks, numbered from
0 in file order), BUCKET and STREAM (MessagePack; buckets come first), KEYS and SUBSCRIPTION
(MessagePack; after the streams), END (how many of each came before).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from millstream.formats.wal import crc32c

HEADER, DATA, STREAM, END, BUCKET = 1, 2, 3, 4, 5
SUBSCRIPTION, KEYS = 20, 21
FORMAT = 1

_LEAD = Struct("<BI")
_CRC = Struct("<I")
BLOCK_HEADER_BYTES = _LEAD.size + _CRC.size


class CheckpointHeader(msgspec.Struct, array_like=True):
    format: int
    store_id: str
    lsn: int  # everything up to and including this record is in here
    next_stream_id: int


class StreamImage(msgspec.Struct, array_like=True):
    """One stream; content blocks are named by the number of their DATA block."""

    stream_id: int
    path: bytes
    content_type: bytes
    created_ms: int
    last_write_ms: int
    ttl_ms: int | None
    expires_at_ms: int | None
    lifetime_given: bool
    touched_ms: int
    closed: bool
    deleted: bool
    forks: int
    origin: tuple[int, bytes, int, int, int] | None
    producers: dict[bytes, tuple[int, int, int, int]] | None
    stream_seq: bytes | None
    blocks: list[
        tuple[int, int, bytes]
    ]  # DATA number, messages, ends as u32 (empty for one message)
    first_ordinal: int = 0
    first_byte: int = 0
    snapshot: tuple[int, int, str, bytes, int, str] | None = None


class BucketImage(msgspec.Struct, array_like=True):
    name: bytes
    created_ms: int


class KeysImage(msgspec.Struct, array_like=True):
    """The secrets behind webhook signatures and wake tokens."""

    signing_seed: bytes
    token_key: bytes


class SubscriptionImage(msgspec.Struct, array_like=True):
    """One subscription; streams are named by key."""

    subscription_id: str
    base_url: str
    created_ms: int
    lease_ttl_ms: int
    pattern: bytes | None
    streams: tuple[bytes, ...]
    webhook_url: str | None
    wake_stream: bytes | None
    description: str | None
    links: list[tuple[bytes, int, int, bool, bool]]  # key, acked ordinal and byte, explicit, glob
    pending: list[bytes]  # keys of links with work, oldest first
    generation: int
    wake_id: str | None
    is_delivered: bool
    holder: str | None
    lease_deadline_ms: int | None
    retries: int
    next_attempt_ms: int


class CheckpointEnd(msgspec.Struct, array_like=True):
    """How many blocks of each kind came before: none may be missing."""

    datas: int
    streams: int
    others: int = 0  # buckets, subscriptions, keys


class DamagedBlock(ValueError):
    """A block does not check out; `position` is its first byte."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem


def encode_block(kind: int, payload: bytes) -> bytes:
    lead = _LEAD.pack(kind, len(payload))
    return lead + _CRC.pack(crc32c(lead + payload)) + payload


def decode_blocks(data: memoryview) -> Iterator[tuple[int, int, bytes]]:
    """(position, kind, payload) of each block; DamagedBlock when one is not sound."""
    position = 0
    while True:
        begin = position + BLOCK_HEADER_BYTES
        if begin > len(data):
            raise DamagedBlock(position, "the file ends before its end block")
        kind, length = _LEAD.unpack_from(data, position)
        (crc,) = _CRC.unpack_from(data, position + _LEAD.size)
        payload = bytes(data[begin : begin + length])
        if len(payload) != length or crc != crc32c(_LEAD.pack(kind, length) + payload):
            raise DamagedBlock(position, "a block's checksum does not match")
        yield position, kind, payload
        if kind == END:
            return
        position = begin + length
