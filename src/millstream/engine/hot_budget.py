"""Who has to wait, or to come again, when there is no room for new content.

When too much waits for the log already (journal_queue.py), appends are refused.

A shard that holds more than its share takes no new content until a flush has made room. While the
cold store works, that is a moment, and appends wait for it; when the store fails or the moment
takes too long, they are refused and told to come back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millstream.engine.journal_queue import JournalQueue
from millstream.errors import HotBudgetUsed, StreamError
from millstream.faults import Faults
from millstream.journal.contract import Entry
from millstream.limits import APPEND_WAIT_SECONDS, APPENDS_WAITING_MAX


class _WaitingAppend(NamedTuple):
    until: float
    shard: int
    entry: Entry


class HotBudget:
    def __init__(
        self, submit: Callable[[Entry], None], queue: JournalQueue, faults: Faults | None = None
    ) -> None:
        self.full_shards: frozenset[int] = frozenset()
        self.is_tight = False  # there may be no room: new content has to come by `submit`
        self.refused = 0  # since the start
        self._submit = submit
        self._queue = queue
        queue.changed = self._judge
        self._faults = faults or Faults()
        self._is_store_failing = False
        self._waiting: deque[_WaitingAppend] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, shard: int, entry: Entry) -> None:
        """Now, when there is room, or never: then the entry's reply gets QueueFull or
        HotBudgetUsed."""
        if self._queue.is_near_full and (refusal := self._queue.admit(entry)) is not None:
            self._refuse(entry, refusal)
        elif shard not in self.full_shards:
            self._submit(entry)
        elif self._is_store_failing or len(self._waiting) >= APPENDS_WAITING_MAX:
            self._refuse(entry)
        else:
            self._waiting.append(
                _WaitingAppend(self._loop.time() + APPEND_WAIT_SECONDS, shard, entry)
            )
            if self._timer is None:
                self._timer = self._loop.call_later(APPEND_WAIT_SECONDS, self._give_up)

    def set_full(self, shards: frozenset[int], *, is_store_failing: bool) -> None:
        self.full_shards = shards
        self._judge()
        self._is_store_failing = is_store_failing
        if self._waiting:
            waiting, self._waiting = self._waiting, deque()
            for append in waiting:
                if append.shard not in shards:
                    self._submit(append.entry)
                elif is_store_failing:
                    self._refuse(append.entry)
                else:
                    self._waiting.append(append)

    def _judge(self) -> None:
        self.is_tight = bool(self.full_shards) or self._queue.is_near_full

    def _give_up(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].until <= now:
            self._refuse(self._waiting.popleft().entry)
        if self._waiting:
            delay = self._waiting[0].until - now
            self._timer = self._loop.call_later(delay, self._give_up)

    def close(self) -> None:
        """Appends that still wait are refused."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._refuse(self._waiting.popleft().entry)

    def _refuse(self, entry: Entry, refusal: StreamError | None = None) -> None:
        """An error in one reply must not cost the others theirs."""
        if refusal is None:
            self.refused += 1
            refusal = HotBudgetUsed("the cold store is behind and memory is full; try again")
        _, reply, context = entry
        try:
            reply(context, refusal)
        except Exception as error:
            self._faults.report("reply", error)
