"""The whole machine wired on one page: builds the system from a Config and stops it again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import ssl
from collections.abc import AsyncIterator

import structlog

from millstream.access.gate import Gate
from millstream.access.key_text import new_key
from millstream.addresses import ANY
from millstream.api.batches import Batches
from millstream.api.bootstrap import Bootstraps
from millstream.api.compression import Compression
from millstream.api.cors import fixed_headers
from millstream.api.flush_cold import FlushCold
from millstream.api.inspection import ServerDescriptors, StreamDescriptors
from millstream.api.keys import KeyRoutes
from millstream.api.large_bodies import LargeBodies
from millstream.api.long_poll import LongPolls
from millstream.api.namespace import NamespaceApi
from millstream.api.operations import Metrics, Readiness
from millstream.api.own_urls import OwnUrls
from millstream.api.paths import StreamPaths
from millstream.api.reads import Reads
from millstream.api.retention import RetentionRoutes
from millstream.api.routes import SUB_RESOURCES, Handlers, build_rows
from millstream.api.routing import RouteTable
from millstream.api.rules import RulesRoutes
from millstream.api.shaped_reads import LiveSettings, ShapedReads
from millstream.api.snapshots import Snapshots, is_snapshot_url
from millstream.api.sse import SseReaders
from millstream.api.subscriptions import SubscriptionRoutes
from millstream.api.timeouts import Timeouts
from millstream.api.touch import TouchRoutes
from millstream.api.writes import Writes
from millstream.clock import SystemClock
from millstream.cold.blob_worker import BlobWorker
from millstream.cold.cold_reads import ColdReads
from millstream.cold.lookups import Lookups
from millstream.cold_tier import ColdTier
from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.engine.journal_queue import QueueLimits
from millstream.engine.timings import Timings
from millstream.errors import StartupError
from millstream.faults import Faults
from millstream.http.access_log import Entry
from millstream.http.server import HttpLimits, Server
from millstream.inspection.holdings import HoldingsCount
from millstream.inspection.index_report import NoIndexes
from millstream.inspection.server_report import ServerReport
from millstream.jobs.pipeline_process import pipeline_beside
from millstream.limits import SSE_BUFFER_BYTES, WINDOW_THREADS
from millstream.listening import Doors
from millstream.protocol.webhook_urls import AllowedReceivers
from millstream.recover import RESTORED
from millstream.state.commands import NoOp
from millstream.storage import Stop, Storage, open_storage
from millstream.subscriptions.driver import Driver
from millstream.subscriptions.webhooks import WebhookSender
from millstream.system.measurements import Measurements
from millstream.system.service import SystemSettings, SystemStreamService
from millstream.telemetry import ACCESS_EVENT
from millstream.tier.catalog import Catalog
from millstream.touch.service import TouchService

logger = structlog.get_logger("millstream")

DEFAULT_TIMINGS = Timings()


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
        answer_seconds=config.answer_timeout,
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
    lookups: Lookups,
    paths: StreamPaths,
    tag_id: str,
    own_urls: OwnUrls,
    allowed: AllowedReceivers,
    touch: TouchService,
    cold: ColdTier | None,
    catalog: Catalog | None,
) -> Handlers:
    loop, clock = asyncio.get_running_loop(), engine.clock
    compression = Compression(is_on=config.compress == "on", faults=engine.faults)
    reads = Reads(engine, cold_reads, clock, tag_id, config.page_bytes, compression)
    live = LiveSettings(config.long_poll_timeout, config.sse_lifetime, config.sse_heartbeat)
    return Handlers(
        writes=Writes(engine, reads, paths, clock, own_urls, bodies),
        reads=reads,
        long_polls=LongPolls(engine, reads, clock, loop, config.long_poll_timeout),
        sse=SseReaders(engine, reads, clock, loop, config.sse_lifetime, config.sse_heartbeat),
        namespace=NamespaceApi(engine, clock, compression),
        snapshots=Snapshots(engine, reads, blobs, clock, own_urls, config.max_snapshot_bytes),
        bootstraps=Bootstraps(reads, blobs),
        batches=Batches(engine, clock, bodies),
        rules=RulesRoutes(engine, clock),
        shaped=ShapedReads(engine, reads, lookups, clock, live),
        descriptors=StreamDescriptors(
            *(engine, loop, HoldingsCount(catalog), NoIndexes(), compression),
            has_log=cold is not None,
        ),
        control=SubscriptionRoutes(engine, reads, clock, own_urls, allowed),
        touch=TouchRoutes(touch, reads, clock),
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
    engine = Engine(
        storage.machine, storage.journal, clock, storage.lsn, faults, timings.lifetimes_retry
    )
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
    touch = TouchService(engine, timings)
    handlers = _build_handlers(
        *(config, engine, blobs, bodies, cold_reads, Lookups(cold_reads), paths, _tag_id(storage)),
        *(own_urls, allowed, touch, cold, None if storage.disk is None else storage.disk.catalog),
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
    timeouts = Timeouts(config.append_timeout)
    server.overdue, engine.queue.overdue = timeouts.request_overdue, timeouts.append_overdue
    queue = QueueLimits(config.queue_requests, config.queue_bytes, config.append_timeout)
    engine.queue.limit(queue)
    pipeline = None
    if cold is not None and config.pipeline == "auto":
        pipeline = pipeline_beside(config, cold.jobs, faults, timings, own_key.text)
    cold_numbers = None if cold is None else cold.numbers
    metrics = Metrics(
        server,
        engine,
        handlers.long_polls,
        handlers.sse,
        cold_numbers,
        subscriptions.numbers,
        touch,
    )
    report = ServerReport(config, server, engine, None if cold is None else cold.state)
    about_server = ServerDescriptors(report, handlers.reads.compression)
    system = SystemStreamService(
        engine,
        Measurements(server, engine, handlers.long_polls, handlers.sse, cold_numbers),
        SystemSettings(config.registry_stream == "on", config.metrics_stream, cold is None),
        timings,
    )
    table = RouteTable(build_rows(handlers, readiness, metrics, about_server), paths)
    async with contextlib.AsyncExitStack() as stack:  # stops in the opposite order
        stack.callback(storage.close)
        blobs.start(loop)
        stack.callback(blobs.close)
        if cold is None:
            engine.listeners.append(blobs.collect)
        engine.start(loop, None if storage.disk is None else storage.disk.catalog)
        stack.push_async_callback(storage.journal.close)
        await stack.enter_async_context(engine.queue.running(group))
        if cold is not None:
            await stack.enter_async_context(cold.running(group))
        handlers.reads.compression.start(loop)
        stack.callback(handlers.reads.compression.close)
        cold_reads.start(loop)
        stack.callback(cold_reads.close)
        stack.callback(lambda: engine.submit_and_forget(NoOp(clock.now_ms())))
        stack.callback(engine.lifetimes.stop)
        await stack.enter_async_context(subscriptions.running(group))
        engine.listeners.append(handlers.sse.heard)
        await stack.enter_async_context(handlers.rules.running(group))
        await stack.enter_async_context(handlers.shaped.running(group))
        await stack.enter_async_context(touch.running(group))
        await stack.enter_async_context(system.running(group))
        bodies.start(loop)
        stack.push_async_callback(bodies.close)
        stack.push_async_callback(server.close, config.shutdown_timeout)
        stack.callback(engine.end_watchers)
        stack.callback(touch.end_waits)
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
