"""The live runs of many segments become few large segments. Knows nothing of Spark.

Dead messages at the front of a run that lives on are left out where the server says so. What is
left out is told as runs as well, with its checksums: together they are what was there before.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from millstream.formats.jobs import JobOffer, TaskInput, TaskResult
from millstream.formats.runs import Run, Segment, segment_name
from millstream.formats.segment import EncodedSegment, SegmentBuilder
from millstream.pipeline.merge import RowMerge
from millstream.tier.objects import ObjectStore
from millstream.tier.segments import SegmentReader

_Runs = list[tuple[int, Run]]  # each with the index of its segment


class Target(NamedTuple):
    """What the new segments of a job are to be."""

    store_id: str
    shard: int
    created_ms: int
    segment_bytes: int

    @classmethod
    def of(cls, offer: JobOffer) -> Target:
        return cls(offer.store_id, offer.shard, offer.created_ms, offer.target_bytes)

    def builder(self) -> SegmentBuilder:
        return SegmentBuilder(self.store_id, self.shard)


def rewrite(task: TaskInput, store: ObjectStore, target: Target) -> TaskResult:
    """Every new segment is in the store when this returns."""
    reader = SegmentReader(store, cache_bytes=0)
    kept, dead = split_at_cuts(task)
    dropped = _describe(TaskInput(task.segments, dead), reader, target)
    total_bytes = sum(run.size for _, run in kept)
    segment_bytes = total_bytes // max(1, round(total_bytes / target.segment_bytes))
    with ThreadPoolExecutor(1) as uploads:  # one goes up while the next is made
        upload = _Uploads(target.shard, target.created_ms, store, uploads)
        builder, held_bytes = target.builder(), 0
        for table in RowMerge(reader, TaskInput(task.segments, kept)):
            builder.add(table)
            held_bytes += table["data"].nbytes
            if held_bytes >= segment_bytes:
                upload.start(builder.finish())
                builder, held_bytes = target.builder(), 0
        if held_bytes:
            upload.start(builder.finish())
        segments, runs = upload.finish()
    return TaskResult(segments, runs, dropped)


def split_at_cuts(task: TaskInput) -> tuple[_Runs, _Runs]:
    """What is kept and what is left out. Where a run was cut, only rows and counts are right:
    its bytes are known to those who read it."""
    cuts = dict(task.cuts)
    if not cuts:
        return task.runs, []
    kept: _Runs = []
    dead: _Runs = []
    for index, run in task.runs:
        count = min(max(0, cuts.get(run.stream_id, 0) - run.first_ordinal), run.count)
        if count:
            dead.append((index, _part(run, 0, count)))
        if count < run.count:
            kept.append((index, _part(run, count, run.count)))
    return kept, dead


def _part(run: Run, first: int, end: int) -> Run:
    if (first, end) == (0, run.count):
        return run
    ordinal, size = run.first_ordinal + first, run.size * (end - first) // run.count
    place = (run.row_group, run.row + first)
    return Run(run.stream_id, ordinal, run.first_byte, end - first, size, *place, run.crc)


def _describe(task: TaskInput, reader: SegmentReader, target: Target) -> list[Run]:
    """The runs of a segment that is never stored."""
    runs: list[Run] = []
    for table in RowMerge(reader, task) if task.runs else ():
        builder = target.builder()
        builder.add(table)
        runs += builder.finish().runs
    return runs


class _Uploads:
    """Stores segments in the background, at most one at a time."""

    def __init__(
        self, shard: int, created_ms: int, store: ObjectStore, thread: ThreadPoolExecutor
    ) -> None:
        self._shard = shard
        self._created_ms = created_ms
        self._store = store
        self._thread = thread
        self._under_way: Future[None] | None = None
        self._segments: list[Segment] = []
        self._runs: list[list[Run]] = []

    def start(self, encoded: EncodedSegment) -> None:
        self._wait()
        name = segment_name(self._shard, self._created_ms, secrets.token_hex(4))
        self._segments.append(
            Segment(
                name,
                self._shard,
                len(encoded.data),
                encoded.footer_bytes,
                encoded.rows,
                self._created_ms,
            )
        )
        self._runs.append(encoded.runs)
        self._under_way = self._thread.submit(self._store.put, name, encoded.data)

    def finish(self) -> tuple[list[Segment], list[list[Run]]]:
        self._wait()
        return self._segments, self._runs

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
