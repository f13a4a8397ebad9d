"""A server's cold tier on a real loop and real files, without HTTP and without patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream.clock import ManualClock
from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.flush_planning import FlushLimits
from millstream.cold.flusher import Flusher
from millstream.cold.garbage import Garbage, Report
from millstream.cold.pending_objects import PendingObjects
from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.journal.disk import OsDisk
from millstream.journal.memory import MemoryJournal
from millstream.limits import MIB
from millstream.state.commands import AnyCommand, Append, CreateStream, DeleteStream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_store import CatalogStore
from millstream.tier.objects import ColdSettings, ObjectStore

STORE_ID = "5a" * 16
SHARDS = 2
LATER_MS = 4_000_000_000_000  # every file is older than that
PATIENCE = Timings(
    upload_nudge=3600.0,
    upload_share=0.0,
    garbage_grace=0.0,
    orphan_age=0.0,
    orphan_first_look=3600.0,
)


class ObedientGarbage(Garbage):
    """Collects when it is told to and never by itself."""

    def _collect_soon(self) -> None:
        pass


class SomeJobs:
    """What is under way, as the test says."""

    def __init__(self) -> None:
        self.started_ms: int | None = None
        self.names: set[str] = set()

    def oldest_start_ms(self) -> int | None:
        return self.started_ms

    def busy_names(self) -> set[str]:
        return self.names


class TierWorld:
    def __init__(self, folder: Path, timings: Timings = PATIENCE) -> None:
        self.timings = timings
        self.group: asyncio.TaskGroup  # while it runs
        self.clock = ManualClock(LATER_MS)
        self.objects = ObjectStore(ColdSettings(f"fs:{folder / 'cold'}", timeout_seconds=1.0))
        self.catalog = Catalog.open(folder / "catalog", SHARDS, STORE_ID)
        self.machine = StateMachine(SHARDS, CatalogStore(self.catalog))
        self.journal = MemoryJournal()
        self.engine = Engine(
            *(self.machine, self.journal, self.clock, self.catalog.lsn),
            lifetimes_retry=timings.lifetimes_retry,
        )
        self.pending = PendingObjects()
        limits = FlushLimits(MIB, 300_000, 64 * MIB)
        self.flusher = Flusher(self.engine, self.objects, STORE_ID, limits, self.pending, timings)
        self.checkpointer = Checkpointer(
            *(self.engine, OsDisk(), str(folder / "checkpoints"), STORE_ID, self.catalog),
            *(self.flusher, 64 * MIB, 1000, timings),
            wal_bytes_recovered=0,
        )
        self.uploads = CatalogUploads(
            *(self.engine, self.checkpointer, self.catalog, self.objects, STORE_ID),
            *(folder / "uploads", 0.0, 1.0, timings),
        )
        self.jobs = SomeJobs()
        self.garbage = ObedientGarbage(
            *(self.engine, self.checkpointer, self.catalog, self.objects, self.uploads),
            *(self.pending, self.jobs, timings),
        )

    @asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """As assemble.py starts and stops it; what a test enters in `parts` stops first."""
        self.engine.start(asyncio.get_running_loop(), self.catalog)
        self.group = group
        async with AsyncExitStack() as stack:
            stack.callback(self.catalog.close)
            stack.push_async_callback(self.journal.close)
            stack.push_async_callback(self.checkpointer.close)
            await stack.enter_async_context(self.uploads.running(group))
            await stack.enter_async_context(self.checkpointer.running(group))
            await stack.enter_async_context(self.garbage.running(group))
            await stack.enter_async_context(self.flusher.running(group))
            self.parts = await stack.enter_async_context(AsyncExitStack())
            yield

    # What happens in it

    async def submit(self, command: AnyCommand) -> Outcome:
        return await self.engine.perform(command)

    async def create(self, path: bytes, data: bytes = b"content") -> Stream:
        command = CreateStream(self.clock.now_ms(), path, b"text/plain", data=data, count=1)
        await self.submit(command)
        stream = self.machine.find(path)
        assert stream is not None
        return stream

    async def append(self, stream: Stream, data: bytes) -> None:
        await self.submit(Append(self.clock.now_ms(), stream.stream_id, data, b"", 1))

    async def delete(self, stream: Stream) -> None:
        await self.submit(DeleteStream(self.clock.now_ms(), stream.stream_id))

    async def flush(self, stream: Stream) -> None:
        await self.flusher.flush_stream(stream, MIB)

    async def checkpoint(self) -> None:
        await self.checkpointer.checkpoint()

    async def upload(self) -> None:
        """A checkpoint, and the catalog's copy of it in the store."""
        uploaded = asyncio.Event()
        self.uploads.after.append(uploaded.set)
        await self.checkpoint()
        await uploaded.wait()
        self.uploads.after.remove(uploaded.set)

    async def look(self) -> Report:
        return await self.garbage.look()

    async def collect(self) -> list[str]:
        """Names of what is gone now."""
        items, error = await self.garbage.collect()
        if error is not None:
            raise error
        return [item.name for item in items]

    async def find_orphans(self) -> None:
        await self.garbage.find_orphans()

    def names(self, prefix: str) -> list[str]:
        return sorted(info.name for info in self.objects.list(prefix))


@asynccontextmanager
async def tier(folder: Path, timings: Timings = PATIENCE) -> AsyncIterator[TierWorld]:
    world = TierWorld(folder, timings)
    async with asyncio.TaskGroup() as group, world.running(group):
        yield world
