"""One stream's touches: a counter of generations, when which key was touched, who waits for it.

Touches are collected and flushed together; a flush is one generation, and a cursor names one. A
wait is answered when a key of it was touched in a generation later than its cursor: it is asked
once when it comes, then by every flush.

No touch is ever missed. Where the exact keys of a change are not known (too many, a record that
does not say, a stream that is too far behind), the flush counts for all keys of that kind: `Reach`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Iterable
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from millstream.errors import StreamError
from millstream.limits import TOUCH_EXACT_HISTORY_KEYS_MAX, TOUCH_EXACT_SECONDS
from millstream.touch.filter import FilterBudget, TouchFilter
from millstream.touch.keys import KEY_ID_MASK, key_text
from millstream.touch.timers import Timer

FLUSH_TIMES_KEPT = 128
FLUSH_WINDOW_MS = 10_000


class Reach(IntEnum):
    """How far a wait sees. What is skipped on one level, those on it and below have to be told."""

    NOTHING = 0
    FINE = 1  # watches keys of rows
    TEMPLATE = 2  # and those of their templates, which are touched where rows are skipped
    TABLE = 3  # watches keys of tables, which are always touched


class Cursor(NamedTuple):
    epoch: int
    generation: int


class Moment(NamedTuple):
    """Where the journal was when a wait was answered."""

    epoch: int
    generation: int
    ordinal: int  # of the last record that the last flush told of; -1: none yet
    flushed_ms: int
    began_ms: int  # the first touch of that flush

    @property
    def cursor(self) -> str:
        return f"{key_text(self.epoch)}:{self.generation}"


class Told(NamedTuple):
    """What a wait comes to."""

    touched: bool
    moment: Moment


class Wait:
    """One client that waits. Subclasses say what `tell` does; it is called once, or never when the
    client left."""

    __slots__ = ("exact", "is_over", "key_ids", "reach", "template_ids", "timer")

    def __init__(
        self,
        key_ids: Collection[int],
        reach: Reach,
        exact: frozenset[int] = frozenset(),
        template_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.key_ids = key_ids
        self.reach = reach
        self.exact = exact  # whole keys, which decide where ids say "perhaps"
        self.template_ids = template_ids
        self.is_over = False
        self.timer: Timer | None = None

    def tell(self, outcome: Told | StreamError) -> None:
        raise NotImplementedError


class History:
    """The whole keys of the last generations, kept from the first exact wait on."""

    def __init__(self, generation: int) -> None:
        self._since = generation  # all later generations are here
        self._flushes: deque[tuple[int, float, frozenset[int]]] = deque()
        self._keys = 0

    def add(self, generation: int, now: float, keys: frozenset[int]) -> None:
        self._flushes.append((generation, now, keys))
        self._keys += len(keys)
        while self._flushes and (
            self._keys > TOUCH_EXACT_HISTORY_KEYS_MAX
            or self._flushes[0][1] < now - TOUCH_EXACT_SECONDS
        ):
            oldest, _, gone = self._flushes.popleft()
            self._keys -= len(gone)
            self._since = oldest

    def touched_after(self, keys: frozenset[int], generation: int) -> bool | None:
        """None: it does not go back that far."""
        if generation < self._since:
            return None
        for at, _, touched in reversed(self._flushes):
            if at <= generation:
                return False
            if not keys.isdisjoint(touched):
                return True
        return False


class Journal:
    def __init__(
        self, hashes: int, cells_max: int, pending_max: int, narrow_max: int, budget: FilterBudget
    ) -> None:
        self.epoch = secrets.randbits(64)
        self.generation = 0
        self.pending: set[int] = set()  # touched since the last flush
        self.pending_max = pending_max
        self.narrow_max = narrow_max  # keys of a wait that is found by them
        self.waits: set[Wait] = set()
        self.overflows = 0
        self.flushed_ms = 0
        self.began_ms = 0
        self.ordinal = -1
        self.flushed = -1e9  # on the clock of the service
        self.flush_times: deque[int] = deque(maxlen=FLUSH_TIMES_KEPT)
        self._skipped = Reach.NOTHING
        self._first_touch_ms = 0
        self._last_ordinal = -1
        self._floors = [0, 0, 0, 0]  # by reach: the last generation that counts for all keys
        self._filter = TouchFilter(hashes, cells_max, budget)
        self._history: History | None = None
        self._by_id: dict[int, set[Wait]] = {}
        self._broad: set[Wait] = set()
        self.waits_by_reach = [0, 0, 0, 0]

    @property
    def is_dirty(self) -> bool:
        return bool(self.pending) or self._skipped > Reach.NOTHING

    @property
    def broad_waits(self) -> int:
        return len(self._broad)

    @property
    def watched_ids(self) -> int:
        """Distinct ids that narrow waits are found by."""
        return len(self._by_id)

    @property
    def filter_cells(self) -> int:
        return self._filter.cells

    def moment(self) -> Moment:
        return Moment(self.epoch, self.generation, self.ordinal, self.flushed_ms, self.began_ms)

    # Touching

    def touch(self, keys: Iterable[int], ordinal: int, now_ms: int) -> None:
        """The record `ordinal` touches these."""
        if not self.is_dirty:
            self._first_touch_ms = now_ms
        self._last_ordinal = ordinal
        self.pending.update(keys)
        if len(self.pending) > self.pending_max:
            self.overflows += 1
            self.skip(Reach.TABLE, ordinal, now_ms)

    def skip(self, reach: Reach, ordinal: int, now_ms: int) -> None:
        """What is on this level and below may all have been touched, up to this record."""
        if not self.is_dirty:
            self._first_touch_ms = now_ms
        self._last_ordinal = max(self._last_ordinal, ordinal)
        self._skipped = max(self._skipped, reach)
        if reach is Reach.TABLE:
            self.pending.clear()  # it is about all keys now

    def flush(self, now: float, now_ms: int) -> list[Wait]:
        """Begins a new generation; the waits that it ends, which are here until they leave."""
        assert self.is_dirty
        self.generation += 1
        self.ordinal, self.flushed = self._last_ordinal, now
        self.flushed_ms, self.began_ms = now_ms, self._first_touch_ms
        self.flush_times.append(now_ms)
        for reach in range(Reach.FINE, self._skipped + 1):
            self._floors[reach] = self.generation
        ids = {key & KEY_ID_MASK for key in self.pending}
        if self._filter.is_worn_out(self.generation):
            self._filter.forget(self.generation - 1)
            self._floors = [self.generation] * len(self._floors)
        self._filter.mark(ids, self.generation)
        if self._history is not None:
            self._history.add(self.generation, now, frozenset(self.pending))
        ended = self._matching(ids)
        self.pending.clear()
        self._skipped = Reach.NOTHING
        return ended

    # Waiting

    def was_touched(self, wait: Wait, generation: int) -> bool:
        """Whether it has an answer already: a key of it may be touched since this generation."""
        if generation < self._floors[wait.reach]:
            return True
        if wait.exact:
            if self._history is None:
                self._history = History(self.generation)
            told = self._history.touched_after(wait.exact, generation)
            if told is not None:
                return told
        return self._filter.perhaps_after(wait.key_ids, generation)

    def join(self, wait: Wait) -> None:
        """From now on every flush looks whether this is touched."""
        self.waits.add(wait)
        self.waits_by_reach[wait.reach] += 1
        if len(wait.key_ids) > self.narrow_max:
            self._broad.add(wait)
            return
        for key_id in wait.key_ids:
            self._by_id.setdefault(key_id, set()).add(wait)

    def leave(self, wait: Wait) -> None:
        """Nothing happens when it is not here."""
        if wait not in self.waits:
            return
        self.waits.remove(wait)
        self.waits_by_reach[wait.reach] -= 1
        if wait in self._broad:
            self._broad.remove(wait)
            return
        for key_id in wait.key_ids:
            watching = self._by_id[key_id]
            watching.remove(wait)
            if not watching:
                del self._by_id[key_id]

    def waits_for(self, templates: Collection[int]) -> list[Wait]:
        """Those that depend on one of these."""
        gone = frozenset(templates)
        return [wait for wait in self.waits if not gone.isdisjoint(wait.template_ids)]

    def _matching(self, ids: set[int]) -> list[Wait]:
        found = {wait for wait in self._broad if not ids.isdisjoint(wait.key_ids)}
        for key_id in ids & self._by_id.keys():
            found |= self._by_id[key_id]
        found = {
            wait for wait in found if not wait.exact or not wait.exact.isdisjoint(self.pending)
        }
        if self._skipped:
            found |= {wait for wait in self.waits if wait.reach <= self._skipped}
        return list(found)

    # Upkeep

    def tidy(self, now: float) -> None:
        self._filter.tidy()
        if self._history is not None:
            self._history.add(self.generation, now, frozenset())

    def close(self) -> None:
        self._filter.close()

    def flush_intervals_ms(self, now_ms: int) -> list[int]:
        """Between the flushes of the last ten seconds, shortest first."""
        times = [at for at in self.flush_times if at >= now_ms - FLUSH_WINDOW_MS]
        return sorted(later - earlier for earlier, later in pairwise(times))
