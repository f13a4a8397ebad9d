"""The pipeline's jobs under way. In memory only: a restart forgets them, which is harmless.

A job holds its input segments, so that no two rewrite the same ones. It ends by commit, by being
given up, or by silence for its lease. What it uploaded and did not commit is garbage.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass, field

from millstream.clock import Clock
from millstream.errors import JobConflict, JobNotFound
from millstream.formats.jobs import TaskResult
from millstream.formats.runs import Segment

LEASE_MS = 600_000  # one task's silence at the worst: it asks, rewrites, and then answers
REMEMBERED = 256  # jobs committed of late: who did not hear our answer may ask again


@dataclass
class Job:
    job_id: str
    kind: str
    shard: int
    inputs: list[Segment]
    tasks: list[bytes]  # an encoded TaskInput each
    started_ms: int
    seen_ms: int
    swaps_seen: int = 0  # that the catalog knew when the inputs were chosen
    results: dict[int, TaskResult] = field(default_factory=dict)
    is_committing: bool = False

    @property
    def input_names(self) -> set[str]:
        return {segment.name for segment in self.inputs}

    def task(self, number: int) -> bytes:
        if not 0 <= number < len(self.tasks):
            raise JobNotFound(f"job {self.job_id} has tasks 0 to {len(self.tasks) - 1}")
        return self.tasks[number]

    def names_made(self, *, but_task: int) -> set[str]:
        """Of the new segments of all other tasks."""
        return {
            segment.name
            for number, result in self.results.items()
            if number != but_task
            for segment in result.segments
        }


class JobTable:
    """Used on the loop only."""

    def __init__(self, clock: Clock, lease_ms: int = LEASE_MS) -> None:
        self._clock = clock
        self.lease_ms = lease_ms
        self._jobs: dict[str, Job] = {}
        self._committed: deque[str] = deque(maxlen=REMEMBERED)

    def start(
        self,
        kind: str,
        shard: int,
        inputs: list[Segment],
        tasks: list[bytes],
        swaps_seen: int = 0,
    ) -> Job:
        now_ms = self._clock.now_ms()
        job = Job(secrets.token_hex(8), kind, shard, inputs, tasks, now_ms, now_ms, swaps_seen)
        self._jobs[job.job_id] = job
        return job

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def find(self, job_id: str) -> Job:
        """Renews the lease. Raises JobNotFound."""
        self._expire()
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id}; it ended, or the server was restarted")
        job.seen_ms = self._clock.now_ms()
        return job

    def put_result(self, job: Job, number: int, result: TaskResult) -> None:
        """The last one wins: a task may be run twice."""
        if job.is_committing:
            raise JobConflict(f"job {job.job_id} is being committed")
        job.results[number] = result

    def begin_commit(self, job: Job) -> list[TaskResult]:
        """The results in order; from here on the lease does not run out."""
        missing = [k for k in range(len(job.tasks)) if k not in job.results]
        if missing:
            raise JobConflict(f"job {job.job_id} has no result of task {missing[0]} yet")
        if job.is_committing:
            raise JobConflict(f"job {job.job_id} is being committed")
        job.is_committing = True
        return [job.results[k] for k in range(len(job.tasks))]

    def stop_commit(self, job: Job) -> None:
        """It did not happen, and may be tried again."""
        job.is_committing = False
        job.seen_ms = self._clock.now_ms()

    def end(self, job: Job, *, committed: bool) -> None:
        self._jobs.pop(job.job_id, None)
        if committed:
            self._committed.append(job.job_id)

    def is_committed(self, job_id: str) -> bool:
        return job_id in self._committed

    def busy_names(self) -> set[str]:
        """Segments that some job rewrites."""
        self._expire()
        return {name for job in self._jobs.values() for name in job.input_names}

    def oldest_start_ms(self) -> int | None:
        """Segments named with this time or a later one may be a job's that is under way."""
        self._expire()
        return min((job.started_ms for job in self._jobs.values()), default=None)

    def _expire(self) -> None:
        oldest_ms = self._clock.now_ms() - self.lease_ms
        for job in list(self._jobs.values()):
            if job.seen_ms < oldest_ms and not job.is_committing:
                del self._jobs[job.job_id]
