"""What waits for the log: how much of it may, and which appends have waited too long.

No append pays for this. A look at the queue ten times a second finds the appends that a disk keeps
waiting, and how full the queue is; only when it is nearly full does each append count (through
HotBudget, which has a word that every append looks at anyway).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep, in_background
from millstream.errors import QueueFull, StreamError
from millstream.faults import Faults
from millstream.journal.contract import Entry, Journal
from millstream.limits import (
    MIB,
    OVERDUE_AT_ONCE,
    QUEUE_LOOK_SECONDS,
    QUEUE_NEAR_BYTES,
    QUEUE_NEAR_REQUESTS,
)
from millstream.state.commands import Append, CreateStream
from millstream.state.horizon import Horizon

COMPLAINT = "cannot look after what waits for the log"


class QueueLimits(NamedTuple):
    requests: int = 50_000
    bytes_max: int = 64 * MIB  # of their content
    append_seconds: float = 0.0  # until an append has waited too long; 0: never


class _Mark(NamedTuple):
    at: float
    submitted: int  # commands, ever


class JournalQueue:
    def __init__(self, journal: Journal, horizon: Horizon, faults: Faults) -> None:
        self.is_near_full = False  # appends have to ask: `admit`
        self.changed: Callable[[], None] = _nothing  # told when that changes
        self.overdue: Callable[[Any], None] = _nothing  # told the context of each, once
        self.refused = 0  # since the start
        self.timed_out = 0  # since the start
        self.limits = QueueLimits()
        self._journal = journal
        self._horizon = horizon
        self._upkeep = Upkeep(faults, "queue", Backoff(1.0, 30.0))
        self._bytes = 0  # that wait, and
        self._counted_at = -1  # as of how many commands that came back
        self._marks: deque[_Mark] = deque()
        self._told = 0  # the first so many commands ever were told of, or came back in time

    def limit(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._judge()

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Looks ten times a second; afterwards no append is told that it waited too long."""
        async with in_background(group, self._upkeep.repeat(self._look, COMPLAINT)):
            yield

    async def _look(self) -> float:
        """Who waited too long is told; seconds until the next look."""
        self._judge()
        overdue = self.take_overdue(asyncio.get_running_loop().time())
        for start in range(0, len(overdue), OVERDUE_AT_ONCE):
            for context in overdue[start : start + OVERDUE_AT_ONCE]:
                self.timed_out += 1
                self._upkeep.tell(self.overdue, context)
            await asyncio.sleep(0)
        self._upkeep.worked()
        return QUEUE_LOOK_SECONDS

    # Too long

    def take_overdue(self, now: float) -> Sequence[Any]:
        """Contexts of the appends that had been submitted before a look that was long enough ago.

        Commands come back in order, so counting them is enough to know which those are.
        """
        seconds, marks, horizon = self.limits.append_seconds, self._marks, self._horizon
        if not seconds:
            return ()
        marks.append(_Mark(now, horizon.submitted))
        while len(marks) > 1 and marks[1].at <= now - seconds:
            marks.popleft()
        told, due = max(self._told, horizon.returned), marks[0].submitted
        if marks[0].at > now - seconds or due <= told:
            return ()
        self._told = due
        behind = horizon.returned
        entries = islice(self._journal.under_way(), told - behind, due - behind)
        return [context for command, _, context in entries if _is_append(command)]

    # Too much

    def admit(self, entry: Entry) -> StreamError | None:
        """None: there is room, and the entry has to be submitted now."""
        limits, size = self.limits, content_bytes(entry)
        if self._bytes + size > limits.bytes_max:
            self._count()
        # One that is larger than the whole queue may come when no other waits.
        is_too_large = self._bytes > 0 and self._bytes + size > limits.bytes_max
        if is_too_large or self._journal.depth >= limits.requests:
            self.refused += 1
            return QueueFull("ingest queue full")
        self._bytes += size
        return None

    def _count(self) -> None:
        """Anew only when something came back since: who is refused must not make it slower."""
        if self._counted_at != self._horizon.returned:
            self._counted_at = self._horizon.returned
            self._bytes = sum(map(content_bytes, self._journal.under_way()))

    def _judge(self) -> None:
        limits = self.limits
        is_near = self._journal.depth >= limits.requests - QUEUE_NEAR_REQUESTS
        if not is_near or not self.is_near_full:
            self._counted_at = -1  # appends came by that did not count
            self._count()
            is_near = is_near or self._bytes >= limits.bytes_max - QUEUE_NEAR_BYTES
        if is_near != self.is_near_full:
            self.is_near_full = is_near
            self.changed()


def content_bytes(entry: Entry) -> int:
    command = entry[0]
    if not isinstance(command, Append | CreateStream):
        return 0
    return len(command.data) + sum(map(len, command.pieces))


def _is_append(command: object) -> bool:
    """Whether content or a closure waits for it. A stream without any is created in its time."""
    if isinstance(command, CreateStream):
        return bool(command.count) or command.closed
    return isinstance(command, Append)


def _nothing(*_: object) -> None:
    pass
