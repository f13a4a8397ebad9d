"""An engine with its cold tier: real segments in a real folder, a real catalog, a real loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from millstream.clock import ManualClock
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.eviction import Eviction
from millstream.cold.flush_planning import FlushLimits
from millstream.cold.flusher import Flusher
from millstream.engine.engine import Engine
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
    ) -> None:
        self.folder = folder
        self.catalog = Catalog.open(folder / "catalog", shards, STORE_ID)
        self.objects = ObjectStore(ColdSettings(f"fs:{folder / 'cold'}"))
        self.clock = ManualClock()
        self.journal = ListeningJournal()
        self.machine = StateMachine(shards, CatalogStore(self.catalog))
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.flusher = Flusher(self.engine, self.objects, STORE_ID, limits)
        self.disk = FakeDisk()
        self.checkpointer = Checkpointer(
            self.engine,
            self.disk,
            FOLDER,
            STORE_ID,
            self.catalog,
            self.flusher,
            1 << 40,
            1 << 40,
            wal_bytes_recovered=0,
        )
        self.eviction = Eviction(self.engine, streams_max)
        self.checkpointer.after.append(self.eviction.stored)
        self._is_closed = False

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
        waiting = asyncio.Event()
        self.flusher.flush_floor(0, waiting.set)
        await waiting.wait()

    async def flush_stream(self, stream: Stream, bytes_max: int) -> Exception | None:
        waiting: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.flusher.flush_stream(stream, bytes_max, waiting.set_result)
        return await waiting

    async def checkpoint(self) -> None:
        waiting = asyncio.Event()
        self.checkpointer.run(waiting.set)
        await waiting.wait()

    async def close(self) -> None:
        """As the server does it; a second time nothing happens."""
        if not self._is_closed:
            self._is_closed = True
            await self.flusher.close()
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
            await story(office)
            await office.close()
        finally:
            office.catalog.close()

    asyncio.run(whole())


async def until(condition: Callable[[], object], *, seconds: float = 0.002) -> None:
    """Waits for what somebody else's thread or timer brings about; 0: looks in every turn."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(seconds)
