from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import pytest

from millstream.api.errors import respond_error
from millstream.api.jobs import JobRoutes
from millstream.clock import ManualClock
from millstream.engine.compaction import Policy
from millstream.engine.job_table import JobTable
from millstream.errors import JobConflict, StreamError
from millstream.formats.jobs import ColdPlace, TaskResult, decode_task, encode_task
from millstream.formats.runs import Run, Segment
from millstream.http.message import Request
from millstream.state.outcomes import Done, Outcome
from millstream.tier.catalog import SegmentSpan, SegmentUse
from tests.unit.api.fake_request import FakeRequest


class Sent(FakeRequest):
    def __init__(self, method: bytes, path: str, body: bytes) -> None:
        super().__init__()
        self.method, self.path, self.body, self.route = method, path.encode(), body, ""


class Catalog:
    """Four small segments of shard 2, each with one message of stream 2."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.runs = [
            (f"segments/0002/{k}", Run(2, k, 10 * k, 1, 10, 0, 0, 0x11111111)) for k in range(4)
        ]

    def segments(self) -> list[SegmentUse]:
        return [SegmentUse(Segment(name, 2, 100, 10, 1, 0), 10, 1) for name, _ in self.runs]

    def segment_spans(self, shard: int) -> Mapping[str, SegmentSpan]:
        return {name: SegmentSpan(1, 2, 2) for name, _ in self.runs}

    def live_runs(self, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        return ((name, run) for name, run in self.runs if name in names)

    def object_size(self, name: str) -> int | None:
        return self.sizes.get(name)


class Routes:
    """The routes with a worker that works at once, or when told."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.clock = ManualClock()
        self.later: list[Callable[[], None]] | None = None
        self.replaced: list[tuple[int, list[str], list[Segment], list[list[Run]]]] = []
        self.outcome: Outcome = Done.PUBLISHED
        policy = Policy(target_bytes=100, task_bytes=200, small_min=3)
        place = ColdPlace("fs", "fs:/cold")
        table = JobTable(self.clock, 1000)
        self.routes = JobRoutes(self.catalog, table, self.run, self.replace, "id", place, policy)

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        def both() -> None:
            try:
                result = work()
            except OSError as error:
                result = error
            done(result)

        if self.later is None:
            both()
        else:
            self.later.append(both)

    def replace(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        done: Callable[[Outcome], None],
    ) -> None:
        self.replaced.append((shard, old, segments, runs))
        done(self.outcome)

    def send(self, method: bytes, path: str, body: bytes = b"") -> Sent:
        sent = Sent(method, "/__millstream/jobs/" + path, body)
        request = cast(Request, sent)
        try:
            self.routes.handle(request)
        except StreamError as error:
            respond_error(request, error)
        return sent

    def call(self, method: bytes, path: str, body: bytes = b"") -> tuple[int, bytes]:
        status, _, content = self.send(method, path, body).answer
        return status, content

    def rewritten(self, job: str) -> TaskResult:
        """The right answer to task 0."""
        status, body = self.call(b"GET", f"{job}/tasks/0")
        assert status == 200
        [*runs] = [run for _, run in decode_task(body).runs]
        new = [
            Run(2, run.first_ordinal, run.first_byte, 1, 10, 0, row, run.crc)
            for row, run in enumerate(runs)
        ]
        segment = Segment("segments/0002/new", 2, 55, 10, len(new), 0)
        self.catalog.sizes[segment.name] = 55
        return TaskResult([segment], [new])


@pytest.fixture
def routes() -> Routes:
    return Routes()


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
    assert len(routes.later) == 1
    routes.later.pop()()
    routes.later.pop()()
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


@pytest.mark.parametrize("what", ["inputs gone", "moved", "no object", "short object", "refused"])
def test_a_conflict_is_told_and_ends_the_job(routes: Routes, what: str) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))[0] == 204
    if what == "inputs gone":
        routes.catalog.runs.clear()
    elif what == "moved":
        name, run = routes.catalog.runs[1]
        routes.catalog.runs[1] = (name, Run(2, 1, 10, 1, 10, 0, 5, run.crc))
    elif what == "no object":
        routes.catalog.sizes.clear()
    elif what == "short object":
        routes.catalog.sizes["segments/0002/new"] = 54
    else:
        routes.outcome = JobConflict("another job won")
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (409, "job_conflict")
    assert len(routes.replaced) == (what == "refused")
    assert routes.call(b"GET", f"{job}/tasks/0")[0] == 404


def test_an_input_that_died_meanwhile_is_left_out_of_the_commit(routes: Routes) -> None:
    job = start(routes)
    result = routes.rewritten(job)
    assert routes.call(b"PUT", f"{job}/tasks/0", encode_task(result))[0] == 204
    del routes.catalog.runs[1]
    left = [name for name, _ in routes.catalog.runs]
    assert routes.call(b"POST", f"{job}/commit")[0] == 200
    runs = [[run for run in result.runs[0] if run.first_ordinal != 1]]
    assert routes.replaced == [(2, left, result.segments, runs)]


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

    routes.catalog.object_size = fail  # type: ignore[method-assign]
    status, body = routes.call(b"POST", f"{job}/commit")
    assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")


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
