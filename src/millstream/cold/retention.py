"""Retention: gives up old content of buckets that do not keep all of it, and old records of the
server's own streams.

Whole runs only, so it is never exact to the message, and only what is cold: all old content is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, in_background
from millstream.formats.layout import StreamId
from millstream.limits import TRIMS_AT_ONCE
from millstream.state.commands import TrimStream
from millstream.state.system_streams import AGES_MS

COMPLAINT = "cannot look for content to give up"

Ends = list[tuple[StreamId, int, int]]  # stream id, ordinal, byte


class RunAges(Protocol):
    """Called on a worker thread."""

    def aged(self, bucket: bytes, before_ms: int) -> Ends: ...

    def oversize(self, bucket: bytes, bytes_max: int) -> Ends: ...

    def aged_stream(self, stream_id: StreamId, before_ms: int) -> Ends: ...


class RetentionSweeps:
    def __init__(
        self, engine: Engine, ages: RunAges, interval_seconds: float, timings: Timings
    ) -> None:
        self._engine = engine
        self._ages = ages
        self._interval_seconds = interval_seconds
        self._thread = Threads("retention", 1)
        self._upkeep = Upkeep(engine.faults, "retention", timings.retention_retry)

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Sweeps every interval. Afterwards none is under way, and what one left is for the next
        start."""
        try:
            async with in_background(group, self._run()):
                yield
        finally:
            await self._thread.close()

    async def _run(self) -> None:
        await asyncio.sleep(self._interval_seconds)
        await self._upkeep.repeat(self._sweep, COMPLAINT)

    async def _sweep(self) -> float:
        """What is too old or too much is on its way to be trimmed; seconds until the next time."""
        await self._trim(await self._find())
        self._upkeep.worked()
        return self._interval_seconds

    async def _find(self) -> Ends:
        now_ms = self._engine.clock.now_ms()
        wanted = [
            (bucket.name, bucket.retention)
            for bucket in self._engine.machine.names.buckets.values()
            if bucket.retention != (None, None)
        ]

        own = [
            (kept.stream_id, AGES_MS[path])
            for path, kept in self._engine.machine.system.by_path.items()
        ]

        def look() -> Ends:
            found: Ends = []
            for stream_id, own_age_ms in own:
                found += self._ages.aged_stream(stream_id, now_ms - own_age_ms)
            for name, (age_ms, bytes_max) in wanted:
                if age_ms is not None:
                    found += self._ages.aged(name, now_ms - age_ms)
                if bytes_max is not None:
                    found += self._ages.oversize(name, bytes_max)
            return found

        return await self._thread.run(look)

    async def _trim(self, ends: Ends) -> None:
        """A few at a time: all requests want the loop too."""
        for start in range(0, len(ends), TRIMS_AT_ONCE):
            now_ms = self._engine.clock.now_ms()
            for end in ends[start : start + TRIMS_AT_ONCE]:
                self._trim_one(now_ms, *end)
            await asyncio.sleep(0)

    def _trim_one(self, now_ms: int, stream_id: StreamId, ordinal: int, byte: int) -> None:
        stream = self._engine.machine.find_by_id(stream_id)
        if stream is not None and stream.snapshot is None and ordinal > stream.log.first_ordinal:
            self._engine.submit_and_forget(TrimStream(now_ms, stream_id, ordinal, byte))
