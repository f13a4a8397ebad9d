"""Every request about garbage has one answer, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from millstream.api.garbage import GarbageRoutes
from millstream.cold.garbage import ORPHAN, UNREFERRED, Collected, Garbage, Item, Report
from millstream.faults import Faults
from tests.unit.api.fake_request import FakeRequest

SEGMENT = Item("segments/a", 100, 7, UNREFERRED)
SNAPSHOT = Item("snapshots/b", None, 8, ORPHAN)


class FakeGarbage:
    """Answers what it is told to, or waits for ever."""

    def __init__(self, result: Report | Collected | Exception | None) -> None:
        self._result = result

    async def look(self) -> Any:
        if self._result is None:
            await asyncio.Event().wait()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    collect = look


class GarbageRequest(FakeRequest):
    def __init__(self, method: bytes) -> None:
        super().__init__()
        self.method, self.path, self.route = method, b"/__millstream/garbage", ""


def ask(method: bytes, result: Report | Collected | Exception | None) -> tuple[int, Any, Faults]:
    async def story() -> None:
        routes = GarbageRoutes(cast(Garbage, FakeGarbage(result)), faults)
        async with asyncio.TaskGroup() as group, routes.running(group):
            (routes.show if method == b"GET" else routes.collect)(request.request)
            while result is not None and not request.is_answered:
                await asyncio.sleep(0)

    request, faults = GarbageRequest(method), Faults()
    asyncio.run(story())
    status, _, body = request.answer
    return status, json.loads(body), faults


def test_what_may_go_and_what_waits_is_shown() -> None:
    report = Report([SEGMENT], [(SNAPSHOT, "a copy")])
    segment = {"name": "segments/a", "bytes": 100, "reason": UNREFERRED}
    snapshot = {"name": "snapshots/b", "bytes": None, "reason": ORPHAN, "waits_for": "a copy"}
    assert ask(b"GET", report)[:2] == (
        200,
        {
            "ready": {"objects": 1, "bytes": 100, "listed": [segment]},
            "waiting": {"objects": 1, "bytes": 0, "listed": [snapshot]},
        },
    )


def test_what_was_deleted_is_listed() -> None:
    status, answer, _ = ask(b"POST", Collected([SEGMENT], None))
    assert (status, answer["deleted"]["objects"], answer["deleted"]["bytes"]) == (200, 1, 100)


def test_a_collection_that_failed_says_how_far_it_came() -> None:
    status, answer, _ = ask(b"POST", Collected([SEGMENT], OSError("the store is away")))
    expected = "1 objects are deleted, the rest is not: the store is away"
    assert (status, answer["error"]["message"]) == (503, expected)


@pytest.mark.parametrize("error", [OSError("the disk"), KeyError("a fault")])
def test_an_error_on_the_way_is_an_answer_and_a_fault_is_heard(error: Exception) -> None:
    status, answer, faults = ask(b"GET", error)
    assert (status, answer["error"]["code"]) == (503, "cold_unavailable")
    assert faults.counts["request"] == isinstance(error, KeyError)


def test_who_still_waits_when_the_server_stops_is_told() -> None:
    for method in (b"GET", b"POST"):
        status, answer, _ = ask(method, None)
        assert (status, answer["error"]["code"]) == (503, "shutting_down")
