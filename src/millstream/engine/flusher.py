"""Takes hot content to the object store: gather, encode, upload, then publish by a command.

A crash between any two steps leaves an object that nobody refers to. What is published stays in
memory as long as the budget allows; what is not must stay, and when that alone exceeds the budget,
writers are told to come back later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import structlog

from millstream.engine.engine import Engine
from millstream.engine.flush_planning import FlushLimits, ShardHeat, plan_flushes
from millstream.engine.held_content import HeldContent
from millstream.engine.holds import Holds
from millstream.engine.off_loop import OffLoop
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

log = structlog.get_logger("millstream.flush")

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.5, 15.0
AGE_CHECK_SECONDS = 1.0


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
        holds: Holds | None = None,
    ) -> None:
        """`holds` knows the segments that are on their way into the state."""
        self._engine = engine
        self._changes = engine.machine.changes
        self._store = store
        self._store_id = store_id
        self._limits = limits
        self._holds = holds or Holds()
        self._threads = OffLoop("flush", FLUSH_THREADS)
        self._flushing: set[int] = set()
        self._since_ms = [0] * engine.machine.shards  # 0: the shard holds nothing unpublished
        self._held = HeldContent(engine.machine.by_id)
        self._waiting: list[tuple[int, Callable[[Exception | None], None]]] = []
        self._failures = 0
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.segments = 0  # uploaded since the start
        self.bytes_uploaded = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads.start(loop)
        self._engine.after_batch.append(self.check)
        for stream in self._engine.machine.by_id.values():  # what the replayed log published
            self._held.add_stream(stream)
        self._look_at_ages()

    @property
    def held_bytes(self) -> int:
        """Published content that is still in memory."""
        return self._held.memory_bytes

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
        is_failing = self._failures > 0
        if is_failing and bool(full) != bool(self._engine.hot_budget.full_shards):
            log.warning("appends wait for the cold store" if full else "appends go on")
        self._engine.hot_budget.set_full(full, is_store_failing=is_failing)

    def _look_at_ages(self) -> None:
        now_ms = self._engine.clock.now_ms()
        for shard, hot in enumerate(self._changes.hot_bytes):
            if not hot:
                self._since_ms[shard] = 0
            elif not self._since_ms[shard]:
                self._since_ms[shard] = now_ms
        self._plan()
        self._timer = self._loop.call_later(AGE_CHECK_SECONDS, self._look_at_ages)

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
        shard = stream.stream_id % self._engine.machine.shards
        if shard in self._flushing:
            self._waiting.append((shard, lambda _: self.flush_stream(stream, bytes_max, done)))
            return
        self._flushing.add(shard)
        self._waiting.append((shard, done))
        self._upload(shard, [_first_messages(_content(stream), bytes_max)])

    def _flush_shard(self, shard: int) -> None:
        self._flushing.add(shard)
        self._since_ms[shard] = 0
        self._gather(shard, iter(self._changes.hot_streams(shard)), [], 0)

    def _gather(
        self, shard: int, streams: Iterator[Stream], contents: list[Content], size: int
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
            self._loop.call_soon(self._gather, shard, streams, contents, size)
            return
        self._upload(shard, contents)

    def _upload(self, shard: int, contents: list[Content]) -> None:
        contents = [content for content in contents if content.blocks]
        if not contents or self._is_closing:
            self._finished(shard, OSError("the server stops") if contents else None)
            return
        created_ms = self._engine.clock.now_ms()
        name = segment_name(shard, created_ms, secrets.token_hex(4))
        self._holds.add(name)

        def work() -> Flushed:
            encoded = encode_segment(contents, store_id=self._store_id, shard=shard)
            self._store.put(name, encoded.data)
            size, rows = len(encoded.data), encoded.rows
            segment = Segment(name, shard, size, encoded.footer_bytes, rows, created_ms)
            return Flushed(segment, encoded.runs)

        self._threads.run(work, lambda result: self._uploaded(shard, name, result))

    def _uploaded(self, shard: int, name: str, result: Flushed | Exception) -> None:
        if isinstance(result, Exception):
            self._holds.remove(name)
            self._failed(shard, result)
            return
        if self._failures:
            log.info("the cold store is back")
            self._failures = 0
            self._paused_until = 0.0
        self.segments += 1
        self.bytes_uploaded += result.segment.size
        self._publish(shard, result.segment, result.runs)

    def _failed(self, shard: int, error: Exception) -> None:
        if not self._failures:
            log.warning(
                "cannot write to the cold store; appends go on until the hot budget is used",
                error=str(error),
            )
        delay = min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._paused_until = self._loop.time() + delay
        self._loop.call_later(delay, self.check)
        self._finished(shard, error)
        if self._engine.hot_budget.full_shards:
            self._mark_full(sum(self._changes.hot_bytes))

    def _publish(self, shard: int, segment: Segment, runs: list[Run]) -> None:
        def published(_: object, outcome: Outcome) -> None:
            self._holds.remove(segment.name)
            if isinstance(outcome, Exception):
                self._finished(shard, outcome)
                return
            self._held.add(runs)
            self._finished(shard, None)

        command = PublishRuns(self._engine.clock.now_ms(), segment, runs)
        self._engine.submit(command, published, None)

    def _finished(self, shard: int, error: Exception | None) -> None:
        self._flushing.discard(shard)
        waiting = [call for waits_for, call in self._waiting if waits_for == shard]
        self._waiting = [each for each in self._waiting if each[0] != shard]
        for call in waiting:
            call(error)
        if error is None and not self._is_closing:
            self._loop.call_soon(self.check)

    def _drop_held(self, allowed_bytes: int) -> None:
        if not self._held.shrink(allowed_bytes) and not self._is_closing:
            self._loop.call_soon(self.check)

    async def close(self) -> None:
        """Nothing is begun any more; what was begun is published or given up."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self.check in self._engine.after_batch:
            self._engine.after_batch.remove(self.check)
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
    blocks, left = [], bytes_max
    for data, ends, times in content.blocks:
        if len(data) <= left:
            blocks.append((data, ends, times))
            left -= len(data)
            continue
        if ends is not None:
            count = max(1 if not blocks else 0, sum(end <= left for end in ends))
            if count:
                cut = ends[count - 1]
                times = times if isinstance(times, int) else times[:count]
                blocks.append((data[:cut], ends[:count], times))
        elif not blocks:
            blocks.append((data, ends, times))
        break
    return content._replace(blocks=blocks)
