"""Lookups: the messages of one routing key, and the first message since a moment.

Neither walks through history. What a stream got when and which keys it has is known of every run,
without reading it: a moment is found by halving, and of the runs only those are read that may hold
the key. What is in memory is looked at there, and what a fork inherited in the stream it is from.

Places are found on the event loop, a few look-ups at a time; content is read by the threads of
cold_reads.py, through its caches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from millstream.cold.cold_reads import TRIES_MAX, ColdReads, MissingObject
from millstream.cold.read_plans import Layer, MissingRun, find_layers, fresh_runs
from millstream.errors import OffsetGone
from millstream.formats.blocks import Block
from millstream.formats.key_filters import hash_key, may_hold
from millstream.formats.segment_rows import FoundRow
from millstream.limits import (
    LOOKUP_BYTES_MAX,
    LOOKUP_LOADS_AT_ONCE,
    LOOKUP_LOADS_MAX,
    LOOKUP_MESSAGES_MAX,
    LOOKUP_MESSAGES_PER_TURN,
    LOOKUP_RUNS_MAX,
    LOOKUP_RUNS_PER_TURN,
    MIB,
    PLAN_STEPS_PER_TURN,
)
from millstream.protocol.offsets import Position
from millstream.state.log import PublishedRun
from millstream.state.stream import Stream

Result = TypeVar("Result")

_HELD_BYTES_PER_TURN = MIB  # of blocks in memory, which are looked at until there are enough


class Entry(NamedTuple):
    """One message and what is known of it."""

    ordinal: int
    time_ms: int
    key: bytes | None
    data: bytes  # wire bytes, in JSON mode with its comma


class KeyPage(NamedTuple):
    entries: list[Entry]
    end: Position  # the boundary behind all that was looked at or ruled out


class Lookups:
    """Called on the event loop. Raises what a read of the same place would be refused with."""

    def __init__(self, cold_reads: ColdReads) -> None:
        self._cold_reads = cold_reads

    async def seek(self, stream: Stream, since_ms: int) -> Position:
        """The boundary before the first message that was appended then or later; the tail when
        there is none. Never before what the stream still shows."""

        async def attempt(current: Stream) -> Position:
            search = _TimeSearch(self._cold_reads, current, since_ms)
            return max(await search.run(), current.log.first)

        return await self._tried(stream, None, attempt)

    async def page_of_key(
        self, stream: Stream, key: bytes, start: Position, bytes_max: int, messages_max: int
    ) -> KeyPage:
        """The messages with exactly this key from `start` on, in order.

        Ends behind `messages_max` of them or before they exceed `bytes_max`, but not before the
        first one; and earlier, perhaps without any, when finding more would take long. Then the
        next page begins at its end. Where nothing is left, its end is the tail.
        """

        async def attempt(current: Stream) -> KeyPage:
            if current.is_trimmed(start):
                raise OffsetGone(current.earliest)
            page = _Page(key, start, bytes_max, messages_max)
            await _KeySearch(self._cold_reads, current, page).run()
            return KeyPage(page.entries, page.end)

        return await self._tried(stream, start, attempt)

    async def _tried(
        self, stream: Stream, start: Position | None, attempt: Callable[[Stream], Awaitable[Result]]
    ) -> Result:
        """Tries again when runs were moved or trimmed under it."""
        for left in reversed(range(TRIES_MAX)):
            current = self._cold_reads.streams.find_by_id(stream.stream_id) or stream
            place = start or current.log.first
            try:
                return await attempt(current)
            except (MissingObject, MissingRun) as error:
                if not left or current.is_trimmed(place) or current.deleted:
                    raise self._cold_reads.explain(error, current, place) from error
            except Exception as error:
                raise self._cold_reads.explain(error, current, place) from error
        raise AssertionError("the last try returns or raises")


class _Search:
    """Finds its way through the layers of one stream, and leaves the loop to others in between."""

    def __init__(self, cold_reads: ColdReads, stream: Stream) -> None:
        self._cold_reads = cold_reads
        self._stream = stream
        self._steps = 0

    async def _step(self) -> None:
        """One look-up was done."""
        self._steps += 1
        if self._steps % PLAN_STEPS_PER_TURN == 0:
            await asyncio.sleep(0)

    def _runs_from(
        self, layer: Layer, ordinal: int, limit: int, *, with_keys: bool
    ) -> list[PublishedRun]:
        """The run with this message, and those behind it."""
        found = fresh_runs(layer.log, Position(ordinal, 0), limit)
        if not found and self._cold_reads.runs is not None:
            find = self._cold_reads.runs.runs_from
            found = find(layer.stream_id, ordinal=ordinal, limit=limit, with_keys=with_keys)
        if not found or not found[0][1].first_ordinal <= ordinal < found[0][1].end_ordinal:
            raise MissingRun(f"stream {layer.stream_id} at message {ordinal}")
        return found


class _TimeSearch(_Search):
    def __init__(self, cold_reads: ColdReads, stream: Stream, since_ms: int) -> None:
        super().__init__(cold_reads, stream)
        self._since_ms = since_ms

    async def run(self) -> Position:
        """From the newest layer down, as long as all of it is as new."""
        log = self._stream.log
        first, found = log.first, log.tail
        for layer in find_layers(self._cold_reads.streams, self._stream, first, found):
            start = max(first, layer.log.own)
            found = await self._search_layer(layer, start)
            if found.ordinal > start.ordinal:
                break
            await self._step()
        return found

    async def _search_layer(self, layer: Layer, first: Position) -> Position:
        """Between `first` and the layer's limit."""
        log, limit = layer.log, layer.limit
        if first.ordinal >= limit.ordinal:
            return limit
        if log.held_ordinal < limit.ordinal:
            start = max(first, log.held)
            found = min(log.first_since(self._since_ms, start), limit)
            if found.ordinal > start.ordinal or start == first:
                return found
        return await self._search_runs(layer, first, min(log.held, limit))

    async def _search_runs(self, layer: Layer, low: Position, high: Position) -> Position:
        """What is before `low` is older, what is behind `high` is not."""
        while low.ordinal < high.ordinal:
            middle = (low.ordinal + high.ordinal) // 2
            [(segment, run)] = self._runs_from(layer, middle, 1, with_keys=False)
            if run.last_ms and run.last_ms < self._since_ms:
                low = min(run.end, high)
            elif run.last_ms and run.first_ms >= self._since_ms:
                high = max(run.first, low)
            else:
                [block] = await self._load((segment, run))
                count = block.count_before(self._since_ms)
                if 0 < count < run.count:
                    found = Position(
                        run.first_ordinal + count, run.first_byte + block.end_of(count)
                    )
                    return min(max(found, low), high)
                low, high = (min(run.end, high), high) if count else (low, max(run.first, low))
            await self._step()
        return high

    async def _load(self, run: PublishedRun) -> list[Block]:
        return await self._cold_reads.perform(lambda: self._cold_reads.load_runs([run]))


