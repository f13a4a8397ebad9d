"""When which key was touched last, in memory that grows with what is touched.

A row of cells. A key has `hashes` of them, chosen by its id, and touching it writes the current
generation into each. It was touched after a generation only if all of its cells say so; other keys
may have written there, so the answer is "perhaps" or "certainly not", and never too early a time.

What a reader's cursor is older than counts against it, and nothing else: cells of earlier touches
do not wear the filter out. So it has to fit what is touched in the time between two waits of a
client. It doubles when more is touched, and halves when little was for a while. Both only make
"perhaps" likelier: a doubled cell tells in both places, and two that become one tell the later.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable

import numpy as np

from millstream.limits import (
    TOUCH_FILTER_CELLS_MAX,
    TOUCH_FILTER_CELLS_MIN,
    TOUCH_FILTERS_BYTES_MAX,
)

CELL_BYTES = 4
GENERATIONS_MAX = 2**32 - 1  # that a cell can tell apart

_ONE_BY_ONE_MAX = 32  # ids; more are quicker all at once


class FilterBudget:
    """Bytes that all filters have together."""

    def __init__(self, bytes_max: int = TOUCH_FILTERS_BYTES_MAX) -> None:
        self.bytes_left = bytes_max

    def take(self, size: int) -> bool:
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        return True

    def give_back(self, size: int) -> None:
        self.bytes_left += size


class TouchFilter:
    def __init__(self, hashes: int, cells_max: int, budget: FilterBudget) -> None:
        """The smallest size is not asked for in the budget: every stream has it."""
        self.cells_max = min(cells_max, TOUCH_FILTER_CELLS_MAX)
        self._hashes = range(hashes)
        self._budget = budget
        self._cells = array("I", bytes(CELL_BYTES * min(TOUCH_FILTER_CELLS_MIN, self.cells_max)))
        self._marks = 0  # since the size was last thought about
        self._base = 0  # generations in cells count from here

    @property
    def cells(self) -> int:
        return len(self._cells)

    def mark(self, ids: Collection[int], generation: int) -> None:
        """These were touched in this generation, which is later than all before."""
        self._marks += len(ids)
        while self._marks * len(self._hashes) * 2 > len(self._cells) and self._double():
            pass
        told = generation - self._base
        cells, mask = self._cells, len(self._cells) - 1
        if len(ids) <= _ONE_BY_ONE_MAX:
            for key_id in ids:
                step = _mixed(key_id)
                for turn in self._hashes:
                    cells[(key_id + turn * step) & mask] = told
            return
        places = np.fromiter(ids, np.uint64, len(ids))
        steps = _all_mixed(places)
        view = np.frombuffer(cells, np.uint32)
        for turn in self._hashes:
            view[(places + np.uint64(turn) * steps) & np.uint64(mask)] = told

    def perhaps_after(self, ids: Iterable[int], generation: int) -> bool:
        """Whether one of these may have been touched in a later generation."""
        since = generation - self._base
        cells, mask = self._cells, len(self._cells) - 1
        for key_id in ids:
            step = _mixed(key_id)
            if all(cells[(key_id + turn * step) & mask] > since for turn in self._hashes):
                return True
        return False

    def _double(self) -> bool:
        size = len(self._cells)
        if 2 * size > self.cells_max or not self._budget.take(size * CELL_BYTES):
            return False
        self._cells = self._cells + self._cells
        return True

    def tidy(self) -> None:
        """Called once in a while: gives back half of what was not needed since the last time."""
        size = len(self._cells)
        if size > TOUCH_FILTER_CELLS_MIN and self._marks * len(self._hashes) * 8 < size:
            halves = np.frombuffer(self._cells, np.uint32).reshape(2, -1)
            self._cells = array("I", np.maximum(halves[0], halves[1]).tobytes())
            self._budget.give_back(size // 2 * CELL_BYTES)
        self._marks = 0

    def is_worn_out(self, generation: int) -> bool:
        """No cell can hold this generation any more; `forget` helps."""
        return generation - self._base > GENERATIONS_MAX

    def forget(self, generation: int) -> None:
        """Answers for what comes after this generation, and nothing before it."""
        self.close()
        self._cells = array("I", bytes(CELL_BYTES * min(TOUCH_FILTER_CELLS_MIN, self.cells_max)))
        self._base, self._marks = generation, 0

    def close(self) -> None:
        """What it had of the budget is free again."""
        smallest = min(TOUCH_FILTER_CELLS_MIN, self.cells_max)
        self._budget.give_back((len(self._cells) - smallest) * CELL_BYTES)


def _mixed(key_id: int) -> int:
    """Odd, so that the places of one key differ."""
    mixed = ((key_id ^ (key_id >> 16)) * 0x85EBCA6B) & 0xFFFF_FFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFF_FFFF
    return (mixed ^ (mixed >> 16)) | 1


def _all_mixed(
    ids: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The same for many."""
    low = np.uint64(0xFFFF_FFFF)
    mixed = ((ids ^ (ids >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & low
    mixed = ((mixed ^ (mixed >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & low
    return (mixed ^ (mixed >> np.uint64(16))) | np.uint64(1)
