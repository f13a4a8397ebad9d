"""Requests that take time are answered, whatever happens to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, cast

from millstream.api.slow_requests import SlowRequests
from millstream.clock import ManualClock
from millstream.engine.engine import Engine
from millstream.errors import ColdUnavailable
from millstream.http.message import Request
from millstream.journal.memory import MemoryJournal
from millstream.state.machine import StateMachine


class FakeRequest:
    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        self.answers.append((status, json.loads(body)))


class Office:
    def __init__(self) -> None:
        self.engine = Engine(StateMachine(1), MemoryJournal(), ManualClock(), 0)
        self.abandoned: list[object] = []
        self.engine.abandon = self.abandoned.append
        self.requests = SlowRequests(self.engine)
        self.request = FakeRequest()

    def serve(self, answering: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """For a few turns of the loop, then the server ends."""

        async def story() -> None:
            self.requests.begin(cast(Request, self.request), answering)
            for _ in range(5):
                await asyncio.sleep(0)

        asyncio.run(story())


def test_what_the_coroutine_returns_is_the_answer() -> None:
    async def answer() -> dict[str, Any]:
        return {"lsn": 1}

    office = Office()
    office.serve(answer())
    assert office.request.answers == [(200, {"lsn": 1})]


def test_an_error_that_the_client_can_act_on_is_the_answer() -> None:
    async def refuse() -> dict[str, Any]:
        raise ColdUnavailable("not now")

    office = Office()
    office.serve(refuse())
    [(status, body)] = office.request.answers
    assert (status, body["error"]["code"]) == (503, ColdUnavailable.code)
    assert not any(office.engine.faults.counts.values())


def test_an_unexpected_error_is_heard_and_the_client_gets_an_answer() -> None:
    async def fail() -> dict[str, Any]:
        raise KeyError("injected")

    office = Office()
    office.serve(fail())
    assert office.abandoned == [office.request]
    assert office.engine.faults.counts["request"] == 1


def test_a_request_that_is_cut_short_by_the_end_of_the_server_is_answered() -> None:
    async def wait() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    office = Office()
    office.serve(wait())
    [(status, body)] = office.request.answers
    assert (status, body["error"]["code"]) == (503, "shutting_down")
