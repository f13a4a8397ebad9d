"""A catalog in dictionaries: what it holds is durable when `merge` returns.

Like the real one it is made of parts, one for each shard and one for what belongs to none, and each
part is changed as a whole: `merge` may be cut short between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.formats.changes import Changes, StreamRow
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.tier.catalog_changes import split


class StorePart:
    def __init__(self) -> None:
        self.lsn = 0
        self.rows: dict[int, StreamRow] = {}
        self.segments: dict[str, Segment] = {}
        self.runs: dict[int, dict[int, tuple[Segment, Run]]] = {}  # by stream, by first ordinal
        self.garbage: set[str] = set()
        self.records: dict[str, bytes] = {}

    def merge(self, changes: Changes) -> None:
        """In the order of docs/formats/catalog.md."""
        if changes.lsn <= self.lsn:
            return
        assert not changes.replacements, "not known here"
        for segment, runs in zip(changes.segments, changes.runs, strict=True):
            assert segment.name not in self.segments
            self.segments[segment.name] = segment
            for run in runs:
                of_stream = self.runs.setdefault(run.stream_id, {})
                assert run.first_ordinal not in of_stream, "two runs begin at the same message"
                of_stream[run.first_ordinal] = segment, run
        for stream_id, ordinal in changes.trims:
            self._keep(stream_id, ordinal)
        for stream_id in changes.removed:
            self.rows.pop(stream_id, None)
            self.runs.pop(stream_id, None)
        for row in changes.streams:
            self.rows[row.stream_id] = row
        assert len({row.path for row in self.rows.values()}) == len(self.rows), "two of one name"
        for gone in self.runs.keys() - self.rows.keys():
            del self.runs[gone]
        self._discard_segments()
        for key, value in changes.records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        self.lsn = changes.lsn

    def _keep(self, stream_id: int, ordinal: int) -> None:
        runs = self.runs.get(stream_id, {})
        self.runs[stream_id] = {k: r for k, r in runs.items() if r[1].end_ordinal > ordinal}

    def _discard_segments(self) -> None:
        used = {segment.name for runs in self.runs.values() for segment, _ in runs.values()}
        self.garbage |= self.segments.keys() - used
        self.segments = {name: self.segments[name] for name in self.segments if name in used}


class MemoryStore:
    def __init__(self, shards: int = 1) -> None:
        self.shards = shards
        self.parts = [StorePart() for _ in range(shards + 1)]

    @property
    def lsn(self) -> int:
        return min(part.lsn for part in self.parts)

    def merge(self, changes: Changes, parts_max: int | None = None) -> None:
        """`parts_max`: the power fails after so many parts."""
        started = max(part.lsn for part in self.parts)
        assert self.lsn == started or changes.lsn == started, "an earlier merge was cut short"
        for part, its_changes in list(zip(self.parts, split(changes, self.shards), strict=True))[
            :parts_max
        ]:
            part.merge(its_changes)

    # What a state machine asks

    def find(self, path: bytes) -> bytes | None:
        found = [row.image for row in self.rows() if row.path == path]
        return found[0] if found else None

    def find_by_id(self, stream_id: int) -> bytes | None:
        row = self.parts[stream_id % self.shards].rows.get(stream_id)
        return None if row is None else row.image

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        listed = sorted(row.path for row in self.rows() if row.listed)
        return iter([path for path in listed if path > first or (inclusive and path == first)])

    def due(self, now_ms: int, limit: int) -> list[StreamId]:
        deadlines = [(r.deadline_ms, r.stream_id) for r in self.rows() if r.deadline_ms is not None]
        return [stream_id for at_ms, stream_id in sorted(deadlines) if at_ms <= now_ms][:limit]

    def next_deadline(self) -> int | None:
        return min((r.deadline_ms for r in self.rows() if r.deadline_ms is not None), default=None)

    # What a restart and a look at everything ask

    def rows(self) -> Iterator[StreamRow]:
        for part in self.parts[:-1]:
            yield from part.rows.values()

    def records(self) -> Iterator[tuple[str, bytes]]:
        return iter(sorted(self.parts[-1].records.items()))

    def runs_of(self, stream_id: int) -> list[tuple[Segment, Run]]:
        of_stream = self.parts[stream_id % self.shards].runs.get(stream_id, {})
        return [of_stream[ordinal] for ordinal in sorted(of_stream)]
