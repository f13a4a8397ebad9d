"""ColdReads: reading what is not in memory.

A window is a log that holds a contiguous range of one stream, whatever the range is made of: blocks
in memory, runs in the object store, a part that a fork inherited. It begins on a boundary, at or
before the place that was asked for, and reaches at least `bytes_max` bytes behind it or to the
stream's tail, unless it would have too many runs: then it ends earlier, but never without a whole
message behind the place. A page is cut from a window as it is from a log.

Planning (read_plans.py) happens on the event loop; loading and putting together in threads.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

import structlog

from millstream.cold.read_plans import ColdPiece, MissingRun, Plan, RunIndex, Streams
from millstream.errors import (
    ColdUnavailable,
    DamagedSegment,
    ObjectMissing,
    ObjectTooShort,
    OffsetGone,
    Overloaded,
    StoreUnavailable,
    StreamError,
    StreamNotFound,
)
from millstream.faults import Faults
from millstream.formats.blocks import Block
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.segment_rows import FoundRow
from millstream.limits import (
    PLAN_STEPS_PER_TURN,
    READ_AHEAD_BYTES,
    READ_AHEAD_STREAMS_MAX,
    READ_AHEADS_MAX,
    WINDOW_FETCH_THREADS,
    WINDOW_LOADS_MAX,
)
from millstream.protocol.offsets import AnyOffset
from millstream.state.log import Log, PublishedRun
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream.cold_reads")

Result = TypeVar("Result")

TRIES_MAX = 3  # a compaction may replace the object while we ask for it; hardly ever twice

Done = Callable[["Log | StreamError"], None]


class BlockReader(Protocol):
    def load_runs(self, segment: Segment, runs: Sequence[Run]) -> Sequence[Block]:
        """The content of each run. Blocks; called by many threads."""
        ...

    def load_rows_of(
        self, segment: Segment, runs: Sequence[Run], key: bytes
    ) -> Sequence[list[FoundRow]]:
        """Of each run the messages that have this key."""
        ...


class MissingObject(Exception):
    """The object is not there (any more)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Sequence(NamedTuple):
    """The last window of a stream, and up to where its followers were asked for."""

    start_byte: int
    end_byte: int
    ahead_byte: int


