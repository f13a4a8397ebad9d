"""What a window is made of: pieces of logs that are held in memory, and runs that are cold.

Planning looks at the state and at the catalog, so it happens on the event loop, a few look-ups at
a time. What it finds stays true: content is never changed, only moved. Loading the runs and putting
the window together is next door in cold_reads.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from millstream.errors import StreamNotFound
from millstream.formats.blocks import Block
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.limits import PLAN_STEPS_PER_TURN, WINDOW_RUNS_MAX
from millstream.protocol.offsets import AnyOffset, Position
from millstream.state.log import Log, PublishedRun
from millstream.state.stream import Stream

_RUNS_PER_QUERY = 32  # about what a page has; most windows are planned with one query


class Streams(Protocol):
    def find_by_id(self, stream_id: StreamId) -> Stream | None:
        """The stream, also when it is deleted and only kept for its forks."""
        ...


class RunIndex(Protocol):
    def runs_from(
        self,
        stream_id: StreamId,
        *,
        ordinal: int | None = None,
        byte: int | None = None,
        limit: int,
        with_keys: bool = False,
    ) -> list[tuple[Segment, Run]]:
        """The run that holds this message or byte and those behind it, in order. Quick.

        Their key filters are only there on request.
        """
        ...


class ColdPiece(NamedTuple):
    segment: Segment
    run: Run
    size: int  # the first bytes of the run, where the window or the stream ends inside of it


class MissingRun(Exception):
    """No run holds what is not in memory: it was trimmed meanwhile, or the catalog is wrong."""


class Layer(NamedTuple):
    """A stream's own content as far as the stream that inherits it shows it."""

    stream_id: StreamId
    log: Log
    limit: Position


def find_layers(
    streams: Streams, stream: Stream, offset: AnyOffset, tail: Position
) -> Iterator[Layer]:
    """From the stream itself down to the one whose own content holds the place."""
    yield Layer(stream.stream_id, stream.log, tail)
    limit = tail
    while _is_before(offset, stream.log.own):
        source = None
        if stream.origin is not None:
            source = streams.find_by_id(stream.origin.source_id)
        if source is None:
            raise StreamNotFound("stream does not exist any more")
        limit = min(limit, stream.log.own)
        stream = source
        yield Layer(stream.stream_id, stream.log, limit)


def fresh_runs(log: Log, offset: AnyOffset, count: int) -> list[PublishedRun]:
    """The run with this place and those behind it, if it is one that no catalog knows yet.

    Those are in memory, and the last ones.
    """
    ordinal, byte = offset
    fresh = log.runs
    if not fresh or _is_before(offset, fresh[0][1].first):
        return []
    index = (
        bisect_right(fresh, byte or 0, key=lambda found: found[1].first_byte)
        if ordinal is None
        else bisect_right(fresh, ordinal, key=lambda found: found[1].first_ordinal)
    )
    return fresh[index - 1 : index - 1 + count]


