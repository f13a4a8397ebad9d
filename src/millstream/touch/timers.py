"""One heap for everything that is due at some time: ends of waits, flushes, sweeps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

_ENTRIES_SPARE = 64


class Timer:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def set(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._heap, (at, next(self._numbers), timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Nothing happens when it has rung."""
        if timer.call is None:
            return
        timer.call = None
        self._cancelled += 1
        if self._cancelled > len(self._heap) // 2 + _ENTRIES_SPARE:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_at(self) -> float | None:
        """When the next one rings; None: none does."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> Callable[[], None] | None:
        """What one that is due calls; it has rung then."""
        at = self.next_at()
        if at is None or at > now:
            return None
        timer = heapq.heappop(self._heap)[2]
        call, timer.call = timer.call, None
        return call
