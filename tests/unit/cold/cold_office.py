"""An engine with its cold tier: real segments in a real folder, a real catalog, a real loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from millstream.clock import ManualClock
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.eviction import Eviction
from millstream.cold.flush_planning import FlushLimits
from millstream.cold.flusher import Flusher
from millstream.cold.pending_objects import PendingObjects
from millstream.engine.engine import Engine
from millstream.engine.timings import Backoff, Timings
from millstream.formats.runs import Run, Segment
from millstream.state.commands import AnyCommand, Append, CreateStream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_store import CatalogStore
from millstream.tier.objects import ColdSettings, ObjectStore
from millstream.tier.segments import SegmentReader
from tests.unit.engine.world import ListeningJournal
from tests.unit.journal.fake_disk import FakeDisk

STORE_ID = "0123456789abcdef0123456789abcdef"
FOLDER = "/data/checkpoints"
HASTY = Timings(checkpoint_retry=Backoff(0.01, 15.0))
NEVER = FlushLimits(shard_bytes=1 << 40, age_ms=1 << 40, hot_bytes=1 << 40)


class ColdOffice:
    """Nothing is started but the engine; a test starts what it is about."""

    def __init__(
        self,
        folder: Path,
        limits: FlushLimits = NEVER,
        *,
        shards: int = 1,
        streams_max: int = 10**6,
        wal_bytes: int = 1 << 40,
        dirty_streams: int = 1 << 40,
        recovered: int = 0,
        timings: Timings = HASTY,
    ) -> None:
        self.folder = folder
        self.catalog = Catalog.open(folder / "catalog", shards, STORE_ID)
        self.objects = ObjectStore(ColdSettings(f"fs:{folder / 'cold'}"))
        self.clock = ManualClock()
        self.journal = ListeningJournal()
        self.machine = StateMachine(shards, CatalogStore(self.catalog))
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.flusher = Flusher(
            self.engine, self.objects, STORE_ID, limits, PendingObjects(), timings
        )
        self.disk = FakeDisk()
        self.checkpointer = Checkpointer(
            self.engine,
            self.disk,
            FOLDER,
            STORE_ID,
            self.catalog,
            self.flusher,
            wal_bytes,
            dirty_streams,
            timings,
            wal_bytes_recovered=recovered,
        )
        self.eviction = Eviction(self.engine, streams_max, timings)
        self.checkpointer.after.append(self.eviction.stored)
        self.group = asyncio.TaskGroup()
        self._running = contextlib.AsyncExitStack()

    async def start(self, *services: Flusher | Checkpointer | Eviction) -> None:
        for service in services:
            await self._running.enter_async_context(service.running(self.group))

    async def start_all(self) -> None:
        """In the order of the server."""
        await self.start(self.eviction, self.checkpointer, self.flusher)

    async def submit(self, command: AnyCommand) -> Outcome:
        """Committed and applied, and what was to come after its batch has been called."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.engine.submit(command, lambda _, outcome: waiting.set_result(outcome), None)
        return await waiting

    async def create(self, path: bytes, **fields: Any) -> Stream:
        await self.submit(CreateStream(self.clock.now_ms(), path, b"text/plain", **fields))
        stream = self.machine.find(path)
        assert stream is not None
        return stream

    async def append(self, path: bytes, *messages: bytes) -> None:
        stream = self.machine.find(path)
        assert stream is not None
        for data in messages:
            await self.submit(Append(self.clock.now_ms(), stream.stream_id, data, b"", 1))

    async def flush(self) -> None:
        await self.flusher.flush_floor(0)

    async def flush_stream(self, stream: Stream, bytes_max: int) -> Exception | None:
        try:
            await self.flusher.flush_stream(stream, bytes_max)
        except Exception as error:
            return error
        return None

    async def checkpoint(self) -> None:
        await self.checkpointer.checkpoint()

    async def close(self) -> None:
        """As the server does it; a second time nothing happens."""
        await self._running.aclose()
        await self.checkpointer.close()

    def stored(self) -> list[str]:
        return sorted(info.name for info in self.objects.list("segments/"))

    def content_of(self, runs: list[tuple[Segment, Run]]) -> bytes:
        reader = SegmentReader(self.objects, 1 << 20)
        found = [reader.load_runs(segment, [run])[0].data for segment, run in runs]
        return b"".join(found)


def run(
    folder: Path, story: Callable[[ColdOffice], Awaitable[None]], *args: Any, **fields: Any
) -> None:
    async def whole() -> None:
        office = ColdOffice(folder, *args, **fields)
        loop = asyncio.get_running_loop()
        office.engine.start(loop, office.catalog)
        try:
            async with office.group:
                try:
                    await story(office)
                finally:
                    await office.close()
        finally:
            office.catalog.close()

    asyncio.run(whole())


async def until(condition: Callable[[], object], *, seconds: float = 0.002) -> None:
    """Waits for what another thread, task or timer brings about; 0: looks in every turn."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(seconds)
