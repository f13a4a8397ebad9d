from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import pytest
import structlog

from millstream.api import jobs
from millstream.api.errors import respond_error
from millstream.api.jobs import JobRoutes
from millstream.clock import ManualClock
from millstream.errors import DamagedData, JobConflict, StreamError
from millstream.faults import Faults
from millstream.formats.jobs import ColdPlace, TaskResult, decode_task, encode_task
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.http.message import Request
from millstream.jobs.compaction import Policy
from millstream.jobs.table import JobTable
from millstream.tier.catalog import Decay, SegmentSpan, SegmentUse
from tests.unit.api.fake_request import FakeRequest

T = TypeVar("T")


class Sent(FakeRequest):
    def __init__(self, method: bytes, path: str, body: bytes) -> None:
        super().__init__()
        self.method, self.path, self.body, self.route = method, path.encode(), body, ""


class Catalog:
    """Four small segments of shard 2, each with one message of stream 2."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.dead_since: dict[str, int] = {}
        self.runs = [
            (f"segments/0002/{k}", Run(StreamId(2), k, 10 * k, 1, 10, 0, 0, 0x11111111))
            for k in range(4)
        ]

    def segments(self) -> list[SegmentUse]:
        return [SegmentUse(Segment(name, 2, 100, 10, 1, 0), 10, 1) for name, _ in self.runs]

    def segment_names(self, shard: int) -> set[str]:
        return {name for name, _ in self.runs}

    def swaps(self) -> int:
        return 3

    def decayed(self) -> list[Decay]:
        return [
            Decay(SegmentUse(Segment(name, 2, 100, 10, 4, 0), 10, 1), since_ms, 3)
            for name, since_ms in self.dead_since.items()
        ]

    def cuts(self, shard: int, names: Sequence[str]) -> dict[int, int]:
        return {}

    def segment_spans(self, shard: int) -> Mapping[str, SegmentSpan]:
        return {name: SegmentSpan(1, 2, 2) for name, _ in self.runs}

    def live_runs(self, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        return ((name, run) for name, run in self.runs if name in names)

    def object_size(self, name: str) -> int | None:
        return self.sizes.get(name)


class Routes:
    """The routes with a worker that works at once, or when told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.catalog = Catalog()
        self.clock = ManualClock()
        self.faults = Faults()
        self.later: list[Callable[[], None]] | None = None
        self.replaced: list[tuple[int, list[str], list[Segment], list[list[Run]]]] = []
        self.error: BaseException | None = None
        policy = Policy(target_bytes=100, task_bytes=200, small_min=3)
        place = ColdPlace("fs", "fs:/cold")
        self.table = JobTable(self.clock, 1000)
        self.routes = JobRoutes(
            self.catalog,
            self.table,
            self.run,
            self.replace,
            "id",
            place,
            self.faults,
            policy,
            erase_seconds=1000.0,
        )

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None:
        def both() -> None:
            try:
                result: T | Exception = work()
            except Exception as error:
                result = error
            done(result)

        if self.later is None:
            both()
        else:
            self.later.append(both)

    async def replace(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        swaps_seen: int,
        /,
    ) -> None:
        assert swaps_seen == 3
        self.replaced.append((shard, old, segments, runs))
        if self.error is not None:
            raise self.error

    def send(self, method: bytes, path: str, body: bytes = b"") -> Sent:
        sent = Sent(method, "/__millstream/jobs/" + path, body)
        request = cast(Request, sent)

        async def handle() -> None:
            try:
                self.routes.handle(request)
            except StreamError as error:
                respond_error(request, error)

        self.loop.run_until_complete(handle())
        self.settle()
        return sent

    def settle(self) -> None:
        """All that can go on has gone on."""

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def call(self, method: bytes, path: str, body: bytes = b"") -> tuple[int, bytes]:
        status, _, content = self.send(method, path, body).answer
        return status, content

    def rewritten(self, job: str) -> TaskResult:
        """The right answer to task 0."""
        status, body = self.call(b"GET", f"{job}/tasks/0")
        assert status == 200
        [*runs] = [run for _, run in decode_task(body).runs]
        new = [
            Run(StreamId(2), run.first_ordinal, run.first_byte, 1, 10, 0, row, run.crc)
            for row, run in enumerate(runs)
        ]
        segment = Segment("segments/0002/new", 2, 55, 10, len(new), 0)
        self.catalog.sizes[segment.name] = 55
        return TaskResult([segment], [new])


