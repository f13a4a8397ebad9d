"""What waits for the log is bounded; what waits too long is found without a clock per append."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millstream.engine import journal_queue
from millstream.engine.hot_budget import HotBudget
from millstream.engine.journal_queue import JournalQueue, QueueLimits
from millstream.errors import QueueFull
from millstream.faults import Faults
from millstream.formats.layout import StreamId
from millstream.journal.contract import Entry
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import AnyCommand, Append, CreateStream, DeleteStream
from millstream.state.horizon import Horizon
from millstream.state.outcomes import Outcome

STREAM = StreamId(1)


class SlowJournal(MemoryJournal):
    """Takes entries, and gives back as many as it is told to."""

    def submit(self, entry: Entry) -> None:
        self._pending.append(entry)

    def give_back(self, count: int) -> int:
        back = len(self._pending[:count])
        del self._pending[:count]
        return back


class Desk:
    def __init__(self, requests: int = 50_000, size: int = 1 << 30, seconds: float = 0.0) -> None:
        self.journal, self.horizon = SlowJournal(), Horizon()
        self.horizon.follow(lambda: self.journal.depth)
        self.queue = JournalQueue(self.journal, self.horizon, Faults())
        self.budget = HotBudget(self.journal.submit, self.queue)
        self.queue.limit(QueueLimits(requests, size, seconds))
        self.refused: list[object] = []
        self.names: Iterator[int] = iter(range(10**9))

    def bring(self, command: AnyCommand) -> int:
        """As a handler does: only a budget that is tight is asked."""
        name = next(self.names)
        entry = (command, self._told, name)
        if self.budget.is_tight:
            self.budget.submit(0, entry)
        else:
            self.journal.submit(entry)
        return name

    def append(self, data: bytes = b"x") -> int:
        return self.bring(Append(0, STREAM, data, b"", 1))

    def give_back(self, count: int) -> None:
        self.horizon.begin(self.journal.give_back(count))
        self.horizon.end()

    def _told(self, name: object, outcome: Outcome) -> None:
        assert isinstance(outcome, QueueFull)
        self.refused.append(name)


def test_an_append_is_overdue_once_and_only_when_a_look_has_seen_it_for_long_enough() -> None:
    desk = Desk(seconds=3.0)
    first = desk.append()
    assert desk.queue.take_overdue(10.0) == ()
    second = desk.append()
    assert desk.queue.take_overdue(12.9) == ()
    assert desk.queue.take_overdue(13.0) == [first]
    assert desk.queue.take_overdue(13.1) == ()
    assert desk.queue.take_overdue(15.9) == [second]
    desk.give_back(2)
    assert desk.queue.take_overdue(30.0) == ()


def test_what_came_back_in_time_is_never_told() -> None:
    desk = Desk(seconds=3.0)
    desk.append()
    desk.queue.take_overdue(10.0)
    late = desk.append()
    desk.give_back(1)
    assert desk.queue.take_overdue(13.0) == ()
    assert desk.queue.take_overdue(16.0) == [late]


def test_only_appends_and_creations_with_content_or_closure_are_told() -> None:
    desk = Desk(seconds=1.0)
    desk.bring(CreateStream(0, b"_default/a", b"text/plain"))
    full = desk.bring(CreateStream(0, b"_default/b", b"text/plain", data=b"x", count=1))
    closed = desk.bring(CreateStream(0, b"_default/c", b"text/plain", closed=True))
    desk.bring(DeleteStream(0, STREAM))
    closing = desk.bring(Append(0, STREAM, closes=True))
    desk.queue.take_overdue(0.0)
    assert desk.queue.take_overdue(1.0) == [full, closed, closing]


def test_without_a_limit_nothing_is_overdue() -> None:
    desk = Desk(seconds=0.0)
    desk.append()
    desk.queue.take_overdue(0.0)
    assert desk.queue.take_overdue(1e9) == ()


@pytest.mark.parametrize("seed", range(20))
def test_each_append_is_told_once_when_it_is_late_and_never_when_it_is_not(seed: int) -> None:
    dice = random.Random(seed)
    desk, now = Desk(seconds=3.0), 0.0
    under_way: list[tuple[int, float]] = []
    told: dict[int, float] = {}
    submitted: dict[int, float] = {}
    for _ in range(2000):
        move = dice.random()
        if move < 0.5:
            name = desk.append()
            submitted[name] = now
            under_way.append((name, now))
        elif move < 0.6:
            count = dice.randrange(20)
            desk.give_back(count)
            del under_way[:count]
        else:
            now += 0.1 * dice.random()
            for late in desk.queue.take_overdue(now):
                assert late not in told
                assert now - submitted[late] >= 3.0
                told[late] = now
            for waiting, since in under_way:
                assert waiting in told or now - since < 3.0 + 2 * 0.1 + 0.001, f"seed {seed}"


def test_requests_beyond_the_limit_are_refused_until_some_came_back() -> None:
    desk = Desk(requests=3)
    for _ in range(5):
        desk.append()
    assert (desk.journal.depth, len(desk.refused)) == (3, 2)
    desk.give_back(1)
    desk.append()
    desk.append()
    assert (desk.journal.depth, len(desk.refused)) == (3, 3)
    assert desk.queue.refused == 3


def test_bytes_beyond_the_limit_are_refused_until_some_came_back() -> None:
    desk = Desk(size=100)
    desk.append(b"x" * 60)
    desk.append(b"x" * 60)
    assert (desk.journal.depth, len(desk.refused)) == (1, 1)
    desk.append(b"x" * 40)
    assert (desk.journal.depth, len(desk.refused)) == (2, 1)
    desk.give_back(1)
    desk.append(b"x" * 60)
    assert (desk.journal.depth, len(desk.refused)) == (2, 1)


def test_an_append_larger_than_the_queue_comes_when_no_other_waits() -> None:
    desk = Desk(size=100)
    desk.append(b"x" * 1000)
    desk.append(b"x")
    assert (desk.journal.depth, len(desk.refused)) == (1, 1)


def test_appends_count_only_while_the_queue_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_queue, "QUEUE_NEAR_REQUESTS", 10)
    desk = Desk(requests=100)
    for _ in range(95):
        desk.append()
    assert not desk.budget.is_tight
    desk.queue._judge()
    assert desk.budget.is_tight
    for _ in range(10):
        desk.append()
    assert (desk.journal.depth, len(desk.refused)) == (100, 5)
    desk.give_back(50)
    desk.queue._judge()
    assert not desk.budget.is_tight


def test_content_that_was_not_counted_before_counts_once_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_queue, "QUEUE_NEAR_BYTES", 50)
    desk = Desk(size=100)
    desk.append(b"x" * 60)
    assert not desk.budget.is_tight
    desk.queue._judge()
    assert desk.budget.is_tight
    desk.append(b"x" * 60)
    assert len(desk.refused) == 1
    desk.append(b"x" * 40)
    assert desk.journal.depth == 2
