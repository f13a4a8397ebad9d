"""Which streams stay in memory: all that changed or are being followed, and the newest others."""

from __future__ import annotations

from collections import OrderedDict

from millstream.engine.engine import Engine
from millstream.limits import EVICTIONS_AT_ONCE
from millstream.state.changes import Capture
from millstream.state.commands import TouchStream
from millstream.state.stream import Stream


class Residency:
    def __init__(self, engine: Engine, streams_max: int) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._streams_max = streams_max
        # Each once, in the order they came to rest or came back.
        self._candidates: OrderedDict[int, None] = OrderedDict()

    def start(self) -> None:
        told_before = self._machine.residents.welcome

        def welcome(stream: Stream) -> None:
            told_before(stream)
            self._add(stream.stream_id)
            self._engine.lifetimes.follow(stream)

        self._machine.residents.welcome = welcome
        self._candidates.update(dict.fromkeys(self._machine.by_id))
        self._engine.after_batch.append(self.check)

    def shelved(self, capture: Capture) -> None:
        """A checkpoint is on the shelf: its streams may go."""
        for captured in capture.streams:
            self._add(captured.image.stream_id)
        self.check()

    def _add(self, stream_id: int) -> None:
        self._candidates[stream_id] = None
        self._candidates.move_to_end(stream_id)

    def check(self) -> None:
        """Called after every batch, and after every look-up that brought a stream back."""
        if len(self._machine.by_id) > self._streams_max:
            for _ in range(min(EVICTIONS_AT_ONCE, len(self._candidates))):
                stream_id, _ = self._candidates.popitem(last=False)
                self._consider(stream_id)
                if len(self._machine.by_id) <= self._streams_max:
                    return

    def _consider(self, stream_id: int) -> None:
        stream = self._machine.by_id.get(stream_id)
        if stream is None or not self._machine.changes.is_shelved(stream):
            return  # the checkpoint that shelves it names it again
        if stream_id in self._engine.watchers:
            self._add(stream_id)
            return
        if stream.ttl_ms is not None and stream.accessed_ms > stream.touched_ms:
            touch = TouchStream(stream.accessed_ms, stream_id)  # only memory knows of the renewal
            self._engine.submit_and_forget(touch)
            return
        stream.log.drop(stream.log.tail_ordinal, stream.log.tail_byte)
        self._machine.residents.evict(stream)
