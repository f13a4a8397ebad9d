"""Takes hot content to the object store: gather, encode, upload, then publish by a command.

A crash between any two steps leaves an object that nothing refers to. What is published stays in
memory as long as the budget allows; what is not must stay, and when that alone exceeds the budget,
writers are told to come back later.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.flush_planning import FlushLimits, ShardHeat, plan_flushes
from millstream.cold.pending_objects import PendingObjects
from millstream.cold.published_content import PublishedContent
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, is_set_within
from millstream.errors import ShuttingDown, StreamError
from millstream.formats.blocks import Block
from millstream.formats.runs import Run, Segment, segment_name
from millstream.formats.segment import Content, encode_segment
from millstream.limits import (
    FLUSH_GATHER_STREAMS,
    FLUSH_THREADS,
    SEGMENT_FLUSH_BYTES_MAX,
    SEGMENT_STREAMS_MAX,
)
from millstream.state.commands import PublishRuns
from millstream.state.outbox import Outbox
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream.flush")


class SegmentStore(Protocol):
    def put(self, name: str, data: bytes) -> None:
        """Durable and whole when this returns."""
        ...


class Flushed(NamedTuple):
    segment: Segment
    runs: list[Run]


class Flusher:
    def __init__(
        self,
        engine: Engine,
        store: SegmentStore,
        store_id: str,
        limits: FlushLimits,
        pending: PendingObjects,
        timings: Timings,
    ) -> None:
        """`pending` knows the segments that are on their way into the state."""
        self._engine = engine
        self._changes = engine.machine.changes
        self._store = store
        self._store_id = store_id
        self._limits = limits
        self._pending = pending
        self._look_seconds = timings.flush_look
        self._threads = Threads("flush", FLUSH_THREADS)
        # A shard's flushes come one after the other: the next one begins where the last one ended.
        self._locks = [asyncio.Lock() for _ in range(engine.machine.shards)]
        self._begun: set[int] = set()  # shards that are flushed because a plan says so
        self._again: set[int] = set()  # shards whose flush failed
        self._since_ms = [0] * engine.machine.shards  # 0: the shard holds nothing unpublished
        self._published = PublishedContent(engine.machine.by_id)
        self._upkeep = Upkeep(engine.faults, "flush", timings.flush_retry)
        self._check = self._upkeep.guarded(self.check, "cannot see what to flush")
        self._due = asyncio.Event()  # there may be something to do before the next look
        self._paused_until = 0.0
        self._is_closing = False
        self.segments = 0  # uploaded since the start
        self.bytes_uploaded = 0
        self.uploads = 0  # segments under way
        self.upload_bytes = 0  # of the content in them

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Afterwards nothing is begun any more; what was begun is published or given up."""
        for stream in self._engine.machine.by_id.values():  # what the replayed log published
            self._published.add_stream(stream)
        self._engine.listeners.append(self._check)
        looking = group.create_task(self._run(group), name="flusher")
        try:
            yield
        finally:
            self._engine.listeners.remove(self._check)
            self._is_closing = True
            looking.cancel()
            for lock in self._locks:
                async with lock:
                    pass  # its flush has ended
            await self._threads.close()

    @property
    def held_bytes(self) -> int:
        """Published content that is still in memory."""
        return self._published.memory_bytes

    @property
    def error(self) -> BaseException | None:
        """Why the last flush failed; None when it did not."""
        return self._upkeep.error

    # When

    def check(self, _: Outbox | None = None) -> None:
        """Called after every batch: cheap, and what takes time is left to `_run`."""
        hot_bytes = self._changes.hot_bytes
        total = sum(hot_bytes)
        limits = self._limits
        if total >= limits.hot_bytes or self._engine.hot_budget.full_shards:
            self._mark_full(total)
        if self._published.memory_bytes > max(limits.hot_bytes - total, 0) or (
            (total * 2 >= limits.hot_bytes or max(hot_bytes) >= limits.shard_bytes)
            and len(self._begun) < FLUSH_THREADS
            and not self._pause_seconds()
        ):
            self._due.set()

    def _mark_full(self, total: int) -> None:
        """Shards that hold more than their share of a used-up budget take no more."""
        hot_bytes, full = self._changes.hot_bytes, frozenset[int]()
        if total >= self._limits.hot_bytes:
            share = self._limits.hot_bytes // len(hot_bytes)
            full = frozenset(shard for shard, hot in enumerate(hot_bytes) if hot >= share)
        is_failing = self._upkeep.failures > 0
        if is_failing and bool(full) != bool(self._engine.hot_budget.full_shards):
            logger.warning("appends wait for the cold store" if full else "appends go on")
        self._engine.hot_budget.set_full(full, is_store_failing=is_failing)

    def _pause_seconds(self) -> float:
        """Until something is tried again after a failure."""
        return max(self._paused_until - asyncio.get_running_loop().time(), 0.0)

    def _pause(self, seconds: float) -> None:
        self._paused_until = asyncio.get_running_loop().time() + seconds

    async def _run(self, group: asyncio.TaskGroup) -> None:
        """Cancelled, it begins nothing more; flushes that it began go on."""
        while True:
            seconds = self._pause_seconds() or self._look_seconds
            await is_set_within(self._due, min(seconds, self._look_seconds))
            self._due.clear()
            try:
                await self._drop_published()
                if self._engine.hot_budget.full_shards:
                    self._mark_full(sum(self._changes.hot_bytes))
                if not self._pause_seconds():
                    self._begin_flushes(group)
            except Exception as error:
                self._pause(self._upkeep.failed(error, "cannot see what to flush"))

    async def _drop_published(self) -> None:
        """As much as no longer fits, a little at a time, so that no request waits for it."""
        while True:
            allowed_bytes = self._limits.hot_bytes - sum(self._changes.hot_bytes)
            if self._published.shrink(allowed_bytes):
                return
            await asyncio.sleep(0)

    def _begin_flushes(self, group: asyncio.TaskGroup) -> None:
        """What failed is due, however little it is; then what is planned."""
        planned = self._plan()
        if not self._again and not any(map(self._is_flushing, range(len(self._locks)))):
            self._note_worked()  # there is nothing left of what went wrong
        for shard in [*self._again, *planned]:
            if len(self._begun) < FLUSH_THREADS and not self._is_flushing(shard):
                self._begun.add(shard)
                group.create_task(self._flush_planned(shard), name=f"flush {shard}")

    def _plan(self) -> list[int]:
        now_ms = self._engine.clock.now_ms()
        heats = []
        for shard, hot in enumerate(self._changes.hot_bytes):
            self._since_ms[shard] = (self._since_ms[shard] or now_ms) if hot else 0
            if not self._is_flushing(shard):
                heats.append(ShardHeat(shard, hot, self._since_ms[shard] or now_ms))
        return plan_flushes(heats, now_ms, self._limits)

    def _is_flushing(self, shard: int) -> bool:
        return shard in self._begun or self._locks[shard].locked()

    async def _flush_planned(self, shard: int) -> None:
        try:
            await self._flush_shard(shard)
        finally:
            self._begun.discard(shard)
            self._due.set()  # there is a thread for another one

    async def flush_floor(self, floor_bytes: int) -> None:
        """Every shard with at least so much was flushed once, or the store takes nothing now.

        Cancelled: the flush that had begun may still be published.
        """
        for shard, hot in enumerate(tuple(self._changes.hot_bytes)):
            if self._is_closing or self._pause_seconds():
                return
            if hot >= floor_bytes:
                await self._flush_shard(shard)

    # How

    async def _flush_shard(self, shard: int) -> None:
        """What fails is told, and tried again after the back-off."""
        async with self._locks[shard]:
            try:
                self._again.discard(shard)
                self._since_ms[shard] = 0
                contents = await self._gather(shard)
                if contents and not self._is_closing:
                    await self._take_to_store(shard, contents)
            except Exception as error:
                self._again.add(shard)
                self._failed(error)

    async def flush_stream(self, stream: Stream, bytes_max: int) -> None:
        """Up to `bytes_max` of one stream's oldest unpublished content, at least a message.

        Raises what was in the way. Cancelled: it may be published all the same.
        """
        shard = self._engine.machine.layout.shard_of_id(stream.stream_id)
        async with self._locks[shard]:
            if self._is_closing:
                raise ShuttingDown("the server stops; try again when it is back")
            try:
                content = _first_messages(_content(stream), bytes_max)
                if content.blocks:
                    await self._take_to_store(shard, [content])
            except Exception as error:
                self._failed(error)
                raise

    async def _gather(self, shard: int) -> list[Content]:
        """A few streams at a time, so that no request waits for it."""
        by_id, contents, size = self._engine.machine.by_id, list[Content](), 0
        for number, stream in enumerate(self._changes.hot_streams(shard), 1):
            if size >= SEGMENT_FLUSH_BYTES_MAX or len(contents) >= SEGMENT_STREAMS_MAX:
                break
            log = stream.log
            if by_id.get(stream.stream_id) is stream and log.tail_byte > log.cold_byte:
                size += log.tail_byte - log.cold_byte
                contents.append(_content(stream))
            if number % FLUSH_GATHER_STREAMS == 0:
                await asyncio.sleep(0)
        return [content for content in contents if content.blocks]

    async def _take_to_store(self, shard: int, contents: list[Content]) -> None:
        """It is in the store, and the state knows. Until then the segment's name is pending."""
        created_ms = self._engine.clock.now_ms()
        name = segment_name(shard, created_ms, secrets.token_hex(4))
        size = sum(len(block.data) for content in contents for block in content.blocks)
        self._pending.add(name)
        self.uploads += 1
        self.upload_bytes += size
        try:
            flushed = await self._upload(name, shard, created_ms, contents)
            await self._publish(flushed)
        finally:
            self._pending.remove(name)
            self.uploads -= 1
            self.upload_bytes -= size
        self._note_worked()
        self._due.set()  # more is published: perhaps it does not all fit into memory

    async def _upload(
        self, name: str, shard: int, created_ms: int, contents: list[Content]
    ) -> Flushed:
        def work() -> Flushed:
            encoded = encode_segment(contents, store_id=self._store_id, shard=shard)
            self._store.put(name, encoded.data)
            size, rows = len(encoded.data), encoded.rows
            segment = Segment(name, shard, size, encoded.footer_bytes, rows, created_ms)
            return Flushed(segment, encoded.runs)

        flushed = await self._threads.run(work)
        self.segments += 1
        self.bytes_uploaded += flushed.segment.size
        return flushed

    async def _publish(self, flushed: Flushed) -> None:
        outcome = await self._engine.perform(PublishRuns(self._engine.clock.now_ms(), *flushed))
        if isinstance(outcome, StreamError):
            raise outcome
        self._published.add(flushed.runs)

    def _note_worked(self) -> None:
        if self._upkeep.worked():
            logger.info("the cold store is back")
            self._paused_until = 0.0

    def _failed(self, error: Exception) -> None:
        what = "publish a flush" if isinstance(error, StreamError) else "write to the cold store"
        self._pause(
            self._upkeep.failed(error, f"cannot {what}; appends go on until the hot budget is used")
        )
        self._due.set()  # who waits behind a full budget is told, and the pause has begun


def _content(stream: Stream) -> Content:
    log = stream.log
    return Content(
        stream.stream_id,
        stream.path,
        stream.is_json,
        log.cold_ordinal,
        log.cold_byte,
        log.unpublished(),
    )


def _first_messages(content: Content, bytes_max: int) -> Content:
    """Whole blocks up to `bytes_max`; the block that exceeds it is cut behind a message."""
    blocks: list[Block] = []
    left = bytes_max
    for block in content.blocks:
        count = block.count_within(left) if blocks else max(1, block.count_within(left))
        if count:
            blocks.append(block.first(count))
        left -= len(block.data)
        if left <= 0:
            break
    return content._replace(blocks=blocks)
