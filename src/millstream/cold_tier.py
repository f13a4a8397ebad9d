"""The cold tier wired on one page: its services, their routes, and the order of start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

from millstream.api.flush_all import FlushAll
from millstream.api.flush_cold import explain_flush
from millstream.api.garbage import GarbageRoutes
from millstream.api.jobs import JobRoutes
from millstream.api.json_metrics import ColdNumbers
from millstream.api.routes import ColdRoutes
from millstream.api.slow_requests import SlowRequests
from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.cold_reads import ColdReads
from millstream.cold.eviction import Eviction
from millstream.cold.flush_planning import FlushLimits
from millstream.cold.flusher import Flusher
from millstream.cold.garbage import Garbage
from millstream.cold.memory_keeper import MemoryKeeper
from millstream.cold.pending_objects import PendingObjects
from millstream.cold.retention import RetentionSweeps
from millstream.cold.room_maker import RoomMaker, says_full
from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.inspection.memory_report import ColdState
from millstream.jobs.compaction import Policy
from millstream.jobs.eraser_process import EraserProcess
from millstream.jobs.erasure import Erasure
from millstream.jobs.rewrites import rewriting_kinds
from millstream.jobs.segment_swaps import SegmentSwaps
from millstream.jobs.service import Jobs
from millstream.jobs.source import JobSource, cold_place
from millstream.jobs.table import JobTable
from millstream.journal.disk import OsDisk
from millstream.limits import WINDOW_THREADS
from millstream.storage import DiskStorage, Storage
from millstream.tier.segments import SegmentReader


def _is_same_disk(*places: str | Path) -> bool:
    try:
        return len({os.stat(place).st_dev for place in places}) == 1
    except OSError:
        return False


def _in_time(seconds: float, config: Config, share: int) -> float:
    """At most this share of the time within which dead content has to be gone."""
    return min(seconds, config.erase_within / share) if config.erase_within else seconds


def _timings_for(config: Config, timings: Timings) -> Timings:
    """Those that would be too long for what is promised are shorter."""
    return dataclasses.replace(
        timings,
        garbage_grace=_in_time(timings.garbage_grace, config, 32),
        orphan_age=_in_time(timings.orphan_age, config, 8),
        orphan_first_look=_in_time(timings.orphan_first_look, config, 8),
        orphan_look=_in_time(timings.orphan_look, config, 8),
    )


class ColdTier:
    """What moves streams and their content out of memory, in the order it starts and stops, and
    what reads it back."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        storage: Storage,
        disk: DiskStorage,
        timings: Timings,
        own_key: str | None = None,
    ) -> None:
        """`own_key` is for the processes that the server starts itself."""
        timings = _timings_for(config, timings)
        self._objects = disk.objects
        self._catalog_files = disk.catalog.shards + 1
        self._reader = SegmentReader(disk.objects, config.cold_cache_bytes)
        self.cold_reads = ColdReads(
            engine.machine,
            disk.catalog,
            self._reader,
            WINDOW_THREADS,
            config.cold_timeout,
            engine.faults,
        )
        limits = FlushLimits(config.flush_bytes, int(config.flush_age * 1000), config.hot_bytes)
        self._engine = engine
        self.pending = PendingObjects()
        self.flusher = Flusher(
            engine, disk.objects, storage.store_id, limits, self.pending, timings
        )
        self.eviction = Eviction(engine, config.resident_streams, timings)
        self.checkpointer = Checkpointer(
            engine,
            OsDisk(),
            disk.folder.checkpoints,
            storage.store_id,
            disk.catalog,
            self.flusher,
            config.checkpoint_wal_bytes,
            max(config.resident_streams // 2, 1),
            timings,
            wal_bytes_recovered=disk.log_bytes,
        )
        self.flush_requests = SlowRequests(engine.faults, "request", explain_flush)
        self.flush_all = FlushAll(
            engine, self.flusher, self.checkpointer, storage.store_id, self.flush_requests
        )
        self.checkpointer.after.append(self.eviction.stored)
        self.checkpointer.after.append(lambda _: engine.lifetimes.sweep())
        self.retention = RetentionSweeps(engine, disk.catalog, config.retention_interval, timings)
        self.memory = MemoryKeeper(engine.faults, timings)
        self._job_thread = Threads("jobs", 1)
        job_table, source = JobTable(engine.clock), JobSource(disk.catalog, disk.objects)
        policy, swaps = Policy(), SegmentSwaps(engine, self.checkpointer)
        erasure = Erasure(source, engine.clock, policy, config.erase_within)
        self.jobs = Jobs(
            rewriting_kinds(source, erasure, swaps.swap, self._job_thread, policy),
            job_table,
            self._job_thread,
            storage.store_id,
            cold_place(disk.objects.settings),
            engine.faults,
        )
        self.job_routes = JobRoutes(self.jobs, engine.faults)
        self.eraser = EraserProcess(
            config, self.jobs, erasure, self._job_thread, engine.faults, timings, own_key
        )
        self.uploads = CatalogUploads(
            engine,
            self.checkpointer,
            disk.catalog,
            disk.objects,
            storage.store_id,
            disk.folder.path / "uploads",
            _in_time(config.catalog_upload_interval, config, 16),
            config.shutdown_timeout,
            timings,
        )
        self.garbage = Garbage(
            engine,
            self.checkpointer,
            disk.catalog,
            disk.objects,
            self.uploads,
            self.pending,
            job_table,
            timings,
        )
        self.garbage_routes = GarbageRoutes(self.garbage, engine.faults)
        self._room = RoomMaker(
            engine,
            self.checkpointer,
            self.uploads,
            self.garbage,
            lambda: [part.error for part in self._on_disk_of_log],
            timings,
        )
        self._on_disk_of_log: list[Checkpointer | Flusher] = []
        folder = disk.folder
        if _is_same_disk(folder.wal, folder.catalog, folder.checkpoints):
            self._on_disk_of_log.append(self.checkpointer)
        place = disk.objects.settings.url
        if place.startswith("fs:") and _is_same_disk(folder.wal, place.removeprefix("fs:")):
            self._on_disk_of_log.append(self.flusher)

    def is_store_full(self) -> bool:
        """The cold store is a folder without room, and appends are refused for that."""
        return bool(self._engine.hot_budget.full_shards) and says_full(self.flusher.error)

    def routes(self) -> ColdRoutes:
        return ColdRoutes(self.job_routes, self.garbage_routes, self.flush_all)

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Each part stops before those it works with. Afterwards all that is applied is in the
        catalog and a copy of that in the store, as far as disk and store allowed it."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.eviction.running(group))
            stack.push_async_callback(self.checkpointer.close)
            await stack.enter_async_context(self.uploads.running(group))
            await stack.enter_async_context(self.checkpointer.running(group))
            await stack.enter_async_context(self.garbage_routes.running(group))
            await stack.enter_async_context(self.garbage.running(group))
            stack.push_async_callback(self._job_thread.close)
            await stack.enter_async_context(self.job_routes.running(group))
            await stack.enter_async_context(self.flush_requests.running(group))
            await stack.enter_async_context(self.flusher.running(group))
            await stack.enter_async_context(self.retention.running(group))
            await stack.enter_async_context(self.memory.running(group))
            await stack.enter_async_context(self._room.running(group))
            yield

    def state(self) -> ColdState:
        return ColdState(
            self.flusher.held_bytes,
            self._reader.cached_bytes,
            self._reader.cached_row_groups,
            self._reader.arrow_bytes,
            self.flusher.uploads,
            self.flusher.upload_bytes,
            self.cold_reads.loading,
            self._catalog_files,
        )

    def numbers(self) -> ColdNumbers:
        return ColdNumbers(
            self._objects.requests,
            self._objects.bytes_in,
            self._objects.bytes_out,
            self.flusher.segments,
            self.checkpointer.count,
            self.uploads.count,
            self.flusher.held_bytes,
            self.cold_reads.loads,
            self._reader.cached_bytes,
            self.eraser.dead.in_all,
            self.eraser.dead.overdue,
        )
