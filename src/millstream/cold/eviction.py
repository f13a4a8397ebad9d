"""Which streams stay in memory: all that changed or are being followed, and the newest others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep
from millstream.formats.layout import StreamId
from millstream.limits import EVICTIONS_AT_ONCE
from millstream.state.changes import Capture
from millstream.state.commands import TouchStream
from millstream.state.outbox import Outbox
from millstream.state.stream import Stream

CANDIDATES_ABSENT_MAX = 1000  # that are gone for good: then they are forgotten
COMPLAINT = "streams stay in memory for now"


class Eviction:
    def __init__(self, engine: Engine, streams_max: int, timings: Timings) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._streams_max = streams_max
        self._upkeep = Upkeep(engine.faults, "eviction", timings.eviction_retry)
        # In the order they came to rest or came back; each of them once.
        self._candidates: OrderedDict[StreamId, None] = OrderedDict()
        self._due = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Afterwards no stream leaves memory any more."""
        self._machine.residents.on_loaded = self._loaded
        self._add(self._machine.by_id)
        self._engine.listeners.append(self.check)
        task = group.create_task(self._run(), name="eviction")
        try:
            yield
        finally:
            task.cancel()
            self._engine.listeners.remove(self.check)

    def check(self, _: Outbox | None = None) -> None:
        """Called after every batch and whenever streams may leave: cheap. They do so in a turn of
        their own, because a caller who looked one up is about to use it."""
        if len(self._machine.by_id) > self._streams_max:
            self._due.set()

    def stored(self, capture: Capture) -> None:
        """A checkpoint is on the store: its streams may go."""
        self._add(captured.image.stream_id for captured in capture.streams)
        self.check()

    @property
    def candidates(self) -> int:
        return len(self._candidates)

    def _loaded(self, stream: Stream) -> None:
        try:
            self._add([stream.stream_id])
            self._engine.lifetimes.follow(stream)
        except Exception as error:  # not the fault of the caller who looked the stream up
            self._upkeep.failed(error, COMPLAINT)
            self._due.set()
        self.check()

    def _add(self, stream_ids: Iterable[StreamId]) -> None:
        """To the end, wherever they stood before."""
        candidates, by_id = self._candidates, self._machine.by_id
        for stream_id in stream_ids:
            candidates[stream_id] = None
            candidates.move_to_end(stream_id)
        if len(candidates) > 2 * len(by_id) + CANDIDATES_ABSENT_MAX:
            self._candidates = OrderedDict.fromkeys(i for i in candidates if i in by_id)

    async def _run(self) -> None:
        """Some at a time, as often as `check` finds too many."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                self._evict_some()
            except Exception as error:
                await asyncio.sleep(self._upkeep.failed(error, COMPLAINT))
                self._due.set()  # however few are left: until it has worked, it counts as failing
            else:
                self._upkeep.worked()

    def _evict_some(self) -> None:
        for _ in range(min(EVICTIONS_AT_ONCE, len(self._candidates))):
            if len(self._machine.by_id) <= self._streams_max:
                return
            stream_id = self._candidates.popitem(last=False)[0]
            try:
                self._consider(stream_id)
            except Exception:
                self._add([stream_id])
                raise

    def _consider(self, stream_id: StreamId) -> None:
        stream = self._machine.by_id.get(stream_id)
        if stream is None or not self._machine.changes.is_stored(stream):
            return  # the checkpoint that stores it names it again
        if stream_id in self._engine.watchers:
            self._add([stream_id])
            return
        if stream.ttl_ms is not None and stream.accessed_ms > stream.touched_ms:
            touch = TouchStream(stream.accessed_ms, stream_id)  # only memory knows of the renewal
            self._engine.submit_and_forget(touch)
            return
        stream.log.drop(stream.log.tail_byte)
        self._machine.residents.evict(stream)