@pytest.fixture
def routes() -> Iterator[Routes]:
    loop = asyncio.new_event_loop()
    with structlog.testing.capture_logs():
        yield Routes(loop)
    loop.close()


def start(routes: Routes) -> str:
    status, body = routes.call(b"POST", "compact")
    assert status == 200
    return str(json.loads(body)["job"])


def test_an_offer_says_what_where_and_never_how_to_get_in(routes: Routes) -> None:
    status, body = routes.call(b"POST", "compact")
    offer = json.loads(body)
    assert status == 200
    assert offer["cold"] == {"kind": "fs", "url": "fs:/cold", "endpoint": "", "region": ""}
    assert (offer["shard"], offer["tasks"], offer["target_bytes"]) == (2, 1, 100)
    assert offer["inputs"][0] == {
        "name": "segments/0002/0",
        "size": 100,
        "footer_bytes": 10,
        "rows": 1,
        "live_bytes": 10,
    }


def test_what_is_taken_is_not_offered_again(routes: Routes) -> None:
    job = start(routes)
    assert routes.call(b"POST", "compact") == (204, b"")
    assert routes.call(b"DELETE", job) == (204, b"")
    assert routes.call(b"POST", "compact")[0] == 200


def test_two_who_ask_at_once_wait_for_each_other(routes: Routes) -> None:
    routes.later = []
    first, second = routes.send(b"POST", "compact"), routes.send(b"POST", "compact")
    for _ in range(2):
        assert len(routes.later) == 1
        routes.later.pop()()
        routes.settle()
    assert (first.answer[0], second.answer[0]) == (200, 204)


def test_a_job_is_committed_once_by_one_command(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"POST", f"{job}/commit")[0] == 409
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result)) == (204, b"")
    for _ in range(2):
        status, body = routes.call(b"POST", f"{job}/commit")
        assert (status, json.loads(body)) == (200, {"job": job, "committed": True})
    old = [name for name, _ in routes.catalog.runs]
    assert routes.replaced == [(2, old, result.segments, result.runs)]


@pytest.mark.parametrize("what", ["moved", "no object", "short object", "name in use", "refused"])
def test_a_conflict_is_told_and_ends_the_job(routes: Routes, what: str) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))[0] == 204
    if what == "moved":
        name, run = routes.catalog.runs[1]
        routes.catalog.runs[1] = (name, Run(StreamId(2), 1, 10, 1, 10, 0, 5, run.crc))
    elif what == "no object":
        routes.catalog.sizes.clear()
    elif what == "short object":
        routes.catalog.sizes["segments/0002/new"] = 54
    elif what == "name in use":
        routes.catalog.runs.append(("segments/0002/new", Run(StreamId(6), 0, 0, 1, 1, 0, 0, 0)))
    else:
        routes.error = JobConflict("another job won")
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (409, "job_conflict")
    assert len(routes.replaced) == (what == "refused")
    assert routes.call(b"GET", f"{job}/tasks/0")[0] == 404


def test_what_died_meanwhile_is_left_out_of_the_commit(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))[0] == 204
    del routes.catalog.runs[1]
    assert routes.call(b"POST", f"{job}/commit")[0] == 200
    runs = [[run for run in result.runs[0] if run.first_ordinal != 1]]
    old = [f"segments/0002/{k}" for k in range(4)]
    assert routes.replaced == [(2, old, result.segments, runs)]