class _Page:
    """Entries as they are found, and how much there is room for."""

    def __init__(self, key: bytes, start: Position, bytes_max: int, messages_max: int) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self.end = start
        self.is_full = False
        self._bytes_left = bytes_max
        self._messages_max = messages_max

    @property
    def messages_left(self) -> int:
        return max(1, self._messages_max - len(self.entries))

    def take(self, rows: Iterable[FoundRow], end: Position, limit: Position) -> None:
        """The messages of the key among those before `end`, up to the limit, if there is room.

        A fork may have left its source within a message: it has that one up to there.
        """
        for ordinal, byte, time_ms, whole in rows:
            if ordinal < self.end.ordinal:
                continue
            if ordinal >= limit.ordinal:
                break
            data = whole[: limit.byte - byte]
            if self.entries and len(data) > self._bytes_left:
                self.end, self.is_full = Position(ordinal, byte), True
                return
            self._bytes_left -= len(data)
            self.end = Position(ordinal + 1, byte + len(data))
            self.entries.append(Entry(ordinal, time_ms, self.key, data))
            if len(self.entries) >= self._messages_max:
                self.is_full = True
                return
        self.end = max(self.end, min(end, limit))


class _Candidate(NamedTuple):
    found: PublishedRun
    may_hold: bool


class _KeySearch(_Search):
    """Fills a page; looks at no more than it may for one page."""

    def __init__(self, cold_reads: ColdReads, stream: Stream, page: _Page) -> None:
        super().__init__(cold_reads, stream)
        self._page = page
        self._hashed = hash_key(page.key)
        self._runs_left = LOOKUP_RUNS_MAX
        self._loads_left = LOOKUP_LOADS_MAX
        self._bytes_left = LOOKUP_BYTES_MAX
        self._messages_left = LOOKUP_MESSAGES_MAX

    async def run(self) -> None:
        page, layers = self._page, list[Layer]()
        tail = self._stream.log.tail
        for layer in find_layers(self._cold_reads.streams, self._stream, page.end, tail):
            layers.append(layer)
            await self._step()
        while layers and not page.is_full and self._may_go_on():
            layer = layers[-1]
            if page.end.ordinal >= layer.limit.ordinal:
                layers.pop()
            elif page.end.ordinal < layer.log.held_ordinal:
                await self._look_at_runs(layer)
            else:
                self._look_at_held(layer)
                await asyncio.sleep(0)

    def _may_go_on(self) -> bool:
        return min(self._runs_left, self._loads_left, self._bytes_left, self._messages_left) > 0

    def _look_at_held(self, layer: Layer) -> None:
        """What is in memory, some blocks of it."""
        page, log, limit = self._page, layer.log, layer.limit
        byte = log.byte_at(page.end.ordinal)
        first, blocks = log.blocks_between(byte, min(limit.byte, byte + _HELD_BYTES_PER_TURN))
        enough = max(0, self._messages_left - LOOKUP_MESSAGES_PER_TURN)
        for block in blocks:
            end = Position(first.ordinal + block.count, first.byte + len(block.data))
            page.take(_rows_of(block, first, page.key), end, limit)
            self._messages_left -= block.count
            if page.is_full or self._messages_left <= enough:
                return
            first = end

    async def _look_at_runs(self, layer: Layer) -> None:
        """Some that are ruled out, and a few that are read: together, as long as they are few."""
        page = self._page
        candidates = await self._find_candidates(layer)
        wanted = [each.found for each in candidates if each.may_hold]
        loaded: list[list[FoundRow]] = []
        if wanted:
            self._loads_left -= len(wanted)
            self._bytes_left -= sum(run.size for _, run in wanted)
            loaded = await self._cold_reads.perform(
                lambda: self._cold_reads.load_rows_of(wanted, page.key)
            )
        found = iter(loaded)
        for (_, run), may_hold_key in candidates:
            page.take(next(found) if may_hold_key else (), run.end, layer.limit)
            if page.is_full:
                return

    async def _find_candidates(self, layer: Layer) -> list[_Candidate]:
        """The next runs in order, up to the last that can be read together with the first."""
        found: list[_Candidate] = []
        ordinal = self._page.end.ordinal
        loads_left = min(LOOKUP_LOADS_AT_ONCE, self._loads_left, self._page.messages_left)
        bytes_left = self._bytes_left
        while self._runs_left > 0 and ordinal < min(layer.limit.ordinal, layer.log.held_ordinal):
            limit = min(LOOKUP_RUNS_PER_TURN, self._runs_left)
            for each in self._runs_from(layer, ordinal, limit, with_keys=True):
                run = each[1]
                may_hold_key = may_hold(run.keys, self._hashed)
                if may_hold_key:
                    if loads_left == 0 or (bytes_left <= 0 and found):
                        return found
                    loads_left -= 1
                    bytes_left -= run.size
                found.append(_Candidate(each, may_hold_key))
                self._runs_left -= 1
                ordinal = run.end_ordinal
            await asyncio.sleep(0)
        return found


def _rows_of(block: Block, first: Position, key: bytes) -> Iterator[FoundRow]:
    """The messages of the key in a block that begins at `first`."""
    for index in block.indexes_of(key):
        begin, end = block.end_of(index), block.end_of(index + 1)
        place = (first.ordinal + index, first.byte + begin)
        yield FoundRow(*place, block.time_of(index), block.data[begin:end])
