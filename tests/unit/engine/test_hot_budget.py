"""Appends wait a moment for room in memory, and are refused when it will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.clock import ManualClock
from millstream.engine import hot_budget
from millstream.engine.hot_budget import HotBudget
from millstream.engine.journal_queue import JournalQueue
from millstream.errors import HotBudgetUsed
from millstream.faults import Faults
from millstream.journal.contract import Entry
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import NoOp
from millstream.state.horizon import Horizon
from millstream.state.outcomes import Outcome
from tests.unit.engine.world import FakeLoop


def idle_queue() -> JournalQueue:
    return JournalQueue(MemoryJournal(), Horizon(), Faults())


class Desk:
    """A budget with what it submitted and refused, by name."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.refused: list[str] = []
        self.budget = HotBudget(lambda entry: self.submitted.append(entry[2]), idle_queue())
        self.budget.start(asyncio.get_running_loop())

    def bring(self, shard: int, name: str) -> None:
        entry: Entry = (NoOp(0), self._told, name)
        self.budget.submit(shard, entry)

    def _told(self, name: str, outcome: Outcome) -> None:
        assert isinstance(outcome, HotBudgetUsed)
        self.refused.append(name)


def play(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def whole() -> None:
        desk = Desk()
        await story(desk)
        desk.budget.close()

    asyncio.run(whole())


def test_only_full_shards_wait_and_go_on_in_order_when_there_is_room() -> None:
    async def story(desk: Desk) -> None:
        desk.budget.set_full(frozenset({1}), is_store_failing=False)
        for shard, name in ((1, "a"), (2, "b"), (1, "c")):
            desk.bring(shard, name)
        assert (desk.submitted, desk.budget.waiting) == (["b"], 2)
        desk.budget.set_full(frozenset(), is_store_failing=False)
        assert (desk.submitted, desk.refused) == (["b", "a", "c"], [])

    play(story)


def test_nobody_waits_for_a_store_that_fails() -> None:
    async def story(desk: Desk) -> None:
        desk.budget.set_full(frozenset({1}), is_store_failing=False)
        desk.bring(1, "waits")
        desk.budget.set_full(frozenset({1}), is_store_failing=True)
        desk.bring(1, "later")
        assert (desk.submitted, desk.refused) == ([], ["waits", "later"])

    play(story)


def test_whoever_waited_long_enough_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_budget, "APPEND_WAIT_SECONDS", 0.02)

    async def story(desk: Desk) -> None:
        desk.budget.set_full(frozenset({1}), is_store_failing=False)
        desk.bring(1, "first")
        await asyncio.sleep(0.01)
        desk.bring(1, "second")
        async with asyncio.timeout(5):
            while len(desk.refused) < 2:
                await asyncio.sleep(0.005)
        assert desk.refused == ["first", "second"]
        assert desk.budget.waiting == 0

    play(story)


def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_budget, "APPENDS_WAITING_MAX", 2)

    async def story(desk: Desk) -> None:
        desk.budget.set_full(frozenset({1}), is_store_failing=False)
        for name in ("a", "b", "c"):
            desk.bring(1, name)
        assert desk.refused == ["c"]
        desk.budget.close()
        assert desk.refused == ["c", "a", "b"]

    play(story)


def test_a_reply_that_fails_costs_the_others_nothing() -> None:
    faults, told = Faults(), list[object]()

    def fail(context: object, outcome: object) -> None:
        raise RuntimeError("a reply")

    def reply(context: object, outcome: object) -> None:
        told.append((context, type(outcome)))

    budget = HotBudget(lambda entry: None, idle_queue(), faults)
    budget.start(FakeLoop(ManualClock()).asyncio_loop)
    budget.set_full(frozenset({0}), is_store_failing=False)
    for number, each in enumerate((reply, fail, reply)):
        budget.submit(0, (NoOp(0), each, number))
    budget.set_full(frozenset({0}), is_store_failing=True)
    assert told == [(0, HotBudgetUsed), (2, HotBudgetUsed)]
    assert faults.counts["reply"] == 1
