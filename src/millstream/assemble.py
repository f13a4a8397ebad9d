"""The whole machine wired on one page: builds the system from a Config and stops it again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import secrets
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import structlog

from millstream.access.gate import Gate
from millstream.access.key_text import new_key
from millstream.addresses import ANY
from millstream.api.batches import Batches
from millstream.api.bootstrap import Bootstraps
from millstream.api.compression import Compression
from millstream.api.cors import fixed_headers
from millstream.api.flush_all import FlushAll
from millstream.api.flush_cold import FlushCold, explain_flush
from millstream.api.garbage import GarbageRoutes
from millstream.api.jobs import JobRoutes
from millstream.api.json_metrics import ColdNumbers
from millstream.api.keys import KeyRoutes
from millstream.api.large_bodies import LargeBodies
from millstream.api.long_poll import LongPolls
from millstream.api.namespace import NamespaceApi
from millstream.api.operations import Metrics, Readiness
from millstream.api.own_urls import OwnUrls
from millstream.api.paths import StreamPaths
from millstream.api.reads import Reads
from millstream.api.retention import RetentionRoutes
from millstream.api.routes import SUB_RESOURCES, ColdRoutes, Handlers, build_rows
from millstream.api.routing import RouteTable
from millstream.api.slow_requests import SlowRequests
from millstream.api.snapshots import Snapshots, is_snapshot_url
from millstream.api.sse import SseReaders
from millstream.api.subscriptions import SubscriptionRoutes
from millstream.api.writes import Writes
from millstream.clock import SystemClock
from millstream.cold.blob_worker import BlobWorker
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
from millstream.errors import StartupError
from millstream.faults import Faults
from millstream.http.access_log import Entry
from millstream.http.server import HttpLimits, Server
from millstream.jobs.compaction import Policy
from millstream.jobs.eraser_process import EraserProcess
from millstream.jobs.erasure import Erasure
from millstream.jobs.pipeline_process import pipeline_beside
from millstream.jobs.rewrites import rewriting_kinds
from millstream.jobs.segment_swaps import SegmentSwaps
from millstream.jobs.service import Jobs
from millstream.jobs.source import JobSource, cold_place
from millstream.jobs.table import JobTable
from millstream.journal.contract import Journal
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.memory import MemoryJournal
from millstream.journal.reserve import Reserve
from millstream.journal.wal import LogPlace, WalJournal
from millstream.limits import SSE_BUFFER_BYTES, WINDOW_THREADS
from millstream.listening import Doors
from millstream.protocol.webhook_urls import AllowedReceivers
from millstream.recover import RESTORED, recover
from millstream.state.commands import NoOp
from millstream.state.machine import StateMachine
from millstream.subscriptions.driver import Driver
from millstream.subscriptions.webhooks import WebhookSender
from millstream.telemetry import ACCESS_EVENT
from millstream.tier.blobs import BlobStore, MemoryBlobs, ObjectBlobs
from millstream.tier.catalog import Catalog
from millstream.tier.identity import claim_store
from millstream.tier.objects import ObjectStore, cold_settings
from millstream.tier.segments import SegmentReader

logger = structlog.get_logger("millstream")

DEFAULT_TIMINGS = Timings()


class Storage(NamedTuple):
    """What is left of earlier runs, and where to go on."""

    machine: StateMachine
    journal: Journal
    lsn: int
    store_id: str
    blobs: BlobStore
    disk: DiskStorage | None  # None: everything is in memory only

    def close(self) -> None:
        """The last to let go of the folder; the journal is closed."""
        if self.disk is not None:
            self.disk.catalog.close()
            self.disk.folder.close()


class DiskStorage(NamedTuple):
    folder: DataFolder
    catalog: Catalog
    objects: ObjectStore
    log_bytes: int


class Stop:
    """Why and when the server stops."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.exit_code = 0

    def request(self, exit_code: int = 0) -> None:
        self.exit_code = max(self.exit_code, exit_code)
        self.requested.set()


def open_storage(config: Config, stop: Stop, faults: Faults) -> Storage:
    """Recovers what the data folder holds. Raises StartupError; blocks while it reads."""
    if config.memory:
        store_id = secrets.token_hex(16)
        return Storage(StateMachine(), MemoryJournal(), 0, store_id, MemoryBlobs(), None)
    folder = DataFolder(config.data_dir)
    try:
        return _open_folder(config, folder, stop, faults)
    except BaseException:
        folder.close()
        raise


