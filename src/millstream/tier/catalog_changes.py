"""Which file of the catalog each part of a checkpoint's changes belongs to."""

from __future__ import annotations

from typing import NamedTuple

from millstream.formats.changes import Changes, Replacement
from millstream.formats.layout import ShardLayout
from millstream.formats.runs import Segment


class SegmentUse(NamedTuple):
    segment: Segment
    live_bytes: int  # wire bytes of the runs that are still referred to
    live_runs: int


class SegmentSpan(NamedTuple):
    """What a walk over the runs of a segment finds beyond its SegmentUse."""

    live_rows: int
    first_stream: int
    last_stream: int


class SegmentShare(NamedTuple):
    """What one segment holds of one stream."""

    segment: int  # its number in the file of its shard
    created_ms: int
    runs: int
    messages: int
    size: int  # wire bytes
    last_ordinal: int  # the first message of the last run
    end_ordinal: int


class Decay(NamedTuple):
    """A segment that holds something that no reader may get any more."""

    use: SegmentUse
    since_ms: int
    dead_rows: int

    @property
    def dead_bytes(self) -> int:
        """About: rows are of different sizes."""
        segment = self.use.segment
        return segment.size * self.dead_rows // max(1, segment.rows)


class Garbage(NamedTuple):
    """A segment nothing refers to any more, since this position of the journal."""

    name: str
    size: int
    since_lsn: int


def is_empty(part: Changes) -> bool:
    return not (
        part.streams
        or part.removed
        or part.segments
        or part.replacements
        or part.trims
        or part.records
    )


def split(changes: Changes, shards: int) -> list[Changes]:
    """The part of each shard's file, and at the end that of the root file."""
    shard_of_id = ShardLayout(shards).shard_of_id
    parts = [Changes(changes.lsn, died_ms=changes.died_ms) for _ in range(shards + 1)]
    for row in changes.streams:
        parts[shard_of_id(row.stream_id)].streams.append(row)
    for stream_id in changes.removed:
        parts[shard_of_id(stream_id)].removed.append(stream_id)
    for segment, runs in zip(changes.segments, changes.runs, strict=True):
        parts[segment.shard].segments.append(segment)
        parts[segment.shard].runs.append(runs)
    for replacement in changes.replacements:
        for shard in _shards_of(replacement, shards):
            parts[shard].replacements.append(replacement)
    for trim in changes.trims:
        parts[shard_of_id(trim[0])].trims.append(trim)
    parts[shards].records = changes.records
    return parts


def _shards_of(replacement: Replacement, shards: int) -> set[int]:
    """One without new segments is told to all: only the shard with the old ones will heed it."""
    found = {segment.shard for segment in replacement.segments}
    assert len(found) <= 1, f"a replacement over the shards {found}"
    return found or set(range(shards))
