"""The pipeline's jobs under way. In memory only: a restart forgets them, which is harmless.

A job holds its input segments; which of them another job may have at the same time is for its kind
to say. It ends by commit, by being given up, or by silence for its lease. What it uploaded and did
not commit is garbage.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from millstream.clock import Clock
from millstream.errors import JobConflict, JobNotFound
from millstream.jobs.kinds import Plan

LEASE_MS = 600_000  # one task's silence at the worst: it asks, rewrites, and then answers
REMEMBERED = 256  # jobs committed of late: a pipeline that did not hear our answer may ask again


@dataclass
class Job:
    job_id: str
    kind: str
    plan: Plan
    started_ms: int
    seen_ms: int
    results: dict[int, Any] = field(default_factory=dict)  # by task, as the kind's `check` gave it
    is_committing: bool = False

    def task(self, number: int) -> bytes:
        """Encoded. Raises JobNotFound."""
        tasks = self.plan.tasks
        if not 0 <= number < len(tasks):
            raise JobNotFound(f"job {self.job_id} has tasks 0 to {len(tasks) - 1}")
        return tasks[number]

    def results_but(self, number: int) -> dict[int, Any]:
        """Of all other tasks, as far as they are there."""
        return {task: result for task, result in self.results.items() if task != number}


class JobTable:
    """Used on the loop only."""

    def __init__(self, clock: Clock, lease_ms: int = LEASE_MS) -> None:
        self._clock = clock
        self.lease_ms = lease_ms
        self._jobs: dict[str, Job] = {}
        self._committed: deque[str] = deque(maxlen=REMEMBERED)

    def start(self, kind: str, plan: Plan) -> Job:
        now_ms = self._clock.now_ms()
        job = Job(secrets.token_hex(8), kind, plan, now_ms, now_ms)
        self._jobs[job.job_id] = job
        return job

    def find(self, job_id: str) -> Job:
        """Renews the lease. Raises JobNotFound."""
        self._expire()
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id}; it ended, or the server was restarted")
        job.seen_ms = self._clock.now_ms()
        return job

    def put_result(self, job: Job, number: int, result: Any) -> None:
        """The last one wins: a task may be run twice."""
        if job.is_committing:
            raise JobConflict(f"job {job.job_id} is being committed")
        job.results[number] = result

    def begin_commit(self, job: Job) -> list[Any]:
        """The results in order; from here on the lease does not run out."""
        missing = [k for k in range(len(job.plan.tasks)) if k not in job.results]
        if missing:
            raise JobConflict(f"job {job.job_id} has no result of task {missing[0]} yet")
        if job.is_committing:
            raise JobConflict(f"job {job.job_id} is being committed")
        job.is_committing = True
        return [job.results[k] for k in range(len(job.plan.tasks))]

    def stop_commit(self, job: Job) -> None:
        """It did not happen, and may be tried again."""
        job.is_committing = False
        job.seen_ms = self._clock.now_ms()

    def give_up(self, job: Job) -> None:
        if job.is_committing:
            raise JobConflict(f"job {job.job_id} is being committed")
        self.end(job, committed=False)

    def end(self, job: Job, *, committed: bool) -> None:
        self._jobs.pop(job.job_id, None)
        if committed:
            self._committed.append(job.job_id)

    def is_committed(self, job_id: str) -> bool:
        return job_id in self._committed

    def held(self) -> dict[str, set[str]]:
        """The segments that jobs hold, by the kind of the job."""
        self._expire()
        held: dict[str, set[str]] = {}
        for job in self._jobs.values():
            held.setdefault(job.kind, set()).update(each.name for each in job.plan.inputs)
        return held

    def busy_names(self) -> set[str]:
        """Segments that some job reads."""
        return set().union(*self.held().values())

    def oldest_start_ms(self) -> int | None:
        """Segments named with this time or a later one may be a job's that is under way."""
        self._expire()
        return min((job.started_ms for job in self._jobs.values()), default=None)

    def _expire(self) -> None:
        oldest_ms = self._clock.now_ms() - self.lease_ms
        for job in list(self._jobs.values()):
            if job.seen_ms < oldest_ms and not job.is_committing:
                del self._jobs[job.job_id]
