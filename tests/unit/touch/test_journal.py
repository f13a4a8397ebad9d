from __future__ import annotations

import pytest

from millstream.errors import StreamError
from millstream.limits import TOUCH_EXACT_HISTORY_KEYS_MAX, TOUCH_EXACT_SECONDS
from millstream.touch.filter import GENERATIONS_MAX, FilterBudget
from millstream.touch.journal import History, Journal, Reach, Told, Wait


class Waiting(Wait):
    def tell(self, outcome: Told | StreamError) -> None:
        raise AssertionError("the service tells, not the journal")


def a_journal(pending_max: int = 1000) -> Journal:
    return Journal(4, 1 << 22, pending_max, 2, FilterBudget())


def flushed(journal: Journal, *keys: int, now: float = 0.0) -> list[Wait]:
    journal.touch(keys, 0, 5)
    ended = journal.flush(now, 7)
    for wait in ended:
        journal.leave(wait)
    return ended


def test_a_flush_is_a_generation_and_says_what_it_told_of() -> None:
    journal = a_journal()
    assert journal.moment()[1:] == (0, -1, 0, 0)
    journal.touch([1], 3, 100)
    journal.touch([2], 4, 110)
    assert journal.is_dirty
    journal.flush(0.0, 120)
    assert journal.moment() == (journal.epoch, 1, 4, 120, 100)
    assert journal.moment().cursor == f"{journal.epoch:016x}:1"
    assert not journal.is_dirty


def test_two_journals_have_different_epochs() -> None:
    assert a_journal().epoch != a_journal().epoch


def test_a_wait_is_found_by_each_of_its_keys_once() -> None:
    journal = a_journal()
    wait, other = Waiting((1, 2), Reach.FINE), Waiting((2, 3), Reach.FINE)
    journal.join(wait)
    journal.join(other)
    assert flushed(journal, 1, 1 << 32) == [wait]
    assert flushed(journal, 1) == []
    assert flushed(journal, 3) == [other]
    assert (journal.watched_ids, len(journal.waits), journal.waits_by_reach) == (0, 0, [0] * 4)


def test_a_wait_that_left_is_not_found() -> None:
    journal = a_journal()
    for keys in ((1,), (1, 2, 3)):
        wait = Waiting(keys, Reach.FINE)
        journal.join(wait)
        journal.leave(wait)
        journal.leave(wait)
        assert flushed(journal, 1) == []
        assert journal.broad_waits == 0


@pytest.mark.parametrize("skipped", [Reach.FINE, Reach.TEMPLATE, Reach.TABLE])
def test_what_is_skipped_concerns_those_that_see_no_further(skipped: Reach) -> None:
    journal = a_journal()
    waits = [Waiting((9,), reach) for reach in (Reach.FINE, Reach.TEMPLATE, Reach.TABLE)]
    for wait in waits:
        journal.join(wait)
    journal.skip(skipped, 0, 0)
    told = journal.flush(0.0, 0)
    assert sorted(wait.reach for wait in told) == list(range(1, skipped + 1))
    for wait in waits:
        assert journal.was_touched(wait, 0) is (wait.reach <= skipped)
        assert not journal.was_touched(wait, 1)


def test_more_keys_than_fit_count_for_all() -> None:
    journal = a_journal(pending_max=2)
    wait = Waiting((9,), Reach.TABLE)
    journal.join(wait)
    journal.touch(range(5), 0, 0)
    assert (journal.overflows, len(journal.pending)) == (1, 0)
    assert journal.flush(0.0, 0) == [wait]


def test_after_four_billion_generations_older_cursors_count_as_touched() -> None:
    journal = a_journal()
    wait = Waiting((9,), Reach.TABLE)
    journal.generation = GENERATIONS_MAX
    assert not journal.was_touched(wait, GENERATIONS_MAX)
    flushed(journal, 1)
    assert journal.was_touched(wait, GENERATIONS_MAX)
    assert not journal.was_touched(wait, GENERATIONS_MAX + 1)
    assert journal.was_touched(Waiting((1,), Reach.FINE), GENERATIONS_MAX)


def test_the_history_goes_back_for_a_while() -> None:
    history = History(5)
    assert history.touched_after(frozenset([1]), 4) is None
    history.add(6, 0.0, frozenset([1]))
    history.add(7, 1.0, frozenset([2]))
    assert history.touched_after(frozenset([1]), 5) is True
    assert history.touched_after(frozenset([1]), 6) is False
    history.add(8, TOUCH_EXACT_SECONDS + 0.5, frozenset([3]))
    assert history.touched_after(frozenset([9]), 5) is None
    assert history.touched_after(frozenset([2]), 6) is True
    history.add(9, TOUCH_EXACT_SECONDS + 1, frozenset(range(TOUCH_EXACT_HISTORY_KEYS_MAX + 1)))
    assert history.touched_after(frozenset([0]), 8) is None
    assert history.touched_after(frozenset([0]), 9) is False


def test_the_times_between_flushes_are_told() -> None:
    journal = a_journal()
    for now_ms in (1000, 20_000, 20_010, 20_040):
        journal.touch([1], 0, now_ms)
        journal.flush(now_ms / 1000, now_ms)
    assert journal.flush_intervals_ms(20_050) == [10, 30]
