"""Jobs of the data pipeline: ask for one, fetch its tasks, bring their results, commit once.

docs/pipeline.md is the contract. What is long (walks of the catalog, the store) runs on a worker
thread; jobs and their results live on the loop.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from millstream.api.errors import respond_error
from millstream.engine.compaction import (
    Choice,
    LiveRun,
    Policy,
    check_result,
    choose_small,
    choose_spread,
    cut_tasks,
    live_part,
    split_like,
    task_input,
)
from millstream.engine.job_table import Job, JobTable
from millstream.errors import (
    InvalidRequest,
    JobConflict,
    MethodNotAllowed,
    Overloaded,
    RouteNotFound,
    StreamError,
)
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
from millstream.state.outcomes import Outcome
from millstream.tier.catalog import SegmentSpan, SegmentUse

JOBS_ROOT = JOBS_PATH.encode()
COMPACT = b"compact"
ASKS_MAX = 16  # that wait for their turn to plan; one or two pipelines is what anybody runs

_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
_MSGPACK = f"content-type: {MSGPACK_TYPE}\r\ncache-control: no-store\r\n".encode()
_NO_STORE = b"cache-control: no-store\r\n"
_NUMBER = re.compile(rb"[0-9]{1,9}")

RunWork = Callable[[Callable[[], object], Callable[[object], None]], None]
"""Does the first on a worker thread and calls the second on the loop with its result; with the
error instead if it raised an OSError."""

ReplaceSegments = Callable[
    [int, list[str], list[Segment], list[list[Run]], Callable[[Outcome], None]], None
]
"""Journals the swap: shard, old names, new segments, the runs of each, and whom to tell."""


class Source(Protocol):
    """What the catalog knows. Called on a worker thread."""

    def segments(self) -> list[SegmentUse]: ...

    def segment_spans(self, shard: int) -> Mapping[str, SegmentSpan]: ...

    def live_runs(self, names: Sequence[str]) -> Iterator[LiveRun]:
        """Of these segments, in order of stream id and ordinal."""
        ...

    def object_size(self, name: str) -> int | None:
        """Bytes of an object in the store; None when there is none."""
        ...


class _Comparison(NamedTuple):
    old: list[str]  # inputs that are still there
    runs: list[list[Run]]  # of each new segment, those that hold something live


class JobRoutes:
    def __init__(
        self,
        source: Source,
        table: JobTable,
        run: RunWork,
        replace_segments: ReplaceSegments,
        store_id: str,
        cold: ColdPlace,
        policy: Policy = Policy(),  # noqa: B008 - frozen
    ) -> None:
        self._source = source
        self._table = table
        self._run = run
        self._replace_segments = replace_segments
        self._store_id = store_id
        self._cold = cold
        self._policy = policy
        self._asking: deque[Request] = deque()

    def has_work(self, done: Callable[[bool], None]) -> None:
        """Calls `done` later with whether somebody who asks now would get a job."""
        busy = self._table.busy_names()
        self._run(lambda: self._choose(busy), lambda found: done(isinstance(found, Choice)))

    def handle(self, request: Request) -> None:
        request.route = "jobs"
        parts = request.path[len(JOBS_ROOT) :].split(b"/")
        if parts == [COMPACT]:
            self._allow(request, b"POST")
            self._ask(request)
        elif len(parts) == 1:
            self._allow(request, b"DELETE")
            self._give_up(request, _text(parts[0]))
        elif len(parts) == 2 and parts[1] == b"commit":
            self._allow(request, b"POST")
            self._commit(request, _text(parts[0]))
        elif len(parts) == 3 and parts[1] == b"tasks" and _NUMBER.fullmatch(parts[2]):
            self._allow(request, b"GET", b"PUT")
            job, number = self._table.find(_text(parts[0])), int(parts[2])
            if request.method == b"GET":
                request.respond(200, _MSGPACK, job.task(number))
            else:
                self._put_result(request, job, number)
        else:
            raise RouteNotFound("jobs: compact, {job}, {job}/tasks/{k} and {job}/commit")

    @staticmethod
    def _allow(request: Request, *methods: bytes) -> None:
        if request.method not in methods:
            allowed = b", ".join(methods).decode()
            raise MethodNotAllowed(f"use one of {allowed}", f"{allowed}, OPTIONS")

    def _in_thread(
        self, request: Request, work: Callable[[], object], done: Callable[[object], None]
    ) -> None:
        """`done` gets the result, or whatever error the client shall hear of."""

        def guarded() -> object:
            try:
                return work()
            except StreamError as error:
                return error

        def finished(result: object) -> None:
            if isinstance(result, OSError):
                result = Overloaded(f"the cold tier does not answer: {result}")
            done(result)

        self._run(guarded, finished)

    # Ask

    def _ask(self, request: Request) -> None:
        """One is planned at a time, so that no two get the same segments."""
        if len(self._asking) >= ASKS_MAX:
            raise Overloaded("too many ask for a job at once")
        self._asking.append(request)
        if len(self._asking) == 1:
            self._plan_next()

    def _plan_next(self) -> None:
        request, busy = self._asking[0], self._table.busy_names()

        def planned(plan: object) -> None:
            if isinstance(plan, StreamError):
                respond_error(request, plan)
            elif isinstance(plan, tuple):
                choice, tasks = plan
                request.respond(200, _JSON, encode_offer(self._start(choice, tasks)))
            else:
                request.respond(204, _NO_STORE)
            self._asking.popleft()
            if self._asking:
                self._plan_next()

        self._in_thread(request, lambda: self._plan(busy), planned)

    def _plan(self, busy: set[str]) -> tuple[Choice, list[bytes]] | None:
        choice = self._choose(busy)
        if choice is None:
            return None
        segments = {use.segment.name: use.segment for use in choice.inputs}
        live_bytes = sum(use.live_bytes for use in choice.inputs)
        pieces = cut_tasks(self._source.live_runs(list(segments)), live_bytes, self._policy)
        tasks = [encode_task(task_input(piece, segments)) for piece in pieces]
        return (choice, tasks) if tasks else None

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

    def _start(self, choice: Choice, tasks: list[bytes]) -> JobOffer:
        inputs = [use.segment for use in choice.inputs]
        job = self._table.start(COMPACT.decode(), choice.shard, inputs, tasks)
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
            tasks=len(tasks),
            target_bytes=self._policy.target_bytes,
            live_bytes=sum(use.live_bytes for use in choice.inputs),
            created_ms=job.started_ms,
            lease_seconds=self._table.lease_ms / 1000,
            cold=self._cold,
            reason=choice.reason,
        )

    # Results

    def _put_result(self, request: Request, job: Job, number: int) -> None:
        encoded = job.task(number)
        taken_names = job.input_names | job.names_made(but_task=number)

        def check() -> TaskResult:
            try:
                result = decode_result(request.body)
            except ValueError as error:
                raise InvalidRequest(f"the body is no result of a task: {error}") from None
            check_result(decode_task(encoded), result, shard=job.shard, taken_names=taken_names)
            return result

        def checked(result: object) -> None:
            try:
                if isinstance(result, StreamError):
                    raise result
                assert isinstance(result, TaskResult)
                self._table.put_result(self._table.find(job.job_id), number, result)
            except StreamError as error:
                respond_error(request, error)
                return
            request.respond(204, _NO_STORE)

        self._in_thread(request, check, checked)

    # The end

    def _give_up(self, request: Request, job_id: str) -> None:
        job = self._table.find(job_id)
        if job.is_committing:
            raise JobConflict(f"job {job_id} is being committed")
        self._table.end(job, committed=False)
        request.respond(204, _NO_STORE)

    def _commit(self, request: Request, job_id: str) -> None:
        if self._table.is_committed(job_id):
            _respond_committed(request, job_id)
            return
        job = self._table.find(job_id)
        results = self._table.begin_commit(job)
        segments = [segment for result in results for segment in result.segments]

        def committed(outcome: object) -> None:
            self._table.end(job, committed=not isinstance(outcome, StreamError))
            if isinstance(outcome, StreamError):
                respond_error(request, outcome)
            else:
                _respond_committed(request, job_id)

        def compared(found: object) -> None:
            if isinstance(found, _Comparison):
                self._replace_segments(job.shard, found.old, segments, found.runs, committed)
            else:
                committed(found)

        self._in_thread(request, lambda: self._compare(job, results), compared)

    def _compare(self, job: Job, results: list[TaskResult]) -> _Comparison:
        """What is live now, of the old and of the new. Raises JobConflict.

        An input that is gone has died meanwhile: nobody else replaces what a job holds.
        """
        known = {use.segment.name for use in self._source.segments()}
        old = [segment.name for segment in job.inputs if segment.name in known]
        if not old:
            raise JobConflict("nothing lives in any of its segments any more")
        for result in results:
            for segment in result.segments:
                size = self._source.object_size(segment.name)
                if size != segment.size:
                    found = "no such object" if size is None else f"{size} bytes"
                    raise JobConflict(f"{segment.name}: expected {segment.size} bytes, {found}")
        parts = split_like(map(decode_task, job.tasks), self._source.live_runs(sorted(old)))
        runs = [
            runs
            for (frozen, part), result in zip(parts, results, strict=True)
            for runs in live_part(frozen, part, result.runs)
        ]
        return _Comparison(old, runs)


def _respond_committed(request: Request, job_id: str) -> None:
    request.respond(200, _JSON, msgspec.json.encode({"job": job_id, "committed": True}))


def _text(part: bytes) -> str:
    return part.decode("latin-1")
