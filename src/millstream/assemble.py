"""The whole machine wired on one page: builds the system from a Config and stops it again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from millstream.access.gate import Gate
from millstream.access.key_text import new_key
from millstream.api.app import App, Handlers
from millstream.api.batches import Batches
from millstream.api.bootstrap import Bootstraps
from millstream.api.compression import Compression
from millstream.api.cors import fixed_headers
from millstream.api.flush_all import FLUSH_PATH, FlushAll
from millstream.api.flush_cold import FLUSH_COLD_ROOT, FlushCold
from millstream.api.garbage import GARBAGE_PATH, GarbageRoutes
from millstream.api.jobs import JOBS_ROOT, JobRoutes
from millstream.api.json_metrics import ColdNumbers
from millstream.api.keys import KEYS_ROOT, KeyRoutes
from millstream.api.large_bodies import LargeBodies
from millstream.api.long_poll import LongPolls
from millstream.api.namespace import NamespaceApi
from millstream.api.operations import Metrics, Readiness
from millstream.api.paths import StreamPaths
from millstream.api.reads import Reads
from millstream.api.retention import RETENTION_ROOT, RetentionRoutes
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
from millstream.cold.garbage import FIRST_LOOK_SECONDS, LOOK_SECONDS, Garbage
from millstream.cold.memory_keeper import MemoryKeeper
from millstream.cold.pending_objects import PendingObjects
from millstream.cold.retention import RetentionSweeps
from millstream.cold.room_maker import RoomMaker, says_full
from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Timings
from millstream.errors import StartupError
from millstream.faults import Faults
from millstream.http.access_log import Entry
from millstream.http.message import Request
from millstream.http.server import HttpLimits, Server
from millstream.jobs.eraser_process import EraserProcess
from millstream.jobs.pipeline_process import PipelineProcess
from millstream.jobs.segment_swaps import SegmentSwaps
from millstream.jobs.source import JobSource, cold_place
from millstream.jobs.table import JobTable
from millstream.journal.contract import Journal
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.memory import MemoryJournal
from millstream.journal.reserve import Reserve
from millstream.journal.wal import WalJournal
from millstream.limits import (
    GARBAGE_GRACE_SECONDS,
    ORPHAN_AGE_SECONDS,
    SSE_BUFFER_BYTES,
    WINDOW_THREADS,
)
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
    machine, catalog, writer, lsn = recover(config, folder)

    def fail(error: OSError) -> None:
        stop.request(exit_code=1)
        logger.error("the log cannot be written; stopping", error=str(error))

    journal = WalJournal(writer, fail, reserve, faults)
    disk = DiskStorage(folder, catalog, objects, writer.log_bytes)
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


def _log_request(entry: Entry) -> None:
    logger.info(ACCESS_EVENT, **entry._asdict())


async def _listen(server: Server, config: Config, tls: ssl.SSLContext | None) -> str:
    try:
        host, port = await server.listen(config.host, config.port, tls)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"{config.listen} is in use by another program; choose another --listen"
            ) from error
        raise StartupError(
            f"cannot listen on {config.listen}: {error.strerror or error}"
        ) from error
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_access(config: Config, gate: Gate) -> None:
    """Raises StartupError rather than to be open to other machines by mistake."""
    if gate.is_on:
        if not gate.has_keys:
            logger.warning(
                "no key is good here, so every request gets 401; stop the server and run "
                "`millstream key create --data-dir DIR --scope admin`"
            )
    elif not config.is_loopback and not config.insecure_open:
        raise StartupError(
            f"{config.listen} can be reached from other machines and there is no access control. "
            "Make a key first (`millstream key create --data-dir DIR --scope admin`), listen on "
            "127.0.0.1 only, or say --insecure-open: then all who reach the address may read, "
            "write and delete everything"
        )
    elif not config.is_loopback:
        logger.warning(
            "--insecure-open: all who reach this address may read, write and delete everything",
            listen=config.listen,
        )
    elif gate.has_keys:
        logger.warning("--access off: there are keys, and requests need none of them")


def _reachable(address: str) -> str:
    """How to reach ourselves when we listen everywhere."""
    host, _, port = address.rpartition(":")
    loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{loopback}:{port}"


def _build_handlers(
    config: Config,
    engine: Engine,
    blobs: BlobWorker,
    bodies: LargeBodies,
    cold_reads: ColdReads,
    paths: StreamPaths,
    tag_id: str,
    scheme: str,
) -> Handlers:
    loop, clock = asyncio.get_running_loop(), engine.clock
    compression = Compression(is_on=config.compress == "on", faults=engine.faults)
    reads = Reads(engine, cold_reads, clock, tag_id, config.page_bytes, compression)
    return Handlers(
        writes=Writes(engine, reads, paths, clock, scheme, bodies),
        reads=reads,
        long_polls=LongPolls(engine, reads, clock, loop, config.long_poll_timeout),
        sse=SseReaders(engine, reads, clock, loop, config.sse_lifetime, config.sse_heartbeat),
        namespace=NamespaceApi(engine, clock, compression),
        snapshots=Snapshots(engine, reads, blobs, clock, scheme, config.max_snapshot_bytes),
        bootstraps=Bootstraps(reads, blobs),
        batches=Batches(engine, clock, bodies),
        control=SubscriptionRoutes(engine, reads, clock, scheme),
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


def _garbage_times(config: Config) -> dict[str, float]:
    """Only those that would be too long for what is promised."""
    times = {
        "grace_seconds": (GARBAGE_GRACE_SECONDS, _in_time(GARBAGE_GRACE_SECONDS, config, 32)),
        "orphan_age_seconds": (ORPHAN_AGE_SECONDS, _in_time(ORPHAN_AGE_SECONDS, config, 8)),
        "first_look_seconds": (FIRST_LOOK_SECONDS, _in_time(FIRST_LOOK_SECONDS, config, 8)),
        "look_seconds": (LOOK_SECONDS, _in_time(LOOK_SECONDS, config, 8)),
    }
    return {name: shorter for name, (usual, shorter) in times.items() if shorter < usual}


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
        self.flusher = Flusher(engine, disk.objects, storage.store_id, limits, self.pending)
        self.eviction = Eviction(engine, config.resident_streams)
        self.checkpointer = Checkpointer(
            engine,
            OsDisk(),
            disk.folder.checkpoints,
            storage.store_id,
            disk.catalog,
            self.flusher,
            config.checkpoint_wal_bytes,
            max(config.resident_streams // 2, 1),
            wal_bytes_recovered=disk.log_bytes,
        )
        self.flush_all = FlushAll(engine, self.flusher, self.checkpointer, storage.store_id)
        self.checkpointer.after.append(self.eviction.stored)
        self.checkpointer.after.append(lambda _: engine.lifetimes.sweep())
        self.retention = RetentionSweeps(engine, disk.catalog, config.retention_interval)
        self.memory = MemoryKeeper(engine.faults)
        self._job_thread = OffLoop("jobs", 1)
        job_table = JobTable(engine.clock)
        self.jobs = JobRoutes(
            JobSource(disk.catalog, disk.objects),
            job_table,
            self._job_thread.run,
            SegmentSwaps(engine, self.checkpointer).swap,
            storage.store_id,
            cold_place(disk.objects.settings),
            engine.faults,
            erase_seconds=config.erase_within,
        )
        self.eraser = EraserProcess(config, self.jobs, engine.faults, key=own_key)
        self.uploads = CatalogUploads(
            engine,
            self.checkpointer,
            disk.catalog,
            disk.objects,
            storage.store_id,
            disk.folder.path / "uploads",
            _in_time(config.catalog_upload_interval, config, 16),
            config.shutdown_timeout,
        )
        self.garbage = Garbage(
            engine,
            self.checkpointer,
            disk.catalog,
            disk.objects,
            self.uploads,
            self.pending,
            job_table,
            **_garbage_times(config),
        )

        self._room = RoomMaker(
            engine,
            self.checkpointer,
            self.uploads,
            self.garbage,
            lambda: [part.error for part in self._on_disk_of_log],
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

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.eviction.start(loop)
        self.flusher.start(loop)
        self.checkpointer.start(loop)
        self._job_thread.start(loop)
        self.retention.start(loop)
        self.memory.start(loop)
        self.uploads.start(loop)
        self.garbage.start(loop)
        self._room.start(loop)

    async def close(self) -> None:
        self._room.close()
        await self.memory.close()
        await self.retention.close()
        await self.flusher.close()
        await self.jobs.close()
        await self._job_thread.wait_idle()
        self._job_thread.close()
        await self.garbage.close()
        await self.checkpointer.finish(is_wanted=True)
        await self.uploads.close()
        await self.checkpointer.close()

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
            self.eraser.dead_bytes,
            self.eraser.dead_bytes_overdue,
        )


def _operator_routes(
    engine: Engine, cold: ColdTier | None
) -> tuple[tuple[bytes, Callable[[Request], None]], ...]:
    flush_cold = FlushCold(engine, None if cold is None else cold.flusher)
    routes = [
        (FLUSH_COLD_ROOT, flush_cold.handle),
        (RETENTION_ROOT, RetentionRoutes(engine).handle),
        (KEYS_ROOT, KeyRoutes(engine).handle),
    ]
    if cold is not None:
        routes.append((JOBS_ROOT, cold.jobs.handle))
        routes.append((GARBAGE_PATH, GarbageRoutes(cold.garbage).handle))
        routes.append((FLUSH_PATH, cold.flush_all.handle))
    return tuple(routes)


@contextlib.asynccontextmanager
async def running(
    config: Config, stop: Stop, timings: Timings = DEFAULT_TIMINGS
) -> AsyncIterator[str]:
    """A ready server for the length of the block; its base URL. Leaving it stops cleanly."""
    faults = Faults()
    with faults.hearing_all(asyncio.get_running_loop()):
        async with _running(config, stop, timings, faults) as url:
            yield url


@contextlib.asynccontextmanager
async def _running(
    config: Config, stop: Stop, timings: Timings, faults: Faults
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    tls = _tls_context(config)
    storage = await asyncio.to_thread(open_storage, config, stop, faults)
    engine = Engine(storage.machine, storage.journal, clock, storage.lsn, faults)
    engine.failed = lambda: stop.request(exit_code=1)
    own_key = new_key()
    gate = Gate(engine.machine.access, clock, own_key, loop.call_soon, config.access)
    paths = StreamPaths()
    scheme = "https" if tls is not None else "http"
    cold = None
    if storage.disk is not None:
        cold = ColdTier(config, engine, storage, storage.disk, timings, own_key.text)
    blobs = BlobWorker(storage.blobs, storage.machine, cold.pending if cold else None, faults)
    cold_reads = (
        ColdReads(engine.machine, None, None, WINDOW_THREADS, faults=faults)
        if cold is None
        else cold.cold_reads
    )
    bodies = LargeBodies(config.max_append_messages)
    handlers = _build_handlers(
        config, engine, blobs, bodies, cold_reads, paths, _tag_id(storage), scheme
    )
    readiness = Readiness(faults, engine.journal, None if cold is None else cold.is_store_full)
    app = App(paths, handlers._replace(operators=_operator_routes(engine, cold)), readiness)

    def access_changed() -> None:
        app.gate = gate if gate.is_on else None

    gate.on_change = access_changed
    access_changed()
    wakes = Driver(engine, WebhookSender(loop, faults=faults))
    server = Server(
        app,
        _http_limits(config),
        fixed_headers(config.cors_origin),
        _log_request if config.access_log else None,
        is_snapshot_url,
        faults,
    )
    engine.abandon = server.abandon
    server.faults = faults
    pipeline = None
    if cold is not None and config.pipeline == "auto":
        pipeline = PipelineProcess(config, cold.jobs, faults, key=own_key.text)
    app.metrics = Metrics(
        server,
        engine,
        handlers.long_polls,
        handlers.sse,
        None if cold is None else cold.numbers,
    )
    try:
        bodies.start(loop)
        blobs.start(loop)
        cold_reads.start(loop)
        handlers.reads.compression.start(loop)
        if cold is None:
            engine.after_batch.append(blobs.collect)
        engine.start(loop, None if storage.disk is None else storage.disk.catalog)
        wakes.start(loop)
        if cold is not None:
            cold.start(loop)
        _check_access(config, gate)
        address = await _listen(server, config, tls)
        readiness.is_open = True
        if pipeline is not None:
            pipeline.start(loop, f"{scheme}://{_reachable(address)}")
        if cold is not None:
            cold.eraser.start(loop, f"{scheme}://{_reachable(address)}")
        yield f"{scheme}://{address}"
    finally:
        readiness.is_open = False
        if pipeline is not None:
            await pipeline.close()
        if cold is not None:
            await cold.eraser.close()
        server.stop_listening()
        engine.hot_budget.close()
        engine.end_watchers()
        await server.close(config.shutdown_timeout)
        await bodies.close()
        wakes.stop()
        engine.lifetimes.stop()
        engine.submit_and_forget(NoOp(clock.now_ms()))
        cold_reads.close()
        handlers.reads.compression.close()
        if cold is not None:
            await cold.close()
        await storage.journal.close()
        blobs.close()
        if storage.disk is not None:
            storage.disk.catalog.close()
            storage.disk.folder.close()


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