def _open_folder(config: Config, folder: DataFolder, stop: Stop, faults: Faults) -> Storage:
    # On the disk of the log, wherever that is; recovery may need the room, the journal takes it.
    is_log_elsewhere = os.path.ismount(folder.wal)
    reserve = Reserve(
        folder.wal if is_log_elsewhere else str(folder.path), config.disk_reserve_bytes
    )
    reserve.release_if_needed()
    objects = ObjectStore(cold_settings(config))
    claim_store(objects, folder.store_id)

    def fail(error: OSError) -> None:
        stop.request(exit_code=1)
        logger.error("the log cannot be written; stopping", error=str(error))

    place = LogPlace(OsDisk(), folder.wal, folder.store_id, config.wal_segment_bytes)
    journal = WalJournal(place, fail, reserve, faults)
    machine, catalog, lsn = recover(config, folder, journal)
    disk = DiskStorage(folder, catalog, objects, journal.log_bytes)
    return Storage(machine, journal, lsn, folder.store_id, ObjectBlobs(objects), disk)


def _http_limits(config: Config) -> HttpLimits:
    return HttpLimits(
        header_bytes=config.max_header_bytes,
        body_bytes=config.max_body_bytes,
        large_body_bytes=config.max_snapshot_bytes,
        body_bytes_in_flight=config.max_inflight_body_bytes,
        connections=config.max_connections,
        idle_seconds=config.idle_timeout,
        request_seconds=config.request_timeout,
        body_seconds=config.body_timeout,
        body_rate_bytes=config.min_body_rate,
        stall_seconds=config.subscriber_stall_timeout,
        write_buffer_bytes=SSE_BUFFER_BYTES,
    )


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"cannot use --tls-cert and --tls-key: {error}") from error
    return context


def _allowed_receivers(config: Config) -> AllowedReceivers:
    try:
        return AllowedReceivers(config.webhook_allow or ())
    except ValueError as error:
        raise StartupError(f"--webhook-allow: {error}") from error


def _log_request(entry: Entry) -> None:
    logger.info(ACCESS_EVENT, **entry._asdict())


def _build_handlers(
    config: Config,
    engine: Engine,
    blobs: BlobWorker,
    bodies: LargeBodies,
    cold_reads: ColdReads,
    paths: StreamPaths,
    tag_id: str,
    own_urls: OwnUrls,
    allowed: AllowedReceivers,
    cold: ColdTier | None,
) -> Handlers:
    loop, clock = asyncio.get_running_loop(), engine.clock
    compression = Compression(is_on=config.compress == "on", faults=engine.faults)
    reads = Reads(engine, cold_reads, clock, tag_id, config.page_bytes, compression)
    return Handlers(
        writes=Writes(engine, reads, paths, clock, own_urls, bodies),
        reads=reads,
        long_polls=LongPolls(engine, reads, clock, loop, config.long_poll_timeout),
        sse=SseReaders(engine, reads, clock, loop, config.sse_lifetime, config.sse_heartbeat),
        namespace=NamespaceApi(engine, clock, compression),
        snapshots=Snapshots(engine, reads, blobs, clock, own_urls, config.max_snapshot_bytes),
        bootstraps=Bootstraps(reads, blobs),
        batches=Batches(engine, clock, bodies),
        control=SubscriptionRoutes(engine, reads, clock, own_urls, allowed),
        flush_cold=FlushCold(engine, None if cold is None else (cold.flusher, cold.flush_requests)),
        retention=RetentionRoutes(engine),
        keys=KeyRoutes(engine),
        cold=None if cold is None else cold.routes(),
    )


def _tag_id(storage: Storage) -> str:
    """What ETags begin with: after a restore, an offset may come again with other content."""
    restored = None if storage.disk is None else storage.disk.catalog.record(RESTORED)
    if restored is None:
        return storage.store_id
    return hashlib.sha256(storage.store_id.encode() + restored).hexdigest()


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


@contextlib.asynccontextmanager
async def running(
    config: Config, stop: Stop, timings: Timings = DEFAULT_TIMINGS
) -> AsyncIterator[str]:
    """A ready server for the length of the block; its base URL. Leaving it stops cleanly."""
    faults = Faults()
    with faults.hearing_all(asyncio.get_running_loop()):
        async with (
            _supervised() as group,
            _running(config, stop, timings, faults, group) as url,
        ):
            yield url


