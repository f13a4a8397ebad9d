"""Which streams stay in memory: all that changed or are being followed, and the newest others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from millstream.engine.engine import Engine
from millstream.formats.layout import StreamId
from millstream.limits import EVICTIONS_AT_ONCE
from millstream.state.changes import Capture
from millstream.state.commands import TouchStream
from millstream.state.stream import Stream

CANDIDATES_ABSENT_MAX = 1000  # that are gone for good: then they are forgotten


class Eviction:
    def __init__(self, engine: Engine, streams_max: int) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._streams_max = streams_max
        # In the order they came to rest or came back; each of them once.
        self._candidates: OrderedDict[StreamId, None] = OrderedDict()
        self._is_check_due = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        faults = self._engine.faults

        def on_loaded(stream: Stream) -> None:
            try:
                self._add([stream.stream_id])
                self._engine.lifetimes.follow(stream)
            except Exception as error:  # whoever looked the stream up has nothing to do with it
                faults.report("eviction", error)
            if len(self._machine.by_id) > self._streams_max and not self._is_check_due:
                self._is_check_due = True
                loop.call_soon(checked)  # not now: whoever asked is about to use it

        def checked() -> None:
            try:
                self.check()
            except Exception as error:
                faults.report("eviction", error)
            else:
                faults.works("eviction")

        self._machine.residents.on_loaded = on_loaded
        self._add(self._machine.by_id)
        self._engine.after_batch.append(checked)

    def stored(self, capture: Capture) -> None:
        """A checkpoint is on the store: its streams may go."""
        self._add(captured.image.stream_id for captured in capture.streams)
        self.check()

    @property
    def candidates(self) -> int:
        return len(self._candidates)

    def _add(self, stream_ids: Iterable[StreamId]) -> None:
        """To the end, wherever they stood before."""
        candidates, by_id = self._candidates, self._machine.by_id
        for stream_id in stream_ids:
            candidates[stream_id] = None
            candidates.move_to_end(stream_id)
        if len(candidates) > 2 * len(by_id) + CANDIDATES_ABSENT_MAX:
            self._candidates = OrderedDict.fromkeys(i for i in candidates if i in by_id)

    def check(self) -> None:
        """Called after every batch, and when look-ups have brought too many streams back."""
        self._is_check_due = False
        if len(self._machine.by_id) > self._streams_max:
            for _ in range(min(EVICTIONS_AT_ONCE, len(self._candidates))):
                self._consider(self._candidates.popitem(last=False)[0])
                if len(self._machine.by_id) <= self._streams_max:
                    return

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
