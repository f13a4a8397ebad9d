from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import structlog

from millstream.api.errors import respond_error
from millstream.api.jobs import JobRoutes
from millstream.errors import DamagedData, JobConflict, StreamError
from millstream.formats.jobs import TaskResult, decode_result, encode_task
from millstream.http.message import Request
from millstream.jobs.service import ASKS_MAX
from tests.unit.api.fake_request import FakeRequest
from tests.unit.jobs.job_world import JobWorld


class Sent(FakeRequest):
    def __init__(self, method: bytes, path: str, body: bytes) -> None:
        super().__init__()
        self.method, self.path, self.body, self.route = method, path.encode(), body, ""


class Routes(JobWorld):
    """The routes over a service with the kinds that rewrite segments."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._stopped = asyncio.Event()
        self.routes = JobRoutes(self.jobs, self.faults)
        self._serving = loop.create_task(self._serve())
        self.turn()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group, self.routes.running(group):
            await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()
        self._loop.run_until_complete(self._serving)
        self._loop.run_until_complete(self.worker.close())

    def turn(self, times: int = 20) -> None:
        """All that can go on without the worker has gone on."""

        async def turns() -> None:
            for _ in range(times):
                await asyncio.sleep(0)

        self._loop.run_until_complete(turns())

    def send(self, method: bytes, path: str, body: bytes = b"") -> Sent:
        sent = Sent(method, "/__millstream/jobs/" + path, body)
        request = cast(Request, sent)

        async def handle() -> None:
            try:
                self.routes.handle(request)
            except StreamError as error:
                respond_error(request, error)

        self._loop.run_until_complete(handle())
        self.turn()
        return sent

    def wait_for(self, sent: Sent) -> None:
        async def answered() -> None:
            async with asyncio.timeout(20):
                while not sent.is_answered:
                    await asyncio.sleep(0.001)

        self._loop.run_until_complete(answered())

    def call(self, method: bytes, path: str, body: bytes = b"") -> tuple[int, bytes]:
        sent = self.send(method, path, body)
        self.wait_for(sent)
        status, _, content = sent.answer
        return status, content

    def result_of(self, job: str) -> bytes:
        """The right answer to task 0."""
        status, task = self.call(b"GET", f"{job}/tasks/0")
        assert status == 200
        return encode_task(self.rewritten(task))


@pytest.fixture
def routes() -> Iterator[Routes]:
    loop = asyncio.new_event_loop()
    with structlog.testing.capture_logs():
        routes = Routes(loop)
        yield routes
        routes.stop()
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
    assert (offer["kind"], offer["store_id"], offer["live_bytes"]) == ("compact", "id", 40)
    assert (offer["shard"], offer["tasks"], offer["target_bytes"]) == (2, 1, 100)
    assert (offer["created_ms"], offer["lease_seconds"]) == (routes.clock.now_ms(), 1.0)
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
    routes.worker.waiting = []
    first, second = routes.send(b"POST", "compact"), routes.send(b"POST", "compact")
    for sent in (first, second):
        [turn] = routes.worker.waiting
        routes.worker.waiting.clear()
        turn.set()
        routes.wait_for(sent)
        routes.turn()
    assert (first.answer[0], second.answer[0]) == (200, 204)


def test_too_many_who_ask_at_once_are_told_to_come_again(routes: Routes) -> None:
    routes.worker.waiting = []
    for _ in range(ASKS_MAX):
        assert not routes.send(b"POST", "compact").is_answered
    status, headers, body = routes.send(b"POST", "compact").answer
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["error"]["message"] == "too many ask for a job at once"


def test_a_job_is_committed_once_by_one_command(routes: Routes) -> None:
    job = start(routes)
    result = routes.result_of(job)
    assert routes.call(b"POST", f"{job}/commit")[0] == 409
    assert routes.call(b"PUT", f"{job}/tasks/0", result) == (204, b"")
    for _ in range(2):
        status, body = routes.call(b"POST", f"{job}/commit")
        assert (status, json.loads(body)) == (200, {"job": job, "committed": True})
    assert len(routes.swapped) == 1


def test_a_conflict_is_told_and_ends_the_job(routes: Routes) -> None:
    job = start(routes)
    assert routes.call(b"PUT", f"{job}/tasks/0", routes.result_of(job))[0] == 204
    routes.swap_error = JobConflict("another job won")
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (409, "job_conflict")
    assert routes.call(b"GET", f"{job}/tasks/0")[0] == 404


def test_a_wrong_result_is_refused_when_it_is_brought(routes: Routes) -> None:
    job = start(routes)
    result = decode_result(routes.result_of(job))
    wrong = TaskResult(result.segments, [result.runs[0][:-1]])
    status, body = routes.call(b"PUT", f"{job}/tasks/0", encode_task(wrong))
    assert (status, json.loads(body)["error"]["code"]) == (409, "result_refused")
    status, body = routes.call(b"PUT", f"{job}/tasks/0", b"nonsense")
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")


def test_a_store_that_is_away_is_a_503_to_be_repeated(routes: Routes) -> None:
    job = start(routes)
    routes.call(b"PUT", f"{job}/tasks/0", routes.result_of(job))

    def fail(name: str) -> int | None:
        raise OSError("no answer")

    found, routes.catalog.object_size = routes.catalog.object_size, fail  # type: ignore[method-assign]
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
    assert not routes.faults.failing()
    routes.catalog.object_size = found  # type: ignore[method-assign]
    assert routes.call(b"POST", f"{job}/commit")[0] == 200


# Errors that are not expected, at every step


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
QUESTIONS = {  # what of the catalog each step asks
    "ask": ("swaps", "decayed", "segments", "live_runs", "cuts"),
    "commit": ("segment_names", "object_size", "live_runs"),
}
STEPS = {  # where each is called
    "encode_offer": "service",
    "encode_task": "rewrites",
    "cut_tasks": "rewrites",
    "choose_decayed": "erasure",
    "choose_small": "rewrites",
    "decode_result": "rewrites",
    "check_result": "rewrites",
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    ("step", "question"), [(step, name) for step, names in QUESTIONS.items() for name in names]
)
def test_an_unexpected_error_in_a_thread_is_heard_by_all(
    routes: Routes, step: str, question: str, kind: str
) -> None:
    path = "compact"
    if step == "commit":
        job = start(routes)
        routes.call(b"PUT", f"{job}/tasks/0", routes.result_of(job))
        path = f"{job}/commit"

    def fail(*_: object) -> object:
        raise ERRORS[kind]()

    right = getattr(routes.catalog, question)
    setattr(routes.catalog, question, fail)
    assert_failed(routes, path)
    setattr(routes.catalog, question, right)
    assert start(routes)  # neither the job nor the next one is stuck
    assert not routes.faults.failing()


@pytest.mark.parametrize("kind", [*(kind for kind in ERRORS if kind not in IN_THREADS_ONLY), "os"])
def test_an_unexpected_error_of_the_swap_is_no_commit(routes: Routes, kind: str) -> None:
    """Nor is an OSError one to be repeated: the swap may be journaled by then."""
    job = start(routes)
    routes.call(b"PUT", f"{job}/tasks/0", routes.result_of(job))
    routes.swap_error = OSError("no answer") if kind == "os" else ERRORS[kind]()
    assert_failed(routes, f"{job}/commit")
    assert routes.call(b"POST", f"{job}/commit")[0] == 404
    assert start(routes)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("name", STEPS)
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
        method, path, body = b"PUT", f"{job}/tasks/0", routes.result_of(job)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module(f"millstream.jobs.{STEPS[name]}"), name, fail)
        assert_failed(routes, path, method, body)
    if method == b"PUT":
        assert routes.call(method, path, body)[0] == 204
    else:
        assert start(routes)


def assert_failed(routes: Routes, path: str, method: bytes = b"POST", body: bytes = b"") -> None:
    status, content = routes.call(method, path, body)
    assert (status, json.loads(content)["error"]["code"]) == (500, "job_failed")
    assert routes.faults.counts["jobs"] == 1
    assert "jobs" in routes.faults.failing()


# The stop


def test_who_waits_when_the_server_stops_is_told(routes: Routes) -> None:
    routes.worker.waiting = []
    first, second = routes.send(b"POST", "compact"), routes.send(b"POST", "compact")
    routes.stop()
    late = routes.send(b"POST", "compact")
    for sent in (first, second, late):
        status, _, body = sent.answer
        assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")


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