class Plan:
    """The pieces of one window, in order. True for the moment each piece was found.

    The window holds whole messages from at or before the offset on. It reaches at least `bytes_max`
    bytes behind it or to the tail, but never has more than WINDOW_RUNS_MAX runs.
    """

    def __init__(
        self,
        streams: Streams,
        runs: RunIndex | None,
        stream: Stream,
        offset: AnyOffset,
        bytes_max: int,
    ) -> None:
        self.stream = stream
        self.offset = offset
        self.start: Position | None = None
        self.end = stream.log.tail
        self.pieces: list[ColdPiece | Block] = []
        self.tail = self.end  # as it was when this was planned
        self.cold_runs = 0
        self._streams = streams
        self._runs = runs
        self._bytes_max = bytes_max
        self._enough_byte = 0
        self._memory_only = False
        self._layers: list[Layer] = []

    @property
    def reaches_tail(self) -> bool:
        return self.end == self.tail

    def steps(self) -> Iterator[None]:
        """Plans; a step takes one look-up at most. Raises MissingRun or StreamNotFound."""
        yield from self._find_layers()
        for layer in reversed(self._layers):
            if self._is_cold(layer):
                yield from self._add_runs(layer)
            if not self._is_enough():
                self._add_held(layer)
            if self._is_enough():
                return

    def is_held(self) -> bool:
        """Plans as far as memory goes; False when something cold or evicted is needed."""
        self._memory_only = True
        try:
            for step, _ in enumerate(self.steps()):
                if step >= PLAN_STEPS_PER_TURN:
                    return False  # a fork of forks of forks: not at once
        except MissingRun:
            return False
        return True

    def _find_layers(self) -> Iterator[None]:
        """A layer in each step but the first."""
        for layer in find_layers(self._streams, self.stream, self.offset, self.tail):
            self._layers.append(layer)
            if len(self._layers) > 1:
                yield

    def _is_enough(self) -> bool:
        if self.start is None:
            return False
        return self.end.byte >= self._enough_byte or self.cold_runs >= WINDOW_RUNS_MAX

    def _is_cold(self, layer: Layer) -> bool:
        """Whether what comes next of this layer is not in memory."""
        log = layer.log
        if self.start is None:
            return _is_before(self.offset, log.held)
        return self.end.byte < min(log.held_byte, layer.limit.byte)

    def _next_runs(self, layer: Layer) -> list[tuple[Segment, Run]]:
        if self._memory_only:
            return []
        offset = self.offset if self.start is None else self.end
        ordinal, byte = offset
        fresh = fresh_runs(layer.log, offset, _RUNS_PER_QUERY)
        if fresh or self._runs is None:
            return fresh
        if ordinal is not None:
            return self._runs.runs_from(layer.stream_id, ordinal=ordinal, limit=_RUNS_PER_QUERY)
        return self._runs.runs_from(layer.stream_id, byte=byte, limit=_RUNS_PER_QUERY)

    def _add_runs(self, layer: Layer) -> Iterator[None]:
        while self._is_cold(layer) and not self._is_enough():
            found = self._next_runs(layer)
            if not found:
                raise MissingRun(f"stream {layer.stream_id} at {self.offset}")
            for segment, run in found:
                self._add_run(layer, segment, run)
                if self._is_enough() or not self._is_cold(layer):
                    break
            yield

    def _add_run(self, layer: Layer, segment: Segment, run: Run) -> None:
        if self.start is None:
            self._begin(self._place_in(run), run.first)
        elif self.end != run.first:
            raise MissingRun(f"stream {layer.stream_id} at {self.end}")
        self.end = min(run.end, layer.log.held, layer.limit)
        self.pieces.append(ColdPiece(segment, run, self.end.byte - run.first_byte))
        self.cold_runs += 1

    def _place_in(self, run: Run) -> int:
        """A byte that is not before the place; the place must lie in this run."""
        ordinal, byte = self.offset
        if ordinal is not None and not run.first_ordinal <= ordinal < run.end_ordinal:
            raise MissingRun(f"stream {run.stream_id} at {self.offset}")
        is_inside = byte is None or run.first_byte <= byte < run.end_byte
        if ordinal is None and not is_inside:
            raise MissingRun(f"stream {run.stream_id} at {self.offset}")
        if byte is None:
            return run.end_byte
        return byte if is_inside else -1  # the two halves do not fit: any window will show that

    def _begin(self, place_byte: int, start: Position) -> None:
        self.start = self.end = start
        self._enough_byte = place_byte + self._bytes_max if place_byte >= 0 else 0

    def _add_held(self, layer: Layer) -> None:
        log, limit = layer.log, layer.limit
        byte = self.end.byte
        if self.start is None:
            byte = self._held_byte(log)
        if byte >= limit.byte:
            return
        enough = byte + self._bytes_max if self.start is None else self._enough_byte
        start, blocks = log.blocks_between(byte, min(limit.byte, max(enough, byte + 1)))
        if self.start is None:
            is_real = self.offset.byte in (None, byte)
            self._begin(byte if is_real else -1, start)
        for block in blocks:
            self._add_block(block, limit)

    def _held_byte(self, log: Log) -> int:
        ordinal, byte = self.offset
        if ordinal is not None:
            return log.byte_at(min(ordinal, log.tail_ordinal))
        assert byte is not None
        return byte

    def _add_block(self, block: Block, limit: Position) -> None:
        ordinal, byte = self.end
        end = Position(ordinal + block.count, byte + len(block.data))
        self.end = min(end, limit)
        self.pieces.append(block if end <= limit else block.cut(limit.byte - byte))


def _is_before(offset: AnyOffset, position: Position) -> bool:
    if offset.ordinal is not None:
        return offset.ordinal < position.ordinal
    assert offset.byte is not None
    return offset.byte < position.byte
