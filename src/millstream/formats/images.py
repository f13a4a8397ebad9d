"""What is kept of streams, buckets, subscriptions and keys: MessagePack arrays, in field order.

New fields go at the end and have a default, so that an older catalog still reads.
"""

from __future__ import annotations

import msgspec

from millstream.formats.blocks import Keys
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import Position


class StreamImage(msgspec.Struct, array_like=True):
    """One stream without its content: that is in runs and, from `cold` on, in HOT blocks."""

    stream_id: StreamId
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
    origin: tuple[StreamId, bytes, int, int, int] | None
    producers: dict[bytes, tuple[int, int, int, int]] | None
    stream_seq: bytes | None
    snapshot: tuple[int, int, str, bytes, int, str] | None
    first: Position
    own: Position
    cold: Position
    tail: Position
    rules: bytes | None = None  # MessagePack of state.rules.Rules
    hinted: tuple[int, int] = (-1, 0)  # a message's end, its append time if not that of its write


class HotContent(msgspec.Struct, array_like=True):
    """What of one stream was in no run yet."""

    stream_id: StreamId
    blocks: list[tuple[bytes, bytes, bytes | int]]  # data, ends as u32, times as u64 or one for all
    keys: list[Keys] = []  # of each block; empty: no message has one


class BucketImage(msgspec.Struct, array_like=True):
    name: bytes
    created_ms: int
    streams: int = 0
    retention: tuple[int | None, int | None] = (None, None)  # age in ms, bytes


class KeysImage(msgspec.Struct, array_like=True):
    """The secrets behind webhook signatures and wake tokens."""

    signing_seed: bytes
    token_key: bytes


class AccessKeyImage(msgspec.Struct, array_like=True):
    """One access key; of its secret only the SHA-256."""

    key_id: str
    digest: bytes
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None
    name: str = ""


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
