"""Retention: gives up old content of buckets that do not keep all of it.

Whole runs only, so it is never exact to the message, and only what is cold: all old content is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.formats.layout import StreamId
from millstream.limits import TRIMS_AT_ONCE
from millstream.state.commands import TrimStream

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 300.0

Ends = list[tuple[StreamId, int, int]]  # stream id, ordinal, byte


class RunAges(Protocol):
    """Called on a worker thread."""

    def aged(self, bucket: bytes, before_ms: int) -> Ends: ...

    def oversize(self, bucket: bytes, bytes_max: int) -> Ends: ...


class RetentionSweeps:
    def __init__(self, engine: Engine, ages: RunAges, interval_seconds: float) -> None:
        self._engine = engine
        self._ages = ages
        self._interval_seconds = interval_seconds
        self._thread = OffLoop("retention", 1)
        self._upkeep = Upkeep(
            engine.faults, "retention", Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        )
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._sweep_in(self._interval_seconds)

    def sweep(self) -> None:
        """Looks what is too old or too much, trims it, and comes back after the interval."""
        self._guard(self._look)

    def _guard(self, step: Callable[[], None]) -> None:
        """Every step runs in here: whatever it raises, there is another sweep."""
        try:
            step()
        except Exception as error:
            self._sweep_in(self._upkeep.failed(error, "cannot look for content to give up"))

    def _sweep_in(self, seconds: float) -> None:
        if not self._is_closing:
            self._timer = self._loop.call_later(seconds, self.sweep)

    def _look(self) -> None:
        now_ms = self._engine.clock.now_ms()
        wanted = [
            (bucket.name, bucket.retention)
            for bucket in self._engine.machine.names.buckets.values()
            if bucket.retention != (None, None)
        ]

        def look() -> Ends:
            found: Ends = []
            for name, (age_ms, bytes_max) in wanted:
                if age_ms is not None:
                    found += self._ages.aged(name, now_ms - age_ms)
                if bytes_max is not None:
                    found += self._ages.oversize(name, bytes_max)
            return found

        self._thread.run(look, lambda found: self._guard(lambda: self._found(found)))

    def _found(self, found: Ends | Exception) -> None:
        if isinstance(found, Exception):
            raise found
        self._trim(iter(found))

    def _trim(self, ends: Iterator[tuple[StreamId, int, int]]) -> None:
        """A few at a time: everybody else wants the loop too."""
        machine, now_ms = self._engine.machine, self._engine.clock.now_ms()
        for _ in range(TRIMS_AT_ONCE):
            end = next(ends, None)
            if end is None:
                self._upkeep.worked()
                self._sweep_in(self._interval_seconds)
                return
            stream_id, ordinal, byte = end
            stream = machine.find_by_id(stream_id)
            if (
                stream is not None
                and stream.snapshot is None
                and ordinal > stream.log.first_ordinal
            ):
                self._engine.submit_and_forget(TrimStream(now_ms, stream_id, ordinal, byte))
        self._loop.call_soon(self._guard, lambda: self._trim(ends))

    async def close(self) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._thread.wait_idle()
        self._thread.close()
