from __future__ import annotations

import random

from millstream.subscriptions.due_times import DueTimes


def take_all(due: DueTimes, now_ms: int) -> list[str]:
    taken = []
    while (name := due.take(now_ms)) is not None:
        taken.append(name)
    return taken


def test_what_is_due_comes_in_the_order_of_time_and_once() -> None:
    due = DueTimes()
    for name, due_ms in (("c", 30), ("a", 10), ("b", 20)):
        due.note(name, due_ms)
    assert due.next_ms() == 10
    assert take_all(due, 20) == ["a", "b"]
    assert take_all(due, 100) == ["c"]
    assert due.next_ms() is None


def test_of_two_times_the_earlier_counts() -> None:
    due = DueTimes()
    due.note("a", 20)
    due.note("a", 10)
    due.note("a", 30)
    assert take_all(due, 15) == ["a"]
    assert take_all(due, 100) == []
    due.note("a", 20)
    assert take_all(due, 100) == ["a"]


def test_what_came_to_nothing_takes_no_room() -> None:
    due, dice = DueTimes(), random.Random(1)
    for round_ms in range(0, 10_000_000, 1000):
        for name in ("a", "b"):
            due.note(name, round_ms + 600_000)
            due.note(name, round_ms + dice.randint(0, 999))
        assert len(take_all(due, round_ms + 999)) == 2
    assert len(due._heap) < 100
