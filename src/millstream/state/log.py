"""The content of one stream: what of it is in memory, in blocks, and where the rest lies.

Blocks are immutable, so a reader or a flush may hold them while the stream grows.
Small appends are merged to blocks of about 64 KiB; large ones stay the bytes object they came as,
but a block of many messages is never much longer than BLOCK_BYTES: nothing that is done with one
may take long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from operator import attrgetter
from typing import TypeAlias, cast

from millstream.formats.blocks import Block, Ends, Keys, Times, bounded_blocks, decode_ends, join
from millstream.formats.runs import Run, Segment
from millstream.limits import BLOCK_BYTES, SMALL_BLOCK_BYTES, SMALL_BLOCK_OVERHEAD
from millstream.protocol.offsets import START, Position

PublishedRun: TypeAlias = tuple[Segment, Run]

# As Position(ordinal, byte) in a third of the time: a checkpoint asks every stream for four.
_position = cast("Callable[[tuple[int, int]], Position]", partial(tuple.__new__, Position))

_last_ms = attrgetter("last_ms")

# How far a new log is from its first merge: those that grow alike shall not all merge at once.
_phases = cycle(range(0, SMALL_BLOCK_BYTES // 2, SMALL_BLOCK_BYTES // 64))


class Log:
    """Positions are absolute, in bytes and in messages (ordinals), counted from the stream's start.

        first <= tail     what the stream shows; what came before was trimmed
        own               before it, content is inherited: it lies in the log of the fork's source
        cold              own content before it is published in runs
        held <= cold      own content from here on is in memory, in blocks

    `blocks[i]` begins at byte `starts[i]` and message `ordinals[i]`; these two may lag behind, see
    `_locate`. Each of the five places is two plain numbers here, because every append moves the
    tail; who reads takes them as one Position (`tail`, `first`, `held`, `cold`, `own`).

    Flushes come by often and must not look for their place each time: `cold_block` is the block
    that begins where the log is cold up to, or -1 when `unpublished` has to look. `mark_*` is where
    the last `unpublished` ended, which is where the next run most likely does.
    """

    __slots__ = (
        "blocks",
        "cold_block",
        "cold_byte",
        "cold_ordinal",
        "first_byte",
        "first_ordinal",
        "held_byte",
        "held_ordinal",
        "mark_block",
        "mark_byte",
        "mark_ordinal",
        "ordinals",
        "own_byte",
        "own_ordinal",
        "runs",
        "small_bytes",
        "small_from",
        "starts",
        "tail_byte",
        "tail_ordinal",
    )

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.starts: list[int] = []
        self.ordinals: list[int] = []
        self.runs: list[PublishedRun] | None = None  # published since the last checkpoint
        self.small_from = 0  # blocks from here on are small and wait to be merged
        self.small_bytes = next(_phases)
        self.start_at(START)

    def start_at(self, start: Position) -> None:
        """An empty log whose first message will begin there."""
        ordinal, byte = start
        self.first_ordinal = self.own_ordinal = self.cold_ordinal = ordinal
        self.held_ordinal = self.tail_ordinal = ordinal
        self.first_byte = self.own_byte = self.cold_byte = byte
        self.held_byte = self.tail_byte = byte
        self.cold_block = 0
        self.mark_block = self.mark_ordinal = self.mark_byte = -1

    @property
    def tail(self) -> Position:
        return _position((self.tail_ordinal, self.tail_byte))

    @property
    def first(self) -> Position:
        return _position((self.first_ordinal, self.first_byte))

    @property
    def held(self) -> Position:
        return _position((self.held_ordinal, self.held_byte))

    @property
    def cold(self) -> Position:
        return _position((self.cold_ordinal, self.cold_byte))

    @property
    def own(self) -> Position:
        return _position((self.own_ordinal, self.own_byte))

    def append(self, data: bytes, ends: Ends | None, times: Times, keys: Keys = None) -> None:
        """The fields of one block."""
        size = len(data)
        self.blocks.append(Block(data, ends, times, keys))
        self.tail_byte += size
        self.tail_ordinal += 1 if ends is None else len(ends)
        # What a block costs beside its bytes counts too, so that tiny ones are merged as well.
        self.small_bytes += size + SMALL_BLOCK_OVERHEAD
        if self.small_bytes >= SMALL_BLOCK_BYTES:
            self._merge_small(size >= SMALL_BLOCK_BYTES)

    def append_block(self, block: Block) -> None:
        self.append(block.data, block.ends, block.times, block.keys)

    def append_many(
        self,
        pieces: Sequence[bytes],
        encoded_ends: bytes,
        time: Times = 0,
        keys: Keys = None,
    ) -> int:
        """Content in one or more pieces of whole messages; its size.

        `encoded_ends` counts through all of them and is empty for exactly one message.
        """
        size = sum(map(len, pieces))
        ends = decode_ends(encoded_ends)
        if ends is None:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self.append(data, None, time, keys)
        elif len(pieces) == 1 and size <= 2 * BLOCK_BYTES:
            self.append(pieces[0], ends, time, keys)
        else:
            for block in bounded_blocks(pieces, ends, time, keys):
                self.append_block(block)
        return size

    def _locate(self) -> None:
        """Writes down where the newest blocks begin; appends leave that to those who read."""
        index = len(self.starts)
        byte, ordinal = self.held_byte, self.held_ordinal
        if index:
            byte = self.starts[-1] + len(self.blocks[index - 1].data)
            ordinal = self.ordinals[-1] + self.blocks[index - 1].count
        for block in self.blocks[index:]:
            self.starts.append(byte)
            self.ordinals.append(ordinal)
            byte += len(block.data)
            ordinal += 1 if block.ends is None else len(block.ends)

    def _merge_small(self, last_is_large: bool) -> None:
        first = self.small_from
        last = len(self.blocks) - 1 if last_is_large else len(self.blocks)
        if last - first > 1:
            self.blocks[first:last] = [join(self.blocks[first:last])]
            located = min(last, len(self.starts))
            del self.starts[first + 1 : located]
            del self.ordinals[first + 1 : located]
        self.small_from = len(self.blocks)
        self.small_bytes = 0

    def byte_at(self, ordinal: int) -> int:
        """Where message `ordinal` begins; it must be between what is held and the tail."""
        if ordinal == self.tail_ordinal:
            return self.tail_byte
        if len(self.starts) < len(self.blocks):
            self._locate()
        index = bisect_right(self.ordinals, ordinal) - 1
        return self.starts[index] + self.blocks[index].end_of(ordinal - self.ordinals[index])

    def ordinal_at(self, byte: int) -> int | None:
        """The message that begins at `byte`, or None when no message begins there."""
        if not self.held_byte <= byte <= self.tail_byte:
            return None
        boundary = self.last_boundary(byte)
        return boundary.ordinal if boundary.byte == byte else None

    def last_boundary(self, byte: int) -> Position:
        """The last message boundary at or before `byte`, which is not before what is held."""
        if byte >= self.tail_byte:
            return _position((self.tail_ordinal, self.tail_byte))
        if len(self.starts) < len(self.blocks):
            self._locate()
        index = bisect_right(self.starts, byte) - 1
        start, block = self.starts[index], self.blocks[index]
        count = block.count_within(byte - start)
        return Position(self.ordinals[index] + count, start + block.end_of(count))

    def first_since(self, time_ms: int, start: Position) -> Position:
        """The boundary before the first message from `start` on that was appended then or later;
        the tail when there is none. `start` must be between what is held and the tail.
        """
        if len(self.starts) < len(self.blocks):
            self._locate()
        index = bisect_left(self.blocks, time_ms, key=_last_ms)
        if index == len(self.blocks):
            return self.tail
        block = self.blocks[index]
        count = block.count_before(time_ms)
        found = Position(self.ordinals[index] + count, self.starts[index] + block.end_of(count))
        return max(start, found)

    def page_end(self, start: Position, bytes_max: int) -> Position:
        """Where a read ends: on a boundary, after at least one message when there is one."""
        end = self.last_boundary(start.byte + bytes_max)
        if end.ordinal <= start.ordinal < self.tail_ordinal:
            return Position(start.ordinal + 1, self.byte_at(start.ordinal + 1))
        return end

    def slices(self, start: int, end: int) -> list[bytes | memoryview]:
        """The bytes from `start` to `end` without copying them."""
        if start >= end:
            return []
        if len(self.starts) < len(self.blocks):
            self._locate()
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1) - 1
        parts: list[bytes | memoryview] = [block.data for block in self.blocks[first : last + 1]]
        cut = end - self.starts[last]
        if cut < len(parts[-1]):
            parts[-1] = memoryview(parts[-1])[:cut]
        skip = start - self.starts[first]
        if skip:
            parts[0] = memoryview(parts[0])[skip:]
        return parts

    def blocks_between(self, start: int, end: int) -> tuple[Position, list[Block]]:
        """Where the block begins that holds byte `start`, and all blocks from there on that hold
        something before `end`. Nothing is copied; `start` must be held and before the tail.
        """
        if len(self.starts) < len(self.blocks):
            self._locate()
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1)
        return Position(self.ordinals[first], self.starts[first]), self.blocks[first:last]

    def branch(self, cut: Position) -> Log:
        """The log of a fork: it shows what comes before the cut, and holds nothing of it itself.

        A message that the cut goes through counts among those before it.
        """
        fork = Log()
        fork.start_at(cut)
        fork.first_ordinal, fork.first_byte = self.first_ordinal, self.first_byte
        return fork

    def trim(self, first: Position) -> None:
        """Shows nothing before this boundary any more. What is held stays until `drop`."""
        self.first_ordinal, self.first_byte = first

    def publish(self, segment: Segment, run: Run) -> bool:
        """The run holds what comes next to go cold; False when it does not fit."""
        if run.first_ordinal != self.cold_ordinal or run.first_byte != self.cold_byte:
            return False
        end_ordinal, end_byte = run.end_ordinal, run.end_byte
        if end_byte == self.mark_byte and end_ordinal == self.mark_ordinal:
            self.cold_block = self.mark_block
        elif end_ordinal > self.tail_ordinal or self.byte_at(end_ordinal) != end_byte:
            return False
        else:
            self.cold_block = -1
        if self.runs is None:
            self.runs = []
        self.runs.append((segment, run))
        self.cold_ordinal, self.cold_byte = end_ordinal, end_byte
        return True

    def drop(self, before_byte: int) -> int:
        """Lets go of the messages that are held before this byte; the bytes that freed.

        Readers keep what they hold. Runs must hold it too, unless it was trimmed.
        """
        if before_byte <= self.held_byte:
            return 0
        if len(self.starts) < len(self.blocks):
            self._locate()
        ordinal, byte = self.last_boundary(before_byte)
        freed = byte - self.held_byte
        keep = bisect_right(self.starts, byte) - 1 if byte < self.tail_byte else len(self.blocks)
        del self.blocks[:keep], self.starts[:keep], self.ordinals[:keep]
        self.small_from = max(0, self.small_from - keep)
        self.held_ordinal, self.held_byte = ordinal, byte
        if self.cold_byte < byte:
            self.cold_ordinal, self.cold_byte = ordinal, byte
            self.cold_block = 0
        elif self.cold_block >= 0:
            self.cold_block -= keep
        if self.mark_byte < byte:
            self.mark_block = self.mark_ordinal = self.mark_byte = -1
        else:
            self.mark_block -= keep
        if not self.blocks:
            self.small_bytes = 0
        elif self.starts[0] < byte:
            self.blocks[0] = self.blocks[0].after(ordinal - self.ordinals[0])
            self.starts[0], self.ordinals[0] = byte, ordinal
        return freed

    def unpublished(self) -> list[Block]:
        """The blocks that are in no run yet.

        Small ones are merged first: that has to be done once, and makes everything after it
        cheaper. Later appends leave these blocks as they are.
        """
        if self.cold_byte == self.tail_byte:
            return []
        if self.cold_block < 0:
            self._find_cold_block()
        if self.small_from < len(self.blocks):
            self._merge_small(False)
        self.mark_block = len(self.blocks)
        self.mark_ordinal, self.mark_byte = self.tail_ordinal, self.tail_byte
        return self.blocks[self.cold_block :]

    def _find_cold_block(self) -> None:
        """Cuts the block in two that the log is cold inside of, so that one begins there."""
        if len(self.starts) < len(self.blocks):
            self._locate()
        index = bisect_right(self.starts, self.cold_byte) - 1
        if self.starts[index] < self.cold_byte:
            passed = self.cold_ordinal - self.ordinals[index]
            self.blocks[index : index + 1] = self.blocks[index].split(passed)
            self.starts.insert(index + 1, self.cold_byte)
            self.ordinals.insert(index + 1, self.cold_ordinal)
            self.small_from += self.small_from > index
            index += 1
        self.cold_block = index
        self.small_from = max(self.small_from, index)
