"""Published content that is still in memory: read from there as long as the budget allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from millstream.formats.key_filters import NO_KEYS
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run
from millstream.limits import (
    PUBLISHED_DROPS_AT_ONCE,
    PUBLISHED_MEMORY_FACTOR,
    PUBLISHED_RUN_OVERHEAD,
)
from millstream.state.stream import Stream


class PublishedContent:
    """Kept as whole lists of runs: publishing them must not take long."""

    def __init__(self, by_id: Mapping[StreamId, Stream]) -> None:
        self.memory_bytes = 0
        self._by_id = by_id
        self._lists: deque[Sequence[Run]] = deque()  # the oldest first
        self._dropped = 0  # runs of the oldest list

    def add(self, runs: Sequence[Run]) -> None:
        if runs:
            self._lists.append(runs)
            self.memory_bytes += sum(map(_memory_bytes, runs))

    def add_stream(self, stream: Stream) -> None:
        """What an earlier life of the server published."""
        log = stream.log
        count, size = log.cold_ordinal - log.held_ordinal, log.cold_byte - log.held_byte
        if size > 0:
            place = (log.held_ordinal, log.held_byte, count, size, 0, 0, 0)
            self.add((Run(stream.stream_id, *place, keys=NO_KEYS),))

    def shrink(self, allowed_bytes: int) -> bool:
        """Drops the oldest; False when it is still too much, as no request shall wait for it."""
        for _ in range(PUBLISHED_DROPS_AT_ONCE):
            if self.memory_bytes <= max(allowed_bytes, 0):
                return True
            self._drop_one()
        return self.memory_bytes <= max(allowed_bytes, 0)

    def _drop_one(self) -> None:
        oldest = self._lists[0]
        run = oldest[self._dropped]
        self._dropped += 1
        if self._dropped == len(oldest):
            self._lists.popleft()
            self._dropped = 0
        self.memory_bytes -= _memory_bytes(run)
        stream = self._by_id.get(run.stream_id)
        if stream is not None and run.end_byte <= stream.log.cold_byte:
            stream.log.drop(run.end_byte)


def _memory_bytes(run: Run) -> int:
    return int(run.size * PUBLISHED_MEMORY_FACTOR) + PUBLISHED_RUN_OVERHEAD + len(run.keys)
