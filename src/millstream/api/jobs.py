"""Jobs of the data pipeline: ask for one, fetch its tasks, bring their results, commit once.

docs/pipeline.md is the contract. What is long (walks of the catalog, the store) runs on a worker
thread; jobs and their results live on the loop. A request that takes time is a coroutine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from millstream.api.errors import respond_error
from millstream.errors import (
    InvalidRequest,
    JobConflict,
    JobFailed,
    MethodNotAllowed,
    Overloaded,
    RouteNotFound,
    ShuttingDown,
    StreamError,
)
from millstream.faults import Faults
from millstream.formats.jobs import (
    JOBS_PATH,
    MSGPACK_TYPE,
    ColdPlace,
    JobInput,
    JobOffer,
    TaskResult,
    decode_result,
    decode_task,
    encode_offer,
    encode_task,
)
from millstream.formats.runs import Run, Segment
from millstream.http.message import Request
from millstream.jobs.compaction import (
    Choice,
    LiveRun,
    Policy,
    check_result,
    choose_decayed,
    choose_small,
    choose_spread,
    cut_tasks,
    live_part,
    split_like,
    task_input,
)
from millstream.jobs.table import Job, JobTable
from millstream.tier.catalog import Decay, SegmentSpan, SegmentUse

JOBS_ROOT = JOBS_PATH.encode()
COMPACT, ERASE = b"compact", b"erase"
ASKS_MAX = 16  # that wait for their turn to plan; one or two pipelines is what anybody runs

_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
_MSGPACK = f"content-type: {MSGPACK_TYPE}\r\ncache-control: no-store\r\n".encode()
_NO_STORE = b"cache-control: no-store\r\n"
_NUMBER = re.compile(rb"[0-9]{1,9}")

T = TypeVar("T")
Answer = tuple[int, bytes, bytes]  # status, headers, body


class RunWork(Protocol):
    def __call__(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None:
        """Does `work` on a worker thread and calls `done` on the loop with what became of it."""
        ...


class ReplaceSegments(Protocol):
    async def __call__(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        swaps_seen: int,
        /,
    ) -> None:
        """Journals the swap; raises StreamError when it does not happen."""
        ...


class Source(Protocol):
    """What the catalog knows. Called on a worker thread."""

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


class Plan(NamedTuple):
    kind: str
    choice: Choice
    tasks: list[bytes]
    swaps_seen: int


@dataclass(frozen=True)
class _Done(Generic[T]):
    value: T


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class JobRoutes:
    """Every request has one answer, whatever is raised on the way: see `_serve`."""

    def __init__(
        self,
        source: Source,
        table: JobTable,
        run: RunWork,
        replace_segments: ReplaceSegments,
        store_id: str,
        cold: ColdPlace,
        faults: Faults,
        policy: Policy = Policy(),  # noqa: B008 - frozen
        erase_seconds: float = 0.0,
    ) -> None:
        """Dead content is gone within `erase_seconds`; 0: whenever it suits."""
        self._source = source
        self._table = table
        self._run = run
        self._replace_segments = replace_segments
        self._store_id = store_id
        self._cold = cold
        self._faults = faults
        self._policy = policy
        self._erase_ms = int(erase_seconds * 1000)
        self._asking = 0
        self._planning = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def has_work(self) -> bool:
        """Whether somebody who asks now would get a job. An error is told to those who hear it."""
        busy = self._table.busy_names()

        def choose() -> Choice | None:
            return self._choose_decayed(busy, self._erase_ms // 2) or self._choose(busy)

        return await self._is_found(choose)

    async def has_late_work(self) -> bool:
        """Whether dead content has been left in segments longer than a pipeline should need."""
        busy = self._table.busy_names()
        return await self._is_found(lambda: self._choose_decayed(busy, self._erase_ms * 5 // 8))

    async def dead_bytes(self) -> tuple[int, int] | None:
        """About how much of the segments is dead, and how much of that for too long by now. None:
        the catalog cannot be read."""

        def count() -> tuple[int, int]:
            decays = self._source.decayed()
            late_ms = self._table.now_ms() - self._erase_ms
            late = [each for each in decays if self._erase_ms and each.since_ms < late_ms]
            return sum(each.dead_bytes for each in decays), sum(each.dead_bytes for each in late)

        try:
            return await self._in_thread(count)
        except OSError:
            return None

    async def _is_found(self, choose: Callable[[], Choice | None]) -> bool:
        try:
            return await self._in_thread(choose) is not None
        except OSError:
            return False  # the catalog cannot be read: others say so loudly
        except Exception as error:
            self._faults.report("jobs", error)
            return False

    async def close(self) -> None:
        """Who still waits is told that the server stops."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def handle(self, request: Request) -> None:
        request.route = "jobs"
        parts = request.path[len(JOBS_ROOT) :].split(b"/")
        if parts in ([COMPACT], [ERASE]):
            self._allow(request, b"POST")
            if self._asking >= ASKS_MAX:
                raise Overloaded("too many ask for a job at once")
            self._begin(request, self._ask(_text(parts[0])))
        elif len(parts) == 1:
            self._allow(request, b"DELETE")
            self._give_up(request, _text(parts[0]))
        elif len(parts) == 2 and parts[1] == b"commit":
            self._allow(request, b"POST")
            self._begin(request, self._commit(_text(parts[0])))
        elif len(parts) == 3 and parts[1] == b"tasks" and _NUMBER.fullmatch(parts[2]):
            self._allow(request, b"GET", b"PUT")
            job, number = self._table.find(_text(parts[0])), int(parts[2])
            if request.method == b"GET":
                request.respond(200, _MSGPACK, job.task(number))
            else:
                self._begin(request, self._put_result(request.body, job, number))
        else:
            raise RouteNotFound("jobs: compact, erase, {job}, {job}/tasks/{k} and {job}/commit")

    @staticmethod
    def _allow(request: Request, *methods: bytes) -> None:
        if request.method not in methods:
            allowed = b", ".join(methods).decode()
            raise MethodNotAllowed(f"use one of {allowed}", f"{allowed}, OPTIONS")

    def _begin(self, request: Request, answering: Coroutine[Any, Any, Answer]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(request, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, answering: Coroutine[Any, Any, Answer]) -> None:
        """The one place where a job's request is answered."""
        try:
            answer = await answering
        except StreamError as error:
            respond_error(request, error)
        except OSError as error:
            respond_error(request, Overloaded(f"the cold tier does not answer: {error}"))
        except Exception as error:
            self._faults.report("jobs", error)
            kind = type(error).__name__
            respond_error(request, JobFailed(f"an unexpected error, see the log: {kind}: {error}"))
        except BaseException:
            respond_error(request, ShuttingDown("the server stops; ask again when it is back"))
            raise
        else:
            self._faults.works("jobs")
            request.respond(*answer)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """The result of `work`; whatever it raises is raised here."""
        waiting: asyncio.Future[_Done[T] | _Failed] = asyncio.get_running_loop().create_future()

        def guarded() -> _Done[T] | _Failed:
            try:
                return _Done(work())
            except BaseException as error:  # some cannot travel in a future: see PEP 479
                return _Failed(error)

        def finished(result: _Done[T] | _Failed | Exception) -> None:
            if not waiting.done():
                waiting.set_result(_Failed(result) if isinstance(result, Exception) else result)

        self._run(guarded, finished)
        result = await waiting
        if isinstance(result, _Done):
            return result.value
        if isinstance(result.error, Exception):
            raise result.error
        raise RuntimeError(f"a worker thread was left by {result.error!r}") from result.error

    # Ask

    async def _ask(self, kind: str) -> Answer:
        """One is planned at a time, so that no two get the same segments."""
        self._asking += 1
        try:
            async with self._planning:
                busy = self._table.busy_names()
                plan = await self._in_thread(lambda: self._plan(kind, busy))
                if plan is None:
                    return 204, _NO_STORE, b""
                return 200, _JSON, self._start(plan)
        finally:
            self._asking -= 1

    def _plan(self, kind: str, busy: set[str]) -> Plan | None:
        swaps_seen = self._source.swaps()
        choice = self._choose_decayed(busy, self._erase_ms // 2)
        if choice is None and kind == COMPACT.decode():
            choice = self._choose(busy)
        if choice is None:
            return None
        segments = {use.segment.name: use.segment for use in choice.inputs}
        live_bytes = sum(use.live_bytes for use in choice.inputs)
        pieces = cut_tasks(self._source.live_runs(list(segments)), live_bytes, self._policy)
        cuts = self._source.cuts(choice.shard, list(segments))
        tasks = [encode_task(task_input(piece, segments, cuts)) for piece in pieces]
        return Plan(kind, choice, tasks, swaps_seen) if tasks else None

    def _choose_decayed(self, busy: set[str], after_ms: int) -> Choice | None:
        """What has held dead content for so long."""
        if not self._erase_ms:
            return None
        before_ms = self._table.now_ms() - after_ms
        return choose_decayed(self._source.decayed(), before_ms, self._policy, busy)

    def _choose(self, busy: set[str]) -> Choice | None:
        uses = self._source.segments()
        choice = choose_small(uses, self._policy, busy)
        by_shard: dict[int, list[SegmentUse]] = {}
        for use in uses:
            by_shard.setdefault(use.segment.shard, []).append(use)
        for shard, found in by_shard.items():
            if choice is not None:
                break
            spans = self._source.segment_spans(shard)
            choice = choose_spread(shard, found, spans, self._policy, busy)
        return choice

    def _start(self, plan: Plan) -> bytes:
        """The offer of a job that has begun, encoded."""
        kind, choice, tasks, swaps_seen = plan
        inputs = [use.segment for use in choice.inputs]
        job = self._table.start(kind, choice.shard, inputs, tasks, swaps_seen)
        try:
            return encode_offer(self._offer(job, choice))
        except BaseException:
            self._table.end(job, committed=False)  # nobody will ever know of it
            raise

    def _offer(self, job: Job, choice: Choice) -> JobOffer:
        return JobOffer(
            job=job.job_id,
            kind=job.kind,
            store_id=self._store_id,
            shard=job.shard,
            inputs=[
                JobInput(
                    use.segment.name,
                    use.segment.size,
                    use.segment.footer_bytes,
                    use.segment.rows,
                    use.live_bytes,
                )
                for use in choice.inputs
            ],
            tasks=len(job.tasks),
            target_bytes=self._policy.target_bytes,
            live_bytes=sum(use.live_bytes for use in choice.inputs),
            created_ms=job.started_ms,
            lease_seconds=self._table.lease_ms / 1000,
            cold=self._cold,
            reason=choice.reason,
        )

    # Results

    async def _put_result(self, body: bytes, job: Job, number: int) -> Answer:
        encoded = job.task(number)
        taken_names = job.input_names | job.names_made(but_task=number)

        def check() -> TaskResult:
            try:
                result = decode_result(body)
            except ValueError as error:
                raise InvalidRequest(f"the body is no result of a task: {error}") from None
            check_result(decode_task(encoded), result, shard=job.shard, taken_names=taken_names)
            return result

        result = await self._in_thread(check)
        self._table.put_result(self._table.find(job.job_id), number, result)
        return 204, _NO_STORE, b""

    # The end

    def _give_up(self, request: Request, job_id: str) -> None:
        job = self._table.find(job_id)
        if job.is_committing:
            raise JobConflict(f"job {job_id} is being committed")
        self._table.end(job, committed=False)
        request.respond(204, _NO_STORE)

    async def _commit(self, job_id: str) -> Answer:
        if not self._table.is_committed(job_id):
            job = self._table.find(job_id)
            await self._commit_job(job, self._table.begin_commit(job))
        return 200, _JSON, msgspec.json.encode({"job": job_id, "committed": True})

    async def _commit_job(self, job: Job, results: list[TaskResult]) -> None:
        """Committed, or not and the reason is raised; the job is over, but for an OSError."""
        segments = [segment for result in results for segment in result.segments]
        old = [segment.name for segment in job.inputs]
        is_committed = is_over = False
        try:
            runs = await self._in_thread(lambda: self._compare(job, results))
            is_over = True
            await self._replace_segments(job.shard, old, segments, runs, job.swaps_seen)
            is_committed = True
        except OSError:
            raise
        except BaseException:
            is_over = True
            raise
        finally:
            if is_over:
                self._table.end(job, committed=is_committed)
            else:  # nothing was journaled: the same request may come again
                self._table.stop_commit(job)

    def _compare(self, job: Job, results: list[TaskResult]) -> list[list[Run]]:
        """Of each new segment the runs that hold something live. Raises JobConflict."""
        taken = self._source.segment_names(job.shard)
        for result in results:
            for segment in result.segments:
                if segment.name in taken:
                    raise JobConflict(f"the name {segment.name} is in use")
                size = self._source.object_size(segment.name)
                if size != segment.size:
                    found = "no such object" if size is None else f"{size} bytes"
                    raise JobConflict(f"{segment.name}: expected {segment.size} bytes, {found}")
        names = sorted(job.input_names)
        parts = split_like(map(decode_task, job.tasks), self._source.live_runs(names))
        return [
            runs
            for (frozen, part), result in zip(parts, results, strict=True)
            for runs in live_part(frozen, part, result.runs)
        ]


def _text(part: bytes) -> str:
    return part.decode("latin-1")
