"""What the pipeline's jobs are made from: the catalog and the store, as api/jobs.py wants them."""

from __future__ import annotations

from millstream.formats.jobs import ColdPlace
from millstream.state.records import SWAPS
from millstream.state.swaps import count_swaps
from millstream.tier.catalog import Catalog
from millstream.tier.objects import ColdSettings, ObjectStore


class JobSource:
    """Called on a worker thread."""

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