def test_a_job_whose_inputs_are_all_dead_is_committed_with_nothing(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))[0] == 204
    routes.catalog.runs.clear()
    assert routes.call(b"POST", f"{job}/commit")[0] == 200
    [(_, _, segments, runs)] = routes.replaced
    assert (segments, runs) == (result.segments, [[]])


def test_a_wrong_result_is_refused_when_it_is_brought(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    wrong = TaskResult(result.segments, [result.runs[0][:-1]])
    status, body = routes.call(b"PUT", f"{job}/tasks/0", encode_task(wrong))
    assert (status, json.loads(body)["error"]["code"]) == (409, "result_refused")
    assert routes.call(b"PUT", f"{job}/tasks/0", b"nonsense")[0] == 400


def test_a_store_that_is_away_is_a_503_to_be_repeated(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))

    def fail(name: str) -> int | None:
        raise OSError("no answer")

    found, routes.catalog.object_size = routes.catalog.object_size, fail  # type: ignore[method-assign]
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
    assert not routes.faults.failing()
    routes.catalog.object_size = found  # type: ignore[method-assign]
    assert routes.call(b"POST", f"{job}/commit")[0] == 200


# What must go


def test_content_that_is_dead_for_half_of_the_time_is_rewritten_first(routes: Routes) -> None:
    died_ms = routes.clock.now_ms()
    routes.catalog.dead_since = {"segments/0002/3": died_ms}
    assert routes.call(b"POST", "erase") == (204, b"")
    routes.clock.advance(500_000)
    status, body = routes.call(b"POST", "compact")
    offer = json.loads(body)
    assert (status, offer["reason"]) == (200, "content that must go")
    assert [each["name"] for each in offer["inputs"]] == ["segments/0002/3"]
    assert routes.call(b"POST", "erase") == (204, b"")  # it is taken
    assert routes.call(b"DELETE", offer["job"])[0] == 204
    assert routes.call(b"POST", "erase")[0] == 200


def test_what_nobody_rewrote_in_time_is_late_and_then_overdue(routes: Routes) -> None:
    loop, late = routes.loop, routes.routes.has_late_work
    routes.catalog.dead_since = {"segments/0002/3": routes.clock.now_ms()}
    routes.clock.advance(600_000)
    assert loop.run_until_complete(late()) is False
    routes.clock.advance(30_000)
    assert loop.run_until_complete(late()) is True
    assert loop.run_until_complete(routes.routes.dead_bytes()) == (75, 0)
    routes.clock.advance(400_000)
    assert loop.run_until_complete(routes.routes.dead_bytes()) == (75, 75)


# Errors that nobody expects, at every step


