"""How much of a stream lies in segments, counted from the catalog and what it has not heard of yet.

A long history has a million runs: they are counted a few thousand at a time, and what was counted
is kept until the catalog changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from typing import NamedTuple, Protocol

from millstream.formats.layout import StreamId
from millstream.limits import COUNTED_RUNS_AT_ONCE, COUNTED_STREAMS_KEPT
from millstream.state.stream import Stream
from millstream.tier.catalog_changes import SegmentShare


class RunCatalog(Protocol):
    def shares_from(
        self, stream_id: StreamId, after_ordinal: int, limit: int
    ) -> list[SegmentShare]: ...

    def change_of(self, stream_id: StreamId) -> int: ...

    def disk_bytes(self) -> int: ...


class Holdings(NamedTuple):
    """What of a stream's own content is in segments; segments hold other streams too."""

    segments: int = 0
    runs: int = 0
    messages: int = 0
    size: int = 0  # wire bytes, before compression
    newest_ms: int | None = None  # when the newest of the segments was made
    end_ordinal: int = 0  # behind the last message that was counted


NONE = Holdings()


class HoldingsCount:
    """Belongs to the event loop. `catalog` is None for a server that has no cold tier."""

    def __init__(self, catalog: RunCatalog | None) -> None:
        self._catalog = catalog
        self._kept: OrderedDict[StreamId, tuple[int, Holdings]] = OrderedDict()

    def catalog_bytes(self) -> int:
        return 0 if self._catalog is None else self._catalog.disk_bytes()

    def steps(self, stream: Stream) -> Generator[None, None, Holdings]:
        """Each step is a millisecond or two; what it returns is true at that moment."""
        if self._catalog is None:
            return NONE
        stored = yield from self._count_stored(self._catalog, stream.stream_id)
        return _with_fresh(stored, stream)

    def _count_stored(
        self, catalog: RunCatalog, stream_id: StreamId
    ) -> Generator[None, None, Holdings]:
        change = catalog.change_of(stream_id)  # first: what is counted may be newer, never older
        kept = self._kept.get(stream_id)
        if kept is not None and kept[0] == change:
            self._kept.move_to_end(stream_id)
            return kept[1]
        counted, segments, after = NONE, set[int](), -1
        while shares := catalog.shares_from(stream_id, after, COUNTED_RUNS_AT_ONCE):
            counted = _add(counted, segments, shares)
            if sum(share.runs for share in shares) < COUNTED_RUNS_AT_ONCE:
                break
            after = max(share.last_ordinal for share in shares)
            yield
        self._kept[stream_id] = (change, counted)
        if len(self._kept) > COUNTED_STREAMS_KEPT:
            self._kept.popitem(last=False)
        return counted


def _add(counted: Holdings, segments: set[int], shares: list[SegmentShare]) -> Holdings:
    """`segments` are the numbers of those that were met before, and these afterwards."""
    segments.update(share.segment for share in shares)
    newest_ms = max(share.created_ms for share in shares)
    return Holdings(
        len(segments),
        counted.runs + sum(share.runs for share in shares),
        counted.messages + sum(share.messages for share in shares),
        counted.size + sum(share.size for share in shares),
        newest_ms if counted.newest_ms is None else max(newest_ms, counted.newest_ms),
        max(share.end_ordinal for share in shares),
    )


def _with_fresh(stored: Holdings, stream: Stream) -> Holdings:
    """Runs that were published since the last checkpoint. The catalog may have them already, and
    the log not know that yet."""
    fresh = [
        (segment, run)
        for segment, run in stream.log.runs or ()
        if run.end_ordinal > stored.end_ordinal
    ]
    if not fresh:
        return stored
    newest_ms = max(segment.created_ms for segment, _ in fresh)
    return Holdings(
        stored.segments + len({segment.name for segment, _ in fresh}),
        stored.runs + len(fresh),
        stored.messages + sum(run.count for _, run in fresh),
        stored.size + sum(run.size for _, run in fresh),
        newest_ms if stored.newest_ms is None else max(newest_ms, stored.newest_ms),
        fresh[-1][1].end_ordinal,
    )
