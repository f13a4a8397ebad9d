"""What a checkpoint tells the catalog: everything that changed since the one before.

These values are part of the checkpoint file. New fields go at the end and have a default.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.formats.runs import Run, Segment


class StreamRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One stream, whole. Only the state machine knows what `image` says."""

    stream_id: int
    path: bytes
    deadline_ms: int | None
    listed: bool  # False: deleted, and kept for its forks; it has no deadline
    created_ms: int
    image: bytes


class Replacement(msgspec.Struct, array_like=True):
    """Segments of one shard written anew by the compaction."""

    old: list[str]  # names of segments
    segments: list[Segment]
    runs: list[list[Run]]  # for each of `segments`


class Changes(msgspec.Struct, array_like=True):
    lsn: int  # the journal position that the catalog is true for afterwards
    streams: list[StreamRow] = []  # new or changed
    removed: list[int] = []  # ids of streams that are gone, and their runs with them
    segments: list[Segment] = []  # published by flushes
    runs: list[list[Run]] = []  # for each of `segments`
    replacements: list[Replacement] = []  # in the order of the journal
    trims: list[tuple[int, int]] = []  # stream id, ordinal: runs that end at or before it go
    records: list[tuple[str, bytes | None]] = []  # what belongs to no shard; None deletes


class SegmentUse(NamedTuple):
    segment: Segment
    live_bytes: int  # wire bytes of the runs that are still referred to
    live_runs: int


class SegmentSpan(NamedTuple):
    """What a walk over the runs of a segment finds beyond its SegmentUse."""

    live_rows: int
    first_stream: int
    last_stream: int


def split(changes: Changes, shards: int) -> list[Changes]:
    """The part of each shard's file, and at the end that of the root file."""
    parts = [Changes(changes.lsn) for _ in range(shards + 1)]
    for row in changes.streams:
        parts[row.stream_id % shards].streams.append(row)
    for stream_id in changes.removed:
        parts[stream_id % shards].removed.append(stream_id)
    for segment, runs in zip(changes.segments, changes.runs, strict=True):
        parts[segment.shard].segments.append(segment)
        parts[segment.shard].runs.append(runs)
    for replacement in changes.replacements:
        for shard in _shards_of(replacement, shards):
            parts[shard].replacements.append(replacement)
    for trim in changes.trims:
        parts[trim[0] % shards].trims.append(trim)
    parts[shards].records = changes.records
    return parts


def _shards_of(replacement: Replacement, shards: int) -> set[int]:
    """One without new segments is told to all: only the shard with the old ones will heed it."""
    found = {segment.shard for segment in replacement.segments}
    assert len(found) <= 1, f"a replacement over the shards {found}"
    return found or set(range(shards))
