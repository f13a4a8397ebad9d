"""Jobs of all kinds, from the question for one to its commit. api/jobs.py has the requests.

What is long (walks of the catalog, the store) runs on a worker thread; jobs and their results live
on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from millstream.engine.threads import Threads
from millstream.errors import Overloaded
from millstream.faults import Faults
from millstream.formats.jobs import ColdPlace, JobOffer, encode_offer
from millstream.jobs.kinds import Held, JobKind, Plan
from millstream.jobs.table import Job, JobTable

ASKS_MAX = 16  # that wait for their turn to plan; one or two pipelines is what people run


class Jobs:
    """Belongs to the event loop. Methods raise StreamErrors, which are the pipeline's answer, and
    OSErrors: catalog or store cannot be read now, and the same call may be made again."""

    def __init__(
        self,
        kinds: Mapping[str, JobKind[Any, Any]],
        table: JobTable,
        threads: Threads,
        store_id: str,
        cold: ColdPlace,
        faults: Faults,
    ) -> None:
        self.kinds = kinds
        self._table = table
        self._threads = threads
        self._store_id = store_id
        self._cold = cold
        self._faults = faults
        self._asking = 0
        self._planning = asyncio.Lock()

    # Is there work?

    async def has_work(self, *kinds: str) -> bool:
        """Whether a pipeline that asks for these kinds now would get a job. Raises nothing."""
        return await self.finds(lambda held: any(self.kinds[kind].has_work(held) for kind in kinds))

    async def finds(self, look: Callable[[Held], bool]) -> bool:
        """What `look` says on the worker thread. Raises nothing: what fails has found nothing, and
        `faults` hears of what was not expected."""
        held = self._table.held()
        try:
            return await self._threads.run(lambda: look(held))
        except OSError:
            return False  # the catalog cannot be read: others say so loudly
        except Exception as error:
            self._faults.report("jobs", error)
            return False

    # A job, from its offer to its end

    async def ask(self, kind: str) -> bytes | None:
        """The encoded offer of a job that has begun; None: nothing is worth doing now.

        One is planned at a time, so that no two get the same segments.
        """
        if self._asking >= ASKS_MAX:
            raise Overloaded("too many ask for a job at once")
        self._asking += 1
        try:
            async with self._planning:
                held = self._table.held()
                plan = await self._threads.run(lambda: self.kinds[kind].plan(held))
                return None if plan is None else self._start(kind, plan)
        finally:
            self._asking -= 1

    def _start(self, kind: str, plan: Plan) -> bytes:
        job = self._table.start(kind, plan)
        try:
            return encode_offer(self._offer(job))
        except BaseException:
            self._table.end(job, committed=False)  # no pipeline will ever know of it
            raise

    def _offer(self, job: Job) -> JobOffer:
        plan = job.plan
        return JobOffer(
            job=job.job_id,
            kind=job.kind,
            store_id=self._store_id,
            shard=plan.shard,
            inputs=plan.inputs,
            tasks=len(plan.tasks),
            target_bytes=plan.target_bytes,
            live_bytes=sum(each.live_bytes for each in plan.inputs),
            created_ms=job.started_ms,
            lease_seconds=self._table.lease_ms / 1000,
            cold=self._cold,
            reason=plan.reason,
        )

    def task(self, job_id: str, number: int) -> bytes:
        """Encoded. Raises JobNotFound."""
        return self._table.find(job_id).task(number)

    async def put_result(self, job_id: str, number: int, body: bytes) -> None:
        """The job has the result of this task. Raises ResultRefused and more: it has not."""
        job = self._table.find(job_id)
        job.task(number)  # there has to be one
        kind, others = self.kinds[job.kind], job.results_but(number)
        result = await self._threads.run(lambda: kind.check(job.plan, number, body, others))
        self._table.put_result(self._table.find(job_id), number, result)

    def give_up(self, job_id: str) -> None:
        """The job is over and its segments are free. Raises JobNotFound or JobConflict."""
        self._table.give_up(self._table.find(job_id))

    async def commit(self, job_id: str) -> None:
        """Everything is visible, now or since an earlier commit of this job.

        Raises OSError: nothing is, and the job lives on. All else raised by its kind ends the job.
        """
        if self._table.is_committed(job_id):
            return
        job = self._table.find(job_id)
        results = self._table.begin_commit(job)
        try:
            await self.kinds[job.kind].commit(job.plan, results)
        except OSError:
            self._table.stop_commit(job)
            raise
        except BaseException:
            self._table.end(job, committed=False)
            raise
        self._table.end(job, committed=True)
