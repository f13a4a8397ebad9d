"""Whose webhook goes next: bounded per receiver and in all, and fair.

Receivers take turns, so one with very many webhooks waiting delays none of the others. One that
does not answer holds as many places as a receiver may have until the deadline of its attempts; the
next ones are retries, which never get all the places. What waits is a name in a queue, no task.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import NamedTuple


class Turn(NamedTuple):
    """A place that is taken, until it is given back."""

    receiver: str
    name: str
    is_retry: bool


class Turns:
    def __init__(self, at_once: int, retries_at_once: int, per_receiver: int) -> None:
        self._at_once = at_once
        self._retries_at_once = retries_at_once
        self._per_receiver = per_receiver
        self._under_way: Counter[str] = Counter()  # by receiver
        self._total = 0
        self._retries = 0
        self._names: set[str] = set()  # all that wait
        self._queues: dict[tuple[str, bool], deque[str]] = {}
        # Receivers with something to send and a place left for it, whose turn is next first.
        self._ready = {is_retry: OrderedDict[str, None]() for is_retry in (False, True)}
        self._retries_first = False

    def wait(self, receiver: str, name: str, *, is_retry: bool) -> None:
        """Queues up, unless the name does so already."""
        if name in self._names:
            return
        self._names.add(name)
        self._queues.setdefault((receiver, is_retry), deque()).append(name)
        if self._under_way[receiver] < self._per_receiver:
            self._ready[is_retry].setdefault(receiver)

    def take(self) -> Turn | None:
        """Who is next; None: none waits, or there is no place left for those that do."""
        if self._total >= self._at_once:
            return None
        for is_retry in (self._retries_first, not self._retries_first):
            ready = self._ready[is_retry]
            if ready and not (is_retry and self._retries >= self._retries_at_once):
                self._retries_first = not is_retry
                return self._begin(next(iter(ready)), is_retry)
        return None

    def _begin(self, receiver: str, is_retry: bool) -> Turn:
        queue = self._queues[receiver, is_retry]
        name = queue.popleft()
        self._names.discard(name)
        self._total += 1
        self._retries += is_retry
        self._under_way[receiver] += 1
        if not queue:
            del self._queues[receiver, is_retry]
            del self._ready[is_retry][receiver]
        else:
            self._ready[is_retry].move_to_end(receiver)
        if self._under_way[receiver] >= self._per_receiver:
            for ready in self._ready.values():
                ready.pop(receiver, None)
        return Turn(receiver, name, is_retry)

    def give_back(self, turn: Turn) -> None:
        receiver = turn.receiver
        self._total -= 1
        self._retries -= turn.is_retry
        self._under_way[receiver] -= 1
        if not self._under_way[receiver]:
            del self._under_way[receiver]
        for is_retry, ready in self._ready.items():
            if (receiver, is_retry) in self._queues:
                ready.setdefault(receiver)
