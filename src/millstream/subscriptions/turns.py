"""Whose webhook goes next: bounded per receiver and in all, and fair.

Receivers take turns, so one with very many webhooks waiting delays none of the others. Half of the
places are kept free of two things: a second webhook to the same receiver, and retries. So receivers
that do not answer, and hold their places until the deadline, leave room for those that do.
What waits is a name in a queue, no task.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import NamedTuple

Ready = OrderedDict[str, None]  # receivers, whose turn is next first


class Turn(NamedTuple):
    """A place that is taken, until it is given back."""

    receiver: str
    name: str
    is_retry: bool


class Turns:
    def __init__(self, at_once: int, per_receiver: int) -> None:
        self._at_once = at_once
        self._half = max(at_once // 2, 1)
        self._per_receiver = per_receiver
        self._under_way: Counter[str] = Counter()  # by receiver
        self._total = 0
        self._retries = 0
        self._names: set[str] = set()  # all that wait
        self._queues: dict[tuple[str, bool], deque[str]] = {}
        # With something to send, by whether that is a retry: those with nothing under way, and
        # those with something that may have more.
        self._idle: dict[bool, Ready] = {False: OrderedDict(), True: OrderedDict()}
        self._busy: dict[bool, Ready] = {False: OrderedDict(), True: OrderedDict()}
        self._retries_first = False

    def wait(self, receiver: str, name: str, *, is_retry: bool) -> None:
        """Queues up, unless the name does so already."""
        if name not in self._names:
            self._names.add(name)
            self._queues.setdefault((receiver, is_retry), deque()).append(name)
            self._settle(receiver)

    def take(self) -> Turn | None:
        """Whose turn it is; None: none waits, or there is no place left for those that do."""
        if self._total >= self._at_once:
            return None
        return self._next(self._idle) or (
            self._next(self._busy) if self._total < self._half else None
        )

    def _next(self, ready: dict[bool, Ready]) -> Turn | None:
        for is_retry in (self._retries_first, not self._retries_first):
            if ready[is_retry] and not (is_retry and self._retries >= self._half):
                self._retries_first = not is_retry
                return self._begin(next(iter(ready[is_retry])), is_retry)
        return None

    def _begin(self, receiver: str, is_retry: bool) -> Turn:
        queue = self._queues[receiver, is_retry]
        name = queue.popleft()
        if not queue:
            del self._queues[receiver, is_retry]
        self._names.discard(name)
        self._total += 1
        self._retries += is_retry
        self._under_way[receiver] += 1
        self._busy[is_retry].pop(receiver, None)  # to the end of the row, if it has more
        self._settle(receiver)
        return Turn(receiver, name, is_retry)

    def give_back(self, turn: Turn) -> None:
        self._total -= 1
        self._retries -= turn.is_retry
        self._under_way[turn.receiver] -= 1
        if not self._under_way[turn.receiver]:
            del self._under_way[turn.receiver]
        self._settle(turn.receiver)

    def _settle(self, receiver: str) -> None:
        """Puts it where it belongs now, at the end of the row if it was not there."""
        count = self._under_way[receiver]
        for is_retry in (False, True):
            is_waiting = (receiver, is_retry) in self._queues
            _set(self._idle[is_retry], receiver, is_waiting and count == 0)
            _set(self._busy[is_retry], receiver, is_waiting and 0 < count < self._per_receiver)


def _set(ready: Ready, receiver: str, is_in: bool) -> None:
    if is_in:
        ready.setdefault(receiver)
    else:
        ready.pop(receiver, None)
