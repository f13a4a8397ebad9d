"""What a checkpoint changes in the catalog, as one value.

The checkpoint file holds it, and merging it a second time changes nothing: so a crash between the
file and the catalog costs a repetition, nothing else.
"""

from __future__ import annotations

import msgspec

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment


class StreamRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One stream as the catalog finds it: by id, by path, by deadline."""

    stream_id: StreamId
    path: bytes
    deadline_ms: int | None
    listed: bool  # False: deleted, only kept for its forks
    created_ms: int
    image: bytes  # formats.images.StreamImage


class Replacement(msgspec.Struct, array_like=True):
    """New segments that hold all that is alive in the old ones, which it names."""

    old: list[str]
    segments: list[Segment]
    runs: list[list[Run]]  # for each new segment


class Changes(msgspec.Struct, array_like=True):
    """Everything between the last checkpoint and journal position `lsn`."""

    lsn: int
    streams: list[StreamRow] = []  # new or changed, whole
    removed: list[StreamId] = []  # gone with all their runs
    segments: list[Segment] = []  # published by flushes
    runs: list[list[Run]] = []  # for each of these segments
    replacements: list[Replacement] = []  # in journal order
    trims: list[tuple[StreamId, int]] = []  # stream id, ordinal: runs that end at or before it go
    records: list[tuple[str, bytes | None]] = []  # what belongs to no stream; None: gone
    died_ms: int = 0  # when the first content died of which this tells; 0: not known