@contextlib.asynccontextmanager
async def _supervised() -> AsyncIterator[asyncio.TaskGroup]:
    """For the tasks of services: an error that escapes one of them ends all of them and the block.

    One error is raised as it is, whether of a task or of the block itself.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        [error] = errors.exceptions
        raise error from error.__cause__


@contextlib.asynccontextmanager
async def _running(
    config: Config, stop: Stop, timings: Timings, faults: Faults, group: asyncio.TaskGroup
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    tls = _tls_context(config)
    allowed = _allowed_receivers(config)
    storage = await asyncio.to_thread(open_storage, config, stop, faults)
    engine = Engine(storage.machine, storage.journal, clock, storage.lsn, faults)
    engine.failed = lambda: stop.request(exit_code=1)
    own_key = new_key()
    gate = Gate(engine.machine.access, clock, own_key, loop.call_soon, config.access)
    paths = StreamPaths(SUB_RESOURCES)
    scheme = "https" if tls is not None else "http"
    own_urls = OwnUrls(scheme, config.public_url)
    cold = None
    if storage.disk is not None:
        cold = ColdTier(config, engine, storage, storage.disk, timings, own_key.text)
    blobs = BlobWorker(storage.blobs, cold.pending if cold else None, faults)
    cold_reads = (
        ColdReads(engine.machine, None, None, WINDOW_THREADS, faults=faults)
        if cold is None
        else cold.cold_reads
    )
    bodies = LargeBodies(config.max_append_messages)
    handlers = _build_handlers(
        *(config, engine, blobs, bodies, cold_reads, paths, _tag_id(storage), own_urls, allowed),
        cold,
    )
    readiness = Readiness(faults, engine.journal, None if cold is None else cold.is_store_full)
    subscriptions = Driver(engine, WebhookSender(faults, allowed), timings, config.public_url)
    server = Server(
        _http_limits(config),
        fixed_headers(is_open=ANY in (config.cors_origin or ())),
        _log_request if config.access_log else None,
        is_snapshot_url,
        faults,
    )
    engine.abandon = server.abandon
    server.faults = faults
    pipeline = None
    if cold is not None and config.pipeline == "auto":
        pipeline = pipeline_beside(config, cold.jobs, faults, timings, own_key.text)
    metrics = Metrics(
        server,
        engine,
        handlers.long_polls,
        handlers.sse,
        None if cold is None else cold.numbers,
        subscriptions.numbers,
    )
    table = RouteTable(build_rows(handlers, readiness, metrics), paths)
    async with contextlib.AsyncExitStack() as stack:  # stops in the opposite order
        stack.callback(storage.close)
        blobs.start(loop)
        stack.callback(blobs.close)
        if cold is None:
            engine.listeners.append(blobs.collect)
        engine.start(loop, None if storage.disk is None else storage.disk.catalog)
        stack.push_async_callback(storage.journal.close)
        if cold is not None:
            await stack.enter_async_context(cold.running(group))
        handlers.reads.compression.start(loop)
        stack.callback(handlers.reads.compression.close)
        cold_reads.start(loop)
        stack.callback(cold_reads.close)
        stack.callback(lambda: engine.submit_and_forget(NoOp(clock.now_ms())))
        stack.callback(engine.lifetimes.stop)
        await stack.enter_async_context(subscriptions.running(group))
        bodies.start(loop)
        stack.push_async_callback(bodies.close)
        stack.push_async_callback(server.close, config.shutdown_timeout)
        stack.callback(engine.end_watchers)
        stack.callback(engine.hot_budget.close)
        stack.callback(server.stop_listening)
        urls = await Doors(server, table, config, clock, gate).open(tls)
        own_urls.listening = server.address
        if pipeline is not None:
            await stack.enter_async_context(pipeline.running(group, urls.operators))
        if cold is not None:
            await stack.enter_async_context(cold.eraser.running(group, urls.operators))
        stack.callback(setattr, readiness, "is_open", False)
        readiness.is_open = True
        yield urls.clients


async def serve(config: Config, timings: Timings = DEFAULT_TIMINGS) -> int:
    """Runs until SIGTERM or SIGINT; the exit code. Raises StartupError."""
    loop = asyncio.get_running_loop()
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.request)
    async with running(config, stop, timings) as url:
        where = "memory" if config.memory else str(config.data_dir)
        logger.info("listening", url=url, data=where)
        await stop.requested.wait()
        logger.info("stopping")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(
            number, signal.SIG_IGN
        )  # all is done: a second one must not spoil the exit code
    logger.info("stopped")
    return stop.exit_code
