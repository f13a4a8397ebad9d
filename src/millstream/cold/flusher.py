"""Takes hot content to the object store: gather, encode, upload, then publish by a command.

A crash between any two steps leaves an object that nobody refers to. What is published stays in
memory as long as the budget allows; what is not must stay, and when that alone exceeds the budget,
writers are told to come back later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.flush_planning import FlushLimits, ShardHeat, plan_flushes
from millstream.cold.pending_objects import PendingObjects
from millstream.cold.published_content import PublishedContent
from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.errors import StreamError
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
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream.flush")

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.5, 15.0
AGE_CHECK_SECONDS = 1.0


class SegmentStore(Protocol):
    def put(self, name: str, data: bytes) -> None:
        """Durable and whole when this returns."""
        ...


class Flushed(NamedTuple):
    segment: Segment
    runs: list[Run]


class _Flush:
    """One shard's, from the first stream that is looked at until all who wait are told."""

    def __init__(self, shard: int, *, is_whole: bool) -> None:
        self.shard = shard
        self.is_whole = is_whole  # not a single stream that somebody asked for
        self.name: str | None = None  # of the segment, once it is on its way into the state


class Flusher:
    def __init__(
        self,
        engine: Engine,
        store: SegmentStore,
        store_id: str,
        limits: FlushLimits,
        pending: PendingObjects | None = None,
    ) -> None:
        """`holds` knows the segments that are on their way into the state."""
        self._engine = engine
        self._changes = engine.machine.changes
        self._store = store
        self._store_id = store_id
        self._limits = limits
        self._pending = pending or PendingObjects()
        self._threads = OffLoop("flush", FLUSH_THREADS)
        self._flushing: dict[int, _Flush] = {}
        self._again: set[int] = set()  # shards whose flush failed
        self._since_ms = [0] * engine.machine.shards  # 0: the shard holds nothing unpublished
        self._held = PublishedContent(engine.machine.by_id)
        self._waiting: list[tuple[int, Callable[[Exception | None], None]]] = []
        self._upkeep = Upkeep(engine.faults, "flush", Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX))
        self._check = self._upkeep.guarded(self.check, "cannot see what to flush")
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.segments = 0  # uploaded since the start
        self.bytes_uploaded = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads.start(loop)
        self._engine.after_batch.append(self._check)
        for stream in self._engine.machine.by_id.values():  # what the replayed log published
            self._held.add_stream(stream)
        self._look_at_ages()

    @property
    def held_bytes(self) -> int:
        """Published content that is still in memory."""
        return self._held.memory_bytes

    @property
    def error(self) -> BaseException | None:
        """Why the last flush failed; None when it did not."""
        return self._upkeep.error

    # When

    def check(self) -> None:
        """Called after every batch: cheap unless there is something to do."""
        hot_bytes = self._changes.hot_bytes
        total = sum(hot_bytes)
        limits = self._limits
        if total >= limits.hot_bytes or self._engine.hot_budget.full_shards:
            self._mark_full(total)
        if total + self._held.memory_bytes > limits.hot_bytes:
            self._drop_held(limits.hot_bytes - total)
        if total * 2 >= limits.hot_bytes or max(hot_bytes) >= limits.shard_bytes:
            self._plan()

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

    def _look_at_ages(self) -> None:
        self._timer = self._loop.call_later(AGE_CHECK_SECONDS, self._look_at_ages)
        failures = self._upkeep.failures
        self._check()
        try:
            self._plan_by_age()
            if self._again:
                self._retry()  # those for which there was no thread when their time came
        except Exception as error:
            self._upkeep.failed(error, "cannot see what to flush")
        is_quiet = not self._again and not self._flushing
        if is_quiet and self._upkeep.failures == failures:
            self._note_worked()  # there is nothing left of what went wrong

    def _plan_by_age(self) -> None:
        now_ms = self._engine.clock.now_ms()
        for shard, hot in enumerate(self._changes.hot_bytes):
            if not hot:
                self._since_ms[shard] = 0
            elif not self._since_ms[shard]:
                self._since_ms[shard] = now_ms
        self._plan()

    def _plan(self, floor_bytes: int | None = None) -> None:
        if self._is_closing or len(self._flushing) >= FLUSH_THREADS:
            return
        if self._loop.time() < self._paused_until:
            return
        now_ms = self._engine.clock.now_ms()
        heats = [
            ShardHeat(shard, hot, self._since_ms[shard] or now_ms)
            for shard, hot in enumerate(self._changes.hot_bytes)
            if shard not in self._flushing
        ]
        for shard in plan_flushes(heats, now_ms, self._limits, floor_bytes=floor_bytes):
            if len(self._flushing) >= FLUSH_THREADS:
                return
            self._flush_shard(shard)

    def _retry_in(self, seconds: float) -> None:
        """One timer for all: the latest wins, and whoever comes early sets another."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_timer = self._loop.call_later(seconds, self._retry)

    def _retry(self) -> None:
        """What failed is due, however little it is."""
        if self._is_closing:
            return
        wait = self._paused_until - self._loop.time()
        if wait > 0:  # another failure has set a later time, or the timer rang a moment early
            self._retry_in(wait)
            return
        for shard in list(self._again):
            if len(self._flushing) < FLUSH_THREADS and shard not in self._flushing:
                self._again.discard(shard)
                if self._changes.hot_bytes[shard]:
                    self._flush_shard(shard)
        self._check()

    def flush_floor(self, floor_bytes: int, done: Callable[[], None]) -> None:
        """Flushes every shard with at least so much, then calls `done`, also after a failure."""
        shards = [s for s, hot in enumerate(self._changes.hot_bytes) if hot >= floor_bytes]
        self._flush_each(iter(shards), done)

    def _flush_each(self, shards: Iterator[int], done: Callable[[], None]) -> None:
        shard = next(shards, None)
        if shard is None or self._is_closing or self._loop.time() < self._paused_until:
            done()
        else:
            # Waits first: with nothing left in the shard, its flush is over at once.
            self._waiting.append((shard, lambda error: self._flush_each(shards, done)))
            if shard not in self._flushing:
                self._flush_shard(shard)

    # How

    def flush_stream(
        self, stream: Stream, bytes_max: int, done: Callable[[Exception | None], None]
    ) -> None:
        """Up to `bytes_max` of one stream's oldest unpublished content, at least a message."""
        shard = self._engine.machine.layout.shard_of_id(stream.stream_id)
        if shard in self._flushing:
            self._waiting.append((shard, lambda _: self.flush_stream(stream, bytes_max, done)))
            return
        flush = self._flushing[shard] = _Flush(shard, is_whole=False)
        self._waiting.append((shard, done))
        self._guard(
            flush, lambda: self._upload(flush, [_first_messages(_content(stream), bytes_max)])
        )

    def _flush_shard(self, shard: int) -> None:
        flush = self._flushing[shard] = _Flush(shard, is_whole=True)
        self._since_ms[shard] = 0
        self._guard(
            flush, lambda: self._gather(flush, iter(self._changes.hot_streams(shard)), [], 0)
        )

    def _guard(self, flush: _Flush, step: Callable[[], None]) -> None:
        """Every step runs in here: whatever it raises, the flush is over and its shard free."""
        try:
            step()
        except Exception as error:
            self._failed(flush, error)

    def _gather(
        self, flush: _Flush, streams: Iterator[Stream], contents: list[Content], size: int
    ) -> None:
        """A few streams at a time, so that nobody waits for it."""
        by_id = self._engine.machine.by_id
        for _ in range(FLUSH_GATHER_STREAMS):
            stream = next(streams, None)
            if (
                stream is None
                or size >= SEGMENT_FLUSH_BYTES_MAX
                or len(contents) >= SEGMENT_STREAMS_MAX
            ):
                break
            log = stream.log
            if by_id.get(stream.stream_id) is stream and log.tail_byte > log.cold_byte:
                size += log.tail_byte - log.cold_byte
                contents.append(_content(stream))
        else:
            go_on = partial(self._gather, flush, streams, contents, size)
            self._loop.call_soon(self._guard, flush, go_on)
            return
        self._upload(flush, contents)

    def _upload(self, flush: _Flush, contents: list[Content]) -> None:
        contents = [content for content in contents if content.blocks]
        if not contents or self._is_closing:
            self._finished(flush, OSError("the server stops") if contents else None)
            return
        shard, created_ms = flush.shard, self._engine.clock.now_ms()
        name = flush.name = segment_name(shard, created_ms, secrets.token_hex(4))
        self._pending.add(name)

        def work() -> Flushed:
            encoded = encode_segment(contents, store_id=self._store_id, shard=shard)
            self._store.put(name, encoded.data)
            size, rows = len(encoded.data), encoded.rows
            segment = Segment(name, shard, size, encoded.footer_bytes, rows, created_ms)
            return Flushed(segment, encoded.runs)

        self._threads.run(
            work, lambda result: self._guard(flush, lambda: self._uploaded(flush, result))
        )

    def _uploaded(self, flush: _Flush, result: Flushed | Exception) -> None:
        if isinstance(result, Exception):
            raise result
        self.segments += 1
        self.bytes_uploaded += result.segment.size
        command = PublishRuns(self._engine.clock.now_ms(), *result)
        self._engine.submit(
            command,
            lambda _, outcome: self._guard(
                flush, lambda: self._published(flush, result.runs, outcome)
            ),
            None,
        )

    def _published(self, flush: _Flush, runs: list[Run], outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self._held.add(runs)
        self._note_worked()
        self._finished(flush, None)

    def _note_worked(self) -> None:
        if self._upkeep.worked():
            logger.info("the cold store is back")
            self._paused_until = 0.0

    def _failed(self, flush: _Flush, error: Exception) -> None:
        if self._flushing.get(flush.shard) is not flush:
            self._engine.faults.report("flush", error)  # it was over already
            return
        what = "publish a flush" if isinstance(error, StreamError) else "write to the cold store"
        delay = self._upkeep.failed(
            error, f"cannot {what}; appends go on until the hot budget is used"
        )
        if flush.is_whole:
            self._again.add(flush.shard)
        self._paused_until = self._loop.time() + delay
        self._retry_in(delay)
        self._finished(flush, error)
        if self._engine.hot_budget.full_shards:
            self._upkeep.tell(self._mark_full, sum(self._changes.hot_bytes))

    def _finished(self, flush: _Flush, error: Exception | None) -> None:
        shard = flush.shard
        del self._flushing[shard]
        if flush.name is not None:
            self._pending.remove(flush.name)
        waiting = [call for waits_for, call in self._waiting if waits_for == shard]
        self._waiting = [each for each in self._waiting if each[0] != shard]
        for call in waiting:
            self._upkeep.tell(call, error)
        if error is None and not self._is_closing:
            self._loop.call_soon(self._check)

    def _drop_held(self, allowed_bytes: int) -> None:
        if not self._held.shrink(allowed_bytes) and not self._is_closing:
            self._loop.call_soon(self._check)

    async def close(self) -> None:
        """Nothing is begun any more; what was begun is published or given up."""
        self._is_closing = True
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        if self._check in self._engine.after_batch:
            self._engine.after_batch.remove(self._check)
        await self._threads.wait_idle()
        self._threads.close()


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
