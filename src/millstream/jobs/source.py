"""What jobs are made from: the catalog and the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from millstream.formats.jobs import ColdPlace
from millstream.jobs.compaction import LiveRun
from millstream.state.records import SWAPS
from millstream.state.swaps import count_swaps
from millstream.tier.catalog import Catalog, Decay, SegmentSpan, SegmentUse
from millstream.tier.objects import ColdSettings, ObjectStore


class Source(Protocol):
    """Called on a worker thread. Raises OSError where catalog or store cannot be read."""

    def swaps(self) -> int:
        """How many swaps it has heard of, at least: what is asked for next may be newer."""
        ...

    def segments(self) -> list[SegmentUse]: ...

    def segment_names(self, shard: int) -> set[str]:
        """All that it knows, dead ones too."""
        ...

    def decayed(self) -> Sequence[Decay]:
        """Those that hold dead content, the oldest death first."""
        ...

    def cuts(self, shard: int, names: Sequence[str]) -> Mapping[int, int]:
        """By stream: its messages before this one are dead, though their run lives."""
        ...

    def segment_spans(self, shard: int) -> Mapping[str, SegmentSpan]: ...

    def live_runs(self, names: Sequence[str]) -> Iterator[LiveRun]:
        """Of these segments, in order of stream id and ordinal."""
        ...

    def object_size(self, name: str) -> int | None:
        """Bytes of an object in the store; None when there is none."""
        ...


class JobSource:
    """A Source over a catalog and a store."""

    def __init__(self, catalog: Catalog, objects: ObjectStore) -> None:
        self._catalog = catalog
        self.segments = catalog.segments
        self.segment_names = catalog.segment_names
        self.decayed = catalog.decayed
        self.cuts = catalog.cuts
        self.segment_spans = catalog.segment_spans
        self.live_runs = catalog.live_runs
        self.object_size = objects.size

    def swaps(self) -> int:
        return count_swaps(self._catalog.load_record(SWAPS))


def cold_place(settings: ColdSettings) -> ColdPlace:
    kind = settings.url.partition(":")[0]
    return ColdPlace(kind, settings.url, settings.endpoint, settings.region)
