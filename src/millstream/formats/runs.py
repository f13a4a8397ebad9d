"""Where cold content lies: runs, and the segments that hold them.

These values travel: the journal publishes them, the catalog keeps them, the pipeline reads and
proposes them. New fields go at the end and have a default.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from millstream.formats.blocks import Block
from millstream.formats.key_filters import UNKNOWN_KEYS, hash_key, is_filter_sound, may_hold
from millstream.formats.layout import StreamId
from millstream.limits import STORED_INTEGER_MAX
from millstream.protocol.offsets import Position

SEGMENTS = "segments/"  # where segments lie, below the cold root

_SEGMENT_NAME = re.compile(r"segments/([0-9]{4})/([0-9]{13})-[0-9a-f]{8}\.parquet")


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A contiguous piece of one stream's content inside one row group of one segment.

    Bytes are counted on the wire: for JSON every message has a comma behind it.
    """

    stream_id: StreamId  # who wrote it; a fork reads it through its origin
    first_ordinal: int
    first_byte: int
    count: int  # messages, at least one
    size: int  # wire bytes
    row_group: int
    row: int  # of the first message, within the row group
    crc: int  # CRC32C of the wire bytes
    first_ms: int = 0  # append time of the first message; 0: not known
    last_ms: int = 0  # of the last one
    keys: bytes = UNKNOWN_KEYS  # filter of the routing keys in it (key_filters.py)

    @property
    def first(self) -> Position:
        return Position(self.first_ordinal, self.first_byte)

    @property
    def end(self) -> Position:
        return Position(self.end_ordinal, self.end_byte)

    @property
    def end_ordinal(self) -> int:
        return self.first_ordinal + self.count

    @property
    def end_byte(self) -> int:
        return self.first_byte + self.size


class Segment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One Parquet object. Its name is never used twice, and its bytes never change."""

    name: str  # key in the object store, below the configured prefix
    shard: int
    size: int  # bytes of the object
    footer_bytes: int  # from the start of the footer to the end of the object
    rows: int
    created_ms: int


class SegmentName(NamedTuple):
    shard: int
    created_ms: int


def segment_folder(shard: int) -> str:
    return f"{SEGMENTS}{shard:04d}/"


def segment_name(shard: int, created_ms: int, random_hex: str) -> str:
    """The object name of a segment, below the cold root; `random_hex` has eight digits."""
    return f"{segment_folder(shard)}{created_ms:013d}-{random_hex}.parquet"


def parse_segment_name(name: str) -> SegmentName | None:
    """None: not the name of a segment."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else SegmentName(int(match[1]), int(match[2]))


def is_run_sound(run: Run) -> bool:
    """Whether every table can keep it."""
    return (
        run.count > 0
        and run.size >= 0
        and run.first_ordinal >= 0
        and run.first_byte >= 0
        and run.end_ordinal <= STORED_INTEGER_MAX
        and run.end_byte <= STORED_INTEGER_MAX
        and 0 <= run.row_group <= STORED_INTEGER_MAX
        and 0 <= run.row <= STORED_INTEGER_MAX
        and 0 <= run.crc <= STORED_INTEGER_MAX
        and 0 <= run.first_ms <= STORED_INTEGER_MAX
        and 0 <= run.last_ms <= STORED_INTEGER_MAX
    )


def is_segment_sound(segment: Segment, shards: int) -> bool:
    return 0 <= segment.shard < shards and all(
        0 <= number <= STORED_INTEGER_MAX
        for number in (segment.size, segment.footer_bytes, segment.rows, segment.created_ms)
    )


def index_problem(run: Run, block: Block) -> str | None:
    """What is not true of the times and the key filter that the run is found by; None: nothing.

    `block` is its content.
    """
    found = (block.first_ms, block.last_ms)
    if run.last_ms and found != (run.first_ms, run.last_ms):
        expected = f"from {run.first_ms} to {run.last_ms}"
        return f"the append times should be {expected}, found {found[0]} to {found[1]}"
    if not is_filter_sound(run.keys):
        return "the filter of its routing keys is damaged"
    keys = set(block.keys if isinstance(block.keys, tuple) else [block.keys]) - {None}
    if not all(may_hold(run.keys, hash_key(key)) for key in keys if key is not None):
        return "the filter of its routing keys does not know all of them"
    return None