class ColdReads:
    """Everything here is called on the event loop, and calls back there."""

    def __init__(
        self,
        streams: Streams,
        runs: RunIndex | None,
        reader: BlockReader | None,
        threads: int,
        wait_seconds_max: float = math.inf,
        faults: Faults | None = None,
    ) -> None:
        """A load that no thread takes up in `wait_seconds_max` is refused: a store that is away
        keeps every thread as long as one operation may take, and reads would wait for hours."""
        self.faults = faults or Faults()
        self.wait_seconds_max = wait_seconds_max
        self.loads = 0  # windows that needed the object store, since the start
        self.loading = 0
        self.streams = streams
        self.runs = runs
        self._reader = reader
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="windows")
        self._fetchers = ThreadPoolExecutor(WINDOW_FETCH_THREADS, thread_name_prefix="fetch")
        self._under_way: dict[tuple[StreamId, AnyOffset, int], Load] = {}
        self._sequences: OrderedDict[StreamId, _Sequence] = OrderedDict()
        self._reading_ahead: set[StreamId] = set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def close(self) -> None:
        """Loads that have not begun are dropped; those that have are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetchers.shutdown(wait=False, cancel_futures=True)

    def in_memory(self, stream: Stream, offset: AnyOffset, bytes_max: int) -> Log | None:
        """The stream's log when it holds the place, or a window of blocks that others hold.

        None when something of it is cold, or when to find out would take long.
        """
        if stream.is_in_memory(offset):
            return stream.log
        plan = Plan(self.streams, self.runs, stream, offset, bytes_max)
        return put_together(plan, ()) if plan.is_held() else None

    def load(
        self, stream: Stream, offset: AnyOffset, bytes_max: int, done: Done
    ) -> Callable[[], None]:
        """Calls `done` later with the window, or with why there is none.

        What is returned calls it off: `done` will not be called then.
        """
        key = (stream.stream_id, offset, bytes_max)
        load = self._under_way.get(key)
        if load is None or not load.is_for(stream):
            load = Load(self, stream, offset, bytes_max)
            if self.loading >= WINDOW_LOADS_MAX:
                self.loop.call_soon(load.finish, too_many_loads())
            else:
                self._under_way[key] = load
                self.loading += 1
                load.begin()
        return load.join(done)

    # For loads

    def new_plan(self, stream: Stream, offset: AnyOffset, bytes_max: int) -> Plan:
        return Plan(self.streams, self.runs, stream, offset, bytes_max)

    def put_together(self, plan: Plan) -> Log:
        """Blocks. Raises what the reader raises, and MissingObject for one that is not there."""
        cold = [piece for piece in plan.pieces if isinstance(piece, ColdPiece)]
        return put_together(plan, self._fetch(cold))

    def _fetch(self, pieces: list[ColdPiece]) -> list[Block]:
        return self.load_runs([(piece.segment, piece.run) for piece in pieces])

    def load_runs(self, runs: Sequence[PublishedRun]) -> list[Block]:
        """Blocks. The content of each run; several segments are asked for at once."""
        if not runs:
            return []
        assert self._reader is not None
        return self._of_each(runs, self._reader.load_runs)

    def load_rows_of(self, runs: Sequence[PublishedRun], key: bytes) -> list[list[FoundRow]]:
        """Blocks. Of each run the messages that have this key."""
        reader = self._reader
        assert reader is not None
        return self._of_each(runs, lambda segment, its: reader.load_rows_of(segment, its, key))

    def _of_each(
        self,
        runs: Sequence[PublishedRun],
        load: Callable[[Segment, Sequence[Run]], Sequence[Result]],
    ) -> list[Result]:
        """What `load` gives for each run, which it is called for by segment, in several threads."""
        by_segment: dict[str, list[int]] = {}
        for index, (segment, _) in enumerate(runs):
            by_segment.setdefault(segment.name, []).append(index)

        def load_some(indexes: list[int]) -> Sequence[Result]:
            segment = runs[indexes[0]][0]
            try:
                return load(segment, [runs[index][1] for index in indexes])
            except ObjectMissing as error:
                raise MissingObject(segment.name) from error
            except ObjectTooShort as error:
                raise DamagedSegment(segment.name, "the object", "whole", error.message) from error

        parts = list(by_segment.values())
        loaded: Iterable[Sequence[Result]]
        loaded = map(load_some, parts) if len(parts) == 1 else self._fetchers.map(load_some, parts)
        found: dict[int, Result] = {}
        for indexes, part in zip(parts, loaded, strict=True):
            found.update(zip(indexes, part, strict=True))
        return [found[index] for index in range(len(runs))]

    async def perform(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which a thread does in its turn among the windows.

        Raises what it raises, and Overloaded. Cancelled: work that has begun goes on to its end.
        """
        if self.loading >= WINDOW_LOADS_MAX:
            raise too_many_loads()
        self.loading += 1
        self.loads += 1
        future = self.loop.run_in_executor(self._pool, self.in_time(work))
        try:
            await asyncio.wait([future])  # itself it is only cancelled when the threads are closed
            if future.cancelled():
                raise the_server_stops()
            return future.result()
        finally:
            future.cancel()
            self.loading -= 1

    def in_time(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Does the work, unless it had to wait too long for a thread."""
        latest = self.loop.time() + self.wait_seconds_max

        def work_in_time() -> Result:
            if self.loop.time() > latest:
                raise StoreUnavailable("a read waited too long for those before it")
            return work()

        return work_in_time

    def explain(self, error: BaseException, stream: Stream, offset: AnyOffset) -> StreamError:
        """Why this place of the stream cannot be read, as its reader is told; the log says more."""
        if isinstance(error, StoreUnavailable):
            logger.warning("the object store does not answer", error=error.message)
            return ColdUnavailable("old content cannot be read now; try again")
        if stream.deleted:
            return StreamNotFound("stream does not exist any more")
        if stream.is_trimmed(offset):
            return OffsetGone(stream.earliest)
        if isinstance(error, MissingObject):
            error = DamagedSegment(error.name, "the object", "there", "nothing")
        if isinstance(error, DamagedSegment):
            logger.error("a segment is damaged", object=error.name, error=error.message)
        elif isinstance(error, OSError):
            logger.warning("old content cannot be read", stream=stream.stream_id, error=str(error))
        elif not isinstance(error, StreamError):
            self.faults.report("read", error)
        if isinstance(error, StreamError):
            return error
        return ColdUnavailable("old content could not be read; the server's log says why")

    def run(
        self, work: Callable[[], Log | None], done: Callable[[asyncio.Future[Log | None]], None]
    ) -> asyncio.Future[Log | None]:
        future = self.loop.run_in_executor(self._pool, work)
        future.add_done_callback(done)
        return future

    def ended(self, load: Load) -> None:
        if self._under_way.get(load.key) is load:
            del self._under_way[load.key]
        self.loading -= 1

    # Read-ahead

    def read_ahead(self, stream: Stream, place: int, window: Log) -> None:
        """When windows follow on each other, the next one's runs are fetched before it is asked."""
        stream_id, end = stream.stream_id, window.tail_byte
        last = self._sequences.pop(stream_id, None)
        is_sequence = last is not None and last.start_byte < place <= last.end_byte
        ahead = last.ahead_byte if last is not None and is_sequence else 0
        if (
            is_sequence
            and ahead < end < stream.log.held_byte
            and stream_id not in self._reading_ahead
            and len(self._reading_ahead) < READ_AHEADS_MAX
            and self.loading <= self._threads
        ):
            ahead = self._fetch_ahead(stream, window.tail) or ahead
        self._sequences[stream_id] = _Sequence(place, end, ahead)
        if len(self._sequences) > READ_AHEAD_STREAMS_MAX:
            self._sequences.popitem(last=False)

    def _fetch_ahead(self, stream: Stream, offset: AnyOffset) -> int | None:
        """Up to where it will have fetched; None when there is nothing to fetch, or too much."""
        plan = self.new_plan(stream, offset, READ_AHEAD_BYTES)
        try:
            for step, _ in enumerate(plan.steps()):
                if step >= PLAN_STEPS_PER_TURN:
                    return None
        except (MissingRun, StreamError):
            return None
        cold = [piece for piece in plan.pieces if isinstance(piece, ColdPiece)]
        if not cold:
            return None

        def work() -> None:
            self._fetch(cold)

        def fetched(future: asyncio.Future[Log | None]) -> None:
            self._reading_ahead.discard(stream.stream_id)
            error = None if future.cancelled() else future.exception()
            if isinstance(error, (OSError, StreamError, MissingObject)):
                logger.info("read-ahead failed", error=str(error))
            elif error is not None:
                self.faults.report("read", error)

        self._reading_ahead.add(stream.stream_id)
        self.run(work, fetched)
        return plan.end.byte


class Load:
    """One window on its way, and the readers that wait for it."""

    def __init__(
        self, cold_reads: ColdReads, stream: Stream, offset: AnyOffset, bytes_max: int
    ) -> None:
        self.key = (stream.stream_id, offset, bytes_max)
        self._cold_reads = cold_reads
        self._stream = stream
        self._offset = offset
        self._bytes_max = bytes_max
        self._waiting: dict[int, Done] = {}
        self._joined = 0
        self._tries = 0
        self._future: asyncio.Future[Log | None] | None = None
        self._plan: Plan | None = None

    def is_for(self, stream: Stream) -> bool:
        """Whether its window will show everything that a reader who comes now may expect."""
        plan = self._plan
        if plan is None or stream is not self._stream:
            return False
        return plan.end != plan.tail or plan.tail == stream.log.tail

    def join(self, done: Done) -> Callable[[], None]:
        self._joined += 1
        number = self._joined
        self._waiting[number] = done

        def leave() -> None:
            self._waiting.pop(number, None)
            if not self._waiting and self._future is not None:
                self._future.cancel()  # without effect once a thread works on it

        return leave

    def begin(self) -> None:
        self._tries += 1
        self._guard(self._make_plan)

    def _guard(self, step: Callable[[], None]) -> None:
        """Every step runs in here: whatever it raises, those who wait are told why."""
        try:
            step()
        except Exception as error:
            self._cold_reads.loop.call_soon(self._end, self._explain(error))

    def _make_plan(self) -> None:
        self._plan = plan = self._cold_reads.new_plan(self._stream, self._offset, self._bytes_max)
        self._planning: Iterator[None] = plan.steps()
        self._go_on()

    def _go_on(self) -> None:
        """Plans a few steps at a time: others want the event loop too."""
        for _ in range(PLAN_STEPS_PER_TURN):
            if next(self._planning, self) is self:
                self._materialise()
                return
        self._cold_reads.loop.call_soon(self._guard, self._go_on)

    def _materialise(self) -> None:
        plan, cold_reads = self._plan, self._cold_reads
        assert plan is not None
        cold_reads.loads += 1
        work = cold_reads.in_time(lambda: cold_reads.put_together(plan))
        self._future = cold_reads.run(work, self._loaded)

    def _loaded(self, future: asyncio.Future[Log | None]) -> None:
        if future.cancelled():
            self._end(the_server_stops())
            return
        error = future.exception()
        if isinstance(error, MissingObject) and self._tries < TRIES_MAX:
            self.begin()
            return
        if error is not None:
            self._end(self._explain(error))
            return
        window = future.result()
        assert window is not None
        try:
            self._cold_reads.read_ahead(self._stream, self._place(window), window)
        except Exception as failure:  # only the next reader would have had something of it
            self._cold_reads.faults.report("read", failure)
        self._end(window)

    def _place(self, window: Log) -> int:
        byte = self._offset.byte
        return window.held_byte if byte is None else byte

    def _explain(self, error: BaseException) -> StreamError:
        return self._cold_reads.explain(error, self._stream, self._offset)

    def _end(self, result: Log | StreamError) -> None:
        self._cold_reads.ended(self)
        self.finish(result)

    def finish(self, result: Log | StreamError) -> None:
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            try:
                done(result)
            except Exception as error:  # the others wait too
                self._cold_reads.faults.report("read", error)


def too_many_loads() -> StreamError:
    return Overloaded("too many reads of old content are under way")


def the_server_stops() -> StreamError:
    return Overloaded("the server stops reading old content")


def put_together(plan: Plan, loaded: Iterable[Block]) -> Log:
    """The window of a plan, given the blocks of its cold pieces in order."""
    window = Log()
    window.start_at(plan.start or plan.end)
    blocks = iter(loaded)
    for piece in plan.pieces:
        if isinstance(piece, ColdPiece):
            piece = next(blocks).cut(piece.size)
        window.append_block(piece)
    assert window.tail == plan.end, "pieces and plan do not agree"
    return window
