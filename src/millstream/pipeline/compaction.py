"""Compaction in executors: the live runs of many segments become few large segments.

One Spark task is one task of the job. It fetches its list from the server, its rows from the
object store, and brings the new segments and the result there itself. Spark sees a number going
in and one row of counts coming out: nothing of the data passes through the JVM or the driver.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.formats.jobs import JobOffer, TaskInput, TaskResult
from millstream.formats.runs import Run, Segment, segment_name
from millstream.formats.segment import EncodedSegment, SegmentBuilder
from millstream.pipeline.job_client import JobClient
from millstream.pipeline.merge import RowMerge
from millstream.tier.objects import ColdSettings, ObjectStore
from millstream.tier.segments import SegmentReader

KIND = "compact"

_COUNTS = pa.schema(
    [
        ("task", pa.int64()),
        ("segments", pa.int64()),
        ("rows", pa.int64()),
        ("wire_bytes", pa.int64()),
        ("object_bytes", pa.int64()),
        ("seconds", pa.float64()),
        ("cpu_seconds", pa.float64()),
    ]
)
_COUNTS_SQL = (
    "task long, segments long, rows long, wire_bytes long, object_bytes long,"
    " seconds double, cpu_seconds double"
)


def compaction_frame(
    session: SparkSession, client: JobClient, offer: JobOffer, cold: ColdSettings
) -> DataFrame:
    """Running it does the job but for the commit; a row tells the counts of each task."""
    numbers = session.range(0, offer.tasks, 1, numPartitions=offer.tasks)
    rewrite = Rewrite(client.server, offer, cold)
    return numbers.mapInArrow(rewrite.run, _COUNTS_SQL)


class Rewrite:
    """Travels to the executors."""

    def __init__(self, server: str, offer: JobOffer, cold: ColdSettings) -> None:
        self._server = server
        self._job = offer.job
        self._store_id = offer.store_id
        self._shard = offer.shard
        self._created_ms = offer.created_ms
        self._target_bytes = offer.target_bytes
        self._cold = cold

    def run(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield self._rewrite(number)

    def _rewrite(self, number: int) -> pa.RecordBatch:
        started, cpu_started = time.monotonic(), time.process_time()
        client = JobClient(self._server)
        task = client.load_task(self._job, number)
        store = ObjectStore(self._cold)
        result = self.write_segments(task, store)
        client.store_result(self._job, number, result)
        counts = {
            "task": [number],
            "segments": [len(result.segments)],
            "rows": [sum(segment.rows for segment in result.segments)],
            "wire_bytes": [sum(run.size for _, run in task.runs)],
            "object_bytes": [sum(segment.size for segment in result.segments)],
            "seconds": [time.monotonic() - started],
            "cpu_seconds": [time.process_time() - cpu_started],
        }
        return pa.RecordBatch.from_pydict(counts, schema=_COUNTS)

    def write_segments(self, task: TaskInput, store: ObjectStore) -> TaskResult:
        """Every new segment is in the store when this returns."""
        total_bytes = sum(run.size for _, run in task.runs)
        segment_bytes = total_bytes // max(1, round(total_bytes / self._target_bytes))
        reader = SegmentReader(store, cache_bytes=0)
        with ThreadPoolExecutor(1) as uploads:  # one goes up while the next is made
            upload = _Uploads(self._shard, self._created_ms, store, uploads)
            builder, held_bytes = self._builder(), 0
            for table in RowMerge(reader, task):
                builder.add(table)
                held_bytes += table["data"].nbytes
                if held_bytes >= segment_bytes:
                    upload.start(builder.finish())
                    builder, held_bytes = self._builder(), 0
            if held_bytes:
                upload.start(builder.finish())
            return upload.finish()

    def _builder(self) -> SegmentBuilder:
        return SegmentBuilder(self._store_id, self._shard)


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

    def finish(self) -> TaskResult:
        self._wait()
        return TaskResult(self._segments, self._runs)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
