"""Compaction in executors: the live runs of many segments become few large segments.

One Spark task is one task of the job. It fetches its list from the server, its rows from the
object store, and brings the new segments and the result there itself. Spark sees a number going
in and one row of counts coming out: nothing of the data passes through the JVM or the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.formats.jobs import JobOffer, TaskInput, TaskResult
from millstream.pipeline.job_client import JobClient
from millstream.pipeline.rewrite import Target, rewrite
from millstream.tier.objects import ColdSettings, ObjectStore

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
    rewrite = Rewrite(client.server, offer, cold, client.key)
    return numbers.mapInArrow(rewrite.run, _COUNTS_SQL)


class Rewrite:
    """Travels to the executors."""

    def __init__(
        self, server: str, offer: JobOffer, cold: ColdSettings, key: str | None = None
    ) -> None:
        self._server = server
        self._key = key
        self._job = offer.job
        self._target = Target.of(offer)
        self._cold = cold

    def run(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield self._rewrite(number)

    def _rewrite(self, number: int) -> pa.RecordBatch:
        started, cpu_started = time.monotonic(), time.process_time()
        client = JobClient(self._server, key=self._key)
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
        return rewrite(task, store, self._target)
