"""Requests that take time are answered, whatever happens to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from millstream.api.slow_requests import Answer, Answering, SlowRequests, json_answer
from millstream.errors import ColdUnavailable, ShuttingDown
from millstream.faults import Faults
from tests.unit.api.fake_request import FakeRequest


class Office:
    def __init__(self) -> None:
        self.faults = Faults()
        self.requests = SlowRequests(
            self.faults, "jobs", lambda error: ColdUnavailable(f"not now: {error}"), service="jobs"
        )
        self.request = FakeRequest()

    def serve(self, answering: Answering) -> tuple[int, Any]:
        """For a few turns of the loop, then the server ends."""

        async def story() -> None:
            async with asyncio.TaskGroup() as group, self.requests.running(group):
                self.requests.begin(self.request.request, answering)
                for _ in range(5):
                    await asyncio.sleep(0)

        asyncio.run(story())
        status, _, body = self.request.answer
        return status, json.loads(body)


def test_what_the_coroutine_returns_is_the_answer() -> None:
    async def answer() -> Answer:
        return json_answer({"lsn": 1})

    office = Office()
    office.faults.report("jobs", KeyError("earlier"))
    assert office.serve(answer()) == (200, {"lsn": 1})
    assert not office.faults.failing()


def test_an_error_that_the_client_can_act_on_is_the_answer() -> None:
    async def refuse() -> Answer:
        raise ColdUnavailable("the store is away")

    office = Office()
    status, body = office.serve(refuse())
    assert (status, body["error"]["message"]) == (503, "the store is away")
    assert not any(office.faults.counts.values())


@pytest.mark.parametrize("error", [OSError("the disk"), KeyError("a fault")])
def test_other_errors_are_explained_and_faults_are_heard(error: Exception) -> None:
    async def fail() -> Answer:
        raise error

    office = Office()
    status, body = office.serve(fail())
    assert status == 503
    assert body["error"]["message"].startswith("not now: ")
    assert office.faults.counts["jobs"] == isinstance(error, KeyError)


def test_a_request_that_the_stop_of_the_server_cuts_short_is_answered() -> None:
    async def wait() -> Answer:
        await asyncio.Event().wait()
        return json_answer({})

    status, body = Office().serve(wait())
    assert (status, body["error"]["code"]) == (503, "shutting_down")


def test_a_request_that_comes_after_the_stop_is_refused() -> None:
    async def never() -> Answer:
        raise AssertionError("it must not begin")

    office = Office()
    with pytest.raises(ShuttingDown):
        office.requests.begin(office.request.request, never())
