from __future__ import annotations

from random import Random

import pytest

from millstream.limits import TOUCH_FILTER_CELLS_MAX, TOUCH_FILTER_CELLS_MIN
from millstream.touch.filter import GENERATIONS_MAX, FilterBudget, TouchFilter

ROOMY = 1 << 22


def test_what_was_touched_is_always_told_and_little_else() -> None:
    random, touched = Random(1), TouchFilter(4, ROOMY, FilterBudget())
    last: dict[int, int] = {}
    for generation in range(1, 400):
        ids = {random.getrandbits(32) for _ in range(random.choice([1, 5, 40, 200]))}
        touched.mark(ids, generation)
        last |= dict.fromkeys(ids, generation)
        if random.random() < 0.05:
            touched.tidy()
    assert all(touched.perhaps_after([key], at - 1) for key, at in last.items())
    others = [random.getrandbits(32) for _ in range(1000)]
    false = sum(touched.perhaps_after([key], 399 - 20) for key in others)
    assert false < 50


def test_one_by_one_and_all_at_once_write_the_same_cells() -> None:
    ids = [Random(2).getrandbits(32) for _ in range(1)] + [0, 1, 2**32 - 1, 0xDEADBEEF]
    few, many = (TouchFilter(8, ROOMY, FilterBudget()) for _ in range(2))
    padding = list(range(100, 200))
    few.mark(padding, 1)
    for key in ids:
        few.mark([key], 2)
    many.mark(padding, 1)
    many.mark([*ids, *([5] * 40)], 2)
    few.mark([5], 2)
    assert few._cells[: few.cells] == many._cells[: few.cells] or few.cells != many.cells
    assert all(many.perhaps_after([key], 1) and few.perhaps_after([key], 1) for key in ids)


def test_it_grows_with_what_is_touched_and_shrinks_again() -> None:
    budget = FilterBudget()
    before, touched = budget.bytes_left, TouchFilter(4, ROOMY, budget)
    assert touched.cells == TOUCH_FILTER_CELLS_MIN
    touched.mark(range(10_000), 1)
    assert 40_000 <= touched.cells <= TOUCH_FILTER_CELLS_MAX
    assert before - budget.bytes_left == 4 * (touched.cells - TOUCH_FILTER_CELLS_MIN)
    while touched.cells > TOUCH_FILTER_CELLS_MIN:
        touched.tidy()
    assert budget.bytes_left == before
    assert all(touched.perhaps_after([key], 0) for key in range(10_000))


@pytest.mark.parametrize(("cells_max", "bytes_max"), [(1 << 10, 1 << 30), (ROOMY, 3072)])
def test_it_has_a_largest_size(cells_max: int, bytes_max: int) -> None:
    touched = TouchFilter(1, cells_max, FilterBudget(bytes_max))
    touched.mark(range(100_000), 1)
    assert touched.cells == 1 << 10
    assert touched.perhaps_after([99_999], 0)
    assert not touched.perhaps_after([99_999], 1)


def test_what_is_closed_gives_its_memory_back() -> None:
    budget = FilterBudget(1 << 20)
    touched = TouchFilter(4, ROOMY, budget)
    touched.mark(range(10_000), 1)
    touched.close()
    assert budget.bytes_left == 1 << 20


def test_it_can_be_begun_anew_when_cells_cannot_count_further() -> None:
    touched = TouchFilter(4, ROOMY, FilterBudget())
    touched.mark([1], GENERATIONS_MAX)
    assert touched.is_worn_out(GENERATIONS_MAX + 1)
    touched.forget(GENERATIONS_MAX)
    touched.mark([1], GENERATIONS_MAX + 1)
    assert touched.perhaps_after([1], GENERATIONS_MAX)
    assert not touched.perhaps_after([1], GENERATIONS_MAX + 1)