ERRORS: dict[str, Callable[[], BaseException]] = {
    "damage": lambda: DamagedData("shard-0002.sqlite", 0, "a sound SQLite file", "a broken one"),
    "sqlite": lambda: sqlite3.IntegrityError("UNIQUE constraint failed"),
    "key": lambda: KeyError("x"),
    "assertion": AssertionError,
    "memory": MemoryError,
    "stop": StopIteration,
    "stop async": StopAsyncIteration,
    "type": lambda: TypeError("not that"),
    "exit": lambda: SystemExit(3),
}
IN_THREADS_ONLY = {"exit"}  # on the loop it leaves the loop, as it must
STEPS = {  # what of the catalog each step asks
    "ask": ("swaps", "decayed", "segments", "live_runs", "cuts"),
    "commit": ("segment_names", "object_size", "live_runs"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    ("step", "question"), [(step, name) for step, names in STEPS.items() for name in names]
)
def test_an_unexpected_error_in_a_thread_is_heard_by_all(
    routes: Routes, step: str, question: str, kind: str
) -> None:
    path = "compact"
    if step == "commit":
        job = start(routes)
        routes.call(b"PUT", f"{job}/tasks/0", encode_task(routes.rewritten(job)))
        path = f"{job}/commit"

    def fail(*_: object) -> object:
        raise ERRORS[kind]()

    right = getattr(routes.catalog, question)
    setattr(routes.catalog, question, fail)
    assert_failed(routes, path)
    setattr(routes.catalog, question, right)
    assert start(routes)  # neither the job nor whoever asks next is stuck
    assert not routes.faults.failing()


@pytest.mark.parametrize("kind", ERRORS)
def test_an_unexpected_error_of_the_swap_is_no_commit(routes: Routes, kind: str) -> None:
    if kind in IN_THREADS_ONLY:
        return
    job = start(routes)
    routes.call(b"PUT", f"{job}/tasks/0", encode_task(routes.rewritten(job)))
    routes.error = ERRORS[kind]()
    assert_failed(routes, f"{job}/commit")
    assert routes.call(b"POST", f"{job}/commit")[0] == 404
    assert start(routes)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    "name",
    [
        "encode_offer",
        "encode_task",
        "cut_tasks",
        "choose_decayed",
        "choose_small",
        "decode_result",
        "check_result",
    ],
)
def test_an_unexpected_error_of_a_step_in_between(
    routes: Routes, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    if name == "encode_offer" and kind in IN_THREADS_ONLY:
        return

    def fail(*_: object, **__: object) -> object:
        raise ERRORS[kind]()

    method, path, body = b"POST", "compact", b""
    if name in ("decode_result", "check_result"):
        job = start(routes)
        method, path, body = b"PUT", f"{job}/tasks/0", encode_task(routes.rewritten(job))
    with monkeypatch.context() as patch:
        patch.setattr(jobs, name, fail)
        assert_failed(routes, path, method, body)
    if method == b"PUT":
        assert routes.call(method, path, body)[0] == 204
    else:
        assert start(routes)


def test_an_unexpected_error_is_no_work_for_the_pipeline(routes: Routes) -> None:
    def fail() -> list[SegmentUse]:
        raise KeyError("x")

    right, routes.catalog.segments = routes.catalog.segments, fail  # type: ignore[method-assign]
    assert routes.loop.run_until_complete(routes.routes.has_work()) is False
    assert routes.faults.counts["jobs"] == 1
    routes.catalog.segments = right  # type: ignore[method-assign]
    assert routes.loop.run_until_complete(routes.routes.has_work()) is True


def test_who_waits_when_the_server_stops_is_told(routes: Routes) -> None:
    routes.later = []
    first, second = routes.send(b"POST", "compact"), routes.send(b"POST", "compact")
    routes.loop.run_until_complete(routes.routes.close())
    assert (first.answer[0], second.answer[0]) == (503, 503)


def assert_failed(routes: Routes, path: str, method: bytes = b"POST", body: bytes = b"") -> None:
    status, content = routes.call(method, path, body)
    assert (status, json.loads(content)["error"]["code"]) == (500, "job_failed")
    assert routes.faults.counts["jobs"] == 1
    assert "jobs" in routes.faults.failing()


def test_a_silent_job_ends_by_its_lease(routes: Routes) -> None:
    job = start(routes)
    routes.clock.advance(1001)
    assert routes.call(b"GET", f"{job}/tasks/0")[0] == 404
    assert routes.call(b"POST", "compact")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"GET", "compact", 405),
        (b"PUT", "{job}", 405),
        (b"GET", "{job}/commit", 405),
        (b"POST", "{job}/tasks/0", 405),
        (b"GET", "{job}/tasks/1", 404),
        (b"GET", "{job}/tasks/x", 404),
        (b"GET", "{job}/tasks/0/0", 404),
        (b"GET", "nobody/tasks/0", 404),
        (b"DELETE", "nobody", 404),
        (b"POST", "nobody/commit", 404),
        (b"POST", "", 405),
    ],
)
def test_what_is_no_request_of_the_contract(
    routes: Routes, method: bytes, path: str, status: int
) -> None:
    assert routes.call(method, path.format(job=start(routes)))[0] == status
