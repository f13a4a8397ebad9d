"""The content of one stream: what of it is in memory, in blocks, and where the rest lies.

Blocks are immutable, so a reader or a flush may hold them while the stream grows.
Small appends are merged to blocks of about 64 KiB; large ones stay the bytes object they came as,
but a block of many messages is never much longer than BLOCK_BYTES: nothing that is done with one
may take long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, cycle
from typing import TypeAlias, cast

import numpy as np

from millstream.formats.runs import Run, Segment
from millstream.limits import BLOCK_BYTES, SMALL_BLOCK_BYTES, SMALL_BLOCK_OVERHEAD

Ends = array  # array("I"): end of each message relative to its block
Times: TypeAlias = "int | array[int]"  # ms since 1970, one for all messages or one for each
Block: TypeAlias = "tuple[bytes, array[int] | None, Times]"
PublishedRun: TypeAlias = tuple[Segment, Run]

MOVED_AT_ONCE = 64  # ends; fewer are quicker one by one
# How far a new log is from its first merge: those that grow alike shall not all merge at once.
_phases = cycle(range(0, SMALL_BLOCK_BYTES // 2, SMALL_BLOCK_BYTES // 64))


def decode_ends(encoded: bytes) -> Ends[int] | None:
    """From the form of protocol.json_mode.Messages: empty for exactly one message."""
    if not encoded:
        return None
    ends = array("I")
    ends.frombytes(encoded)
    return ends


def _message_count(ends: Ends[int] | None) -> int:
    return 1 if ends is None else len(ends)


def count_messages(block: Block) -> int:
    return _message_count(block[1])


def cut_block(block: Block, size: int) -> Block:
    """The first `size` bytes of a block; a message that the cut goes through ends there."""
    data, ends, times = block
    if size >= len(data):
        return block
    if ends is None:
        return data[:size], None, times
    whole = bisect_left(ends, size)
    kept = ends[:whole]
    kept.append(size)
    return data[:size], kept, times if isinstance(times, int) else times[: whole + 1]


class Log:
    """Positions are absolute, in bytes and in messages (ordinals), counted from the stream's start.

        first <= tail     what the stream shows; what came before was trimmed
        own               before it, content is inherited: it lies in the log of the fork's source
        cold              own content before it is published in runs
        held <= cold      own content from here on is in memory, in blocks

    Block i holds `datas[i]` and begins at byte `starts[i]` and message `ordinals[i]`; `ends[i]` is
    None when it is exactly one message; `times[i]` is when it was appended, as one number or one
    for each message. `starts` and `ordinals` may lag behind, see `_locate`.

    Flushes come by often and must not look for their place each time: `cold_block` is the block
    that begins where the log is cold up to, or -1 when somebody has to look. `mark_*` is where the
    last `unpublished` ended, which is where the next run most likely does.
    """

    __slots__ = (
        "cold_block",
        "cold_byte",
        "cold_ordinal",
        "datas",
        "ends",
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
        "times",
    )

    def __init__(self) -> None:
        self.datas: list[bytes] = []
        self.ends: list[Ends[int] | None] = []
        self.times: list[Times] = []
        self.starts: list[int] = []
        self.ordinals: list[int] = []
        self.runs: list[PublishedRun] | None = None  # published since the last checkpoint
        self.small_from = 0  # blocks from here on are small and wait to be merged
        self.small_bytes = next(_phases)
        self.start_at(0, 0)

    def start_at(self, ordinal: int, byte: int) -> None:
        """An empty log whose first message will be number `ordinal`, at `byte`."""
        self.first_ordinal = self.own_ordinal = self.cold_ordinal = ordinal
        self.held_ordinal = self.tail_ordinal = ordinal
        self.first_byte = self.own_byte = self.cold_byte = byte
        self.held_byte = self.tail_byte = byte
        self.cold_block = 0
        self.mark_block = self.mark_ordinal = self.mark_byte = -1

    def append(self, data: bytes, ends: Ends[int] | None, count: int, time: Times = 0) -> None:
        """`ends` is None for exactly one message, else one entry per message."""
        size = len(data)
        self.datas.append(data)
        self.ends.append(ends)
        self.times.append(time)
        self.tail_byte += size
        self.tail_ordinal += count
        # What a block costs beside its bytes counts too, so that tiny ones are merged as well.
        self.small_bytes += size + SMALL_BLOCK_OVERHEAD
        if self.small_bytes >= SMALL_BLOCK_BYTES:
            self._merge_small(size >= SMALL_BLOCK_BYTES)

    def append_many(self, pieces: Sequence[bytes], encoded_ends: bytes, time: Times = 0) -> int:
        """Content in one or more pieces of whole messages; its size.

        `encoded_ends` counts through all of them and is empty for exactly one message.
        """
        size = sum(map(len, pieces))
        ends = decode_ends(encoded_ends)
        if ends is None:
            self.append(pieces[0] if len(pieces) == 1 else b"".join(pieces), None, 1, time)
        elif len(pieces) == 1 and size <= 2 * BLOCK_BYTES:
            self.append(pieces[0], ends, len(ends), time)
        else:
            start = passed = 0
            for piece in _bounded(pieces, ends):
                start += len(piece)
                last = bisect_right(ends, start)
                own = _short(_moved(ends, passed, last, start - len(piece)))
                self.append(piece, own, last - passed, time)
                passed = last
        return size

    def _locate(self) -> None:
        """Writes down where the newest blocks begin; appends leave that to whoever reads."""
        index = len(self.starts)
        byte, ordinal = self.held_byte, self.held_ordinal
        if index:
            byte = self.starts[-1] + len(self.datas[index - 1])
            ordinal = self.ordinals[-1] + _message_count(self.ends[index - 1])
        for data, ends in zip(self.datas[index:], self.ends[index:], strict=True):
            self.starts.append(byte)
            self.ordinals.append(ordinal)
            byte += len(data)
            ordinal += _message_count(ends)

    def _merge_small(self, last_is_large: bool) -> None:
        first = self.small_from
        last = len(self.datas) - 1 if last_is_large else len(self.datas)
        if last - first > 1:
            merged_ends = self._merged_ends(first, last)
            self.times[first:last] = [self._merged_times(first, last)]
            self.datas[first:last] = [b"".join(self.datas[first:last])]
            self.ends[first:last] = [merged_ends]
            located = min(last, len(self.starts))
            del self.starts[first + 1 : located]
            del self.ordinals[first + 1 : located]
        self.small_from = len(self.datas)
        self.small_bytes = 0

    def _merged_ends(self, first: int, last: int) -> Ends[int]:
        if self.ends[first:last].count(None) == last - first:
            return array("I", accumulate(map(len, self.datas[first:last])))
        merged = array("I")
        base = 0
        for data, ends in zip(self.datas[first:last], self.ends[first:last], strict=True):
            if ends is None:
                merged.append(base + len(data))
            else:
                few = len(ends) < MOVED_AT_ONCE
                merged.extend(
                    [base + e for e in ends] if few else _moved(ends, 0, len(ends), -base)
                )
            base += len(data)
        return merged

    def _merged_times(self, first: int, last: int) -> Times:
        times = self.times[first:last]
        if times.count(times[0]) == len(times) and isinstance(times[0], int):
            return times[0]
        if self.ends[first:last].count(None) == last - first:
            return array("Q", cast("list[int]", times))  # one message each, so one number each
        merged = array("Q")
        for time, ends in zip(times, self.ends[first:last], strict=True):
            if isinstance(time, int):
                merged.extend([time] * _message_count(ends))
            else:
                merged.extend(time)
        return merged

    def byte_at(self, ordinal: int) -> int:
        """Where message `ordinal` begins; it must be between what is held and the tail."""
        if ordinal == self.tail_ordinal:
            return self.tail_byte
        if len(self.starts) < len(self.datas):
            self._locate()
        block = bisect_right(self.ordinals, ordinal) - 1
        inside = ordinal - self.ordinals[block]
        if inside == 0:
            return self.starts[block]
        ends = self.ends[block]
        assert ends is not None
        return self.starts[block] + ends[inside - 1]

    def ordinal_at(self, byte: int) -> int | None:
        """The message that begins at `byte`, or None when no message begins there."""
        if byte == self.tail_byte:
            return self.tail_ordinal
        if not self.held_byte <= byte < self.tail_byte:
            return None
        if len(self.starts) < len(self.datas):
            self._locate()
        block = bisect_right(self.starts, byte) - 1
        inside = byte - self.starts[block]
        if inside == 0:
            return self.ordinals[block]
        ends = self.ends[block]
        if ends is None:
            return None
        index = bisect_right(ends, inside)
        return self.ordinals[block] + index if index and ends[index - 1] == inside else None

    def last_boundary(self, byte: int) -> tuple[int, int]:
        """The last message boundary at or before `byte`, as (ordinal, byte)."""
        if byte >= self.tail_byte:
            return self.tail_ordinal, self.tail_byte
        if len(self.starts) < len(self.datas):
            self._locate()
        block = bisect_right(self.starts, byte) - 1
        ends = self.ends[block]
        index = 0 if ends is None else bisect_right(ends, byte - self.starts[block])
        if index == 0:
            return self.ordinals[block], self.starts[block]
        assert ends is not None
        return self.ordinals[block] + index, self.starts[block] + ends[index - 1]

    def page_end(self, ordinal: int, byte: int, bytes_max: int) -> tuple[int, int]:
        """Where a read ends: on a boundary, after at least one message when there is one."""
        end = self.last_boundary(byte + bytes_max)
        if end[0] <= ordinal < self.tail_ordinal:
            return ordinal + 1, self.byte_at(ordinal + 1)
        return end

    def slices(self, start: int, end: int) -> list[bytes | memoryview]:
        """The bytes from `start` to `end` without copying them."""
        if start >= end:
            return []
        if len(self.starts) < len(self.datas):
            self._locate()
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1) - 1
        parts: list[bytes | memoryview] = list(self.datas[first : last + 1])
        cut = end - self.starts[last]
        if cut < len(self.datas[last]):
            parts[-1] = memoryview(self.datas[last])[:cut]
        skip = start - self.starts[first]
        if skip:
            parts[0] = memoryview(parts[0])[skip:]
        return parts

    def blocks_between(self, start: int, end: int) -> tuple[int, int, list[Block]]:
        """Ordinal and byte where the block begins that holds `start`; all blocks from there on that
        hold something before `end`. Nothing is copied; `start` must be held and before the tail.
        """
        if len(self.starts) < len(self.datas):
            self._locate()
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1)
        blocks = zip(
            self.datas[first:last], self.ends[first:last], self.times[first:last], strict=True
        )
        return self.ordinals[first], self.starts[first], list(blocks)

    def branch(self, ordinal: int, byte: int) -> Log:
        """The log of a fork: it shows what comes before the cut, and holds nothing of it itself.

        `ordinal` is the number of messages before the cut; one that the cut goes through counts.
        """
        fork = Log()
        fork.start_at(ordinal, byte)
        fork.first_ordinal, fork.first_byte = self.first_ordinal, self.first_byte
        return fork

    def blocks(self) -> list[tuple[bytes, Sequence[int]]]:
        """Everything the log holds now, block by block, with the end of each message in it.

        Nothing is copied: neither a block nor its ends are changed once they are in a log.
        """
        return [
            (data, (len(data),) if ends is None else ends)
            for data, ends in zip(self.datas, self.ends, strict=True)
        ]

    def trim(self, ordinal: int, byte: int) -> None:
        """Shows nothing before this boundary any more. What is held stays until `drop`."""
        self.first_ordinal, self.first_byte = ordinal, byte

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

    def drop(self, ordinal: int, byte: int) -> int:
        """Lets go of what is held before this boundary; the bytes that freed.

        Readers keep what they hold. Somebody else must hold it, or nobody may want it any more.
        """
        if byte <= self.held_byte:
            return 0
        if len(self.starts) < len(self.datas):
            self._locate()
        ordinal, byte = self.last_boundary(byte)  # no boundary: the message it lies in stays
        freed = byte - self.held_byte
        keep = bisect_right(self.starts, byte) - 1 if byte < self.tail_byte else len(self.datas)
        del self.datas[:keep], self.ends[:keep], self.times[:keep]
        del self.starts[:keep], self.ordinals[:keep]
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
        if not self.datas:
            self.small_bytes = 0
        elif self.starts[0] < byte:
            self._cut_front(ordinal, byte)
        return freed

    def _cut_front(self, ordinal: int, byte: int) -> None:
        """The first block begins before the boundary: keep only its rest."""
        gone, passed = byte - self.starts[0], ordinal - self.ordinals[0]
        ends, times = self.ends[0], self.times[0]
        assert ends is not None
        self.datas[0] = self.datas[0][gone:]
        self.ends[0] = _short(_moved(ends, passed, len(ends), gone))
        self.times[0] = _short_times(times if isinstance(times, int) else times[passed:])
        self.starts[0], self.ordinals[0] = byte, ordinal

    def unpublished(self) -> list[Block]:
        """The blocks that are in no run yet.

        Small ones are merged first: that has to be done once, and makes everything after it
        cheaper. Later appends leave these blocks as they are.
        """
        if self.cold_byte == self.tail_byte:
            return []
        if self.cold_block < 0:
            self._find_cold_block()
        if self.small_from < len(self.datas):
            self._merge_small(False)
        self.mark_block = len(self.datas)
        self.mark_ordinal, self.mark_byte = self.tail_ordinal, self.tail_byte
        index = self.cold_block
        if index == len(self.datas) - 1:
            return [(self.datas[index], self.ends[index], self.times[index])]
        return list(zip(self.datas[index:], self.ends[index:], self.times[index:], strict=True))

    def _find_cold_block(self) -> None:
        """Cuts the block in two that the log is cold inside of, so that one begins there."""
        if len(self.starts) < len(self.datas):
            self._locate()
        index = bisect_right(self.starts, self.cold_byte) - 1
        if self.starts[index] < self.cold_byte:
            self._cut_in_two(index, self.cold_ordinal, self.cold_byte)
            self.small_from += self.small_from > index
            index += 1
        self.cold_block = index
        self.small_from = max(self.small_from, index)

    def _cut_in_two(self, index: int, ordinal: int, byte: int) -> None:
        """At a boundary inside of block `index`."""
        gone, passed = byte - self.starts[index], ordinal - self.ordinals[index]
        data, ends, times = self.datas[index], self.ends[index], self.times[index]
        assert ends is not None
        rest = _moved(ends, passed, len(ends), gone)
        self.datas[index : index + 1] = data[:gone], data[gone:]
        self.ends[index : index + 1] = _short(ends[:passed]), _short(rest)
        first, last = (times, times) if isinstance(times, int) else (times[:passed], times[passed:])
        self.times[index : index + 1] = _short_times(first), _short_times(last)
        self.starts.insert(index + 1, byte)
        self.ordinals.insert(index + 1, ordinal)


def _moved(ends: Ends[int], first: int, last: int, gone: int) -> Ends[int]:
    """These ends in a block that begins `gone` bytes later."""
    if last - first < MOVED_AT_ONCE:
        return array("I", [end - gone for end in ends[first:last]])
    moved = np.frombuffer(ends, np.uint32, last - first, first * 4).astype(np.int64) - gone
    return array("I", moved.astype(np.uint32).tobytes())


def _bounded(pieces: Iterable[bytes], ends: Ends[int]) -> Iterator[bytes]:
    """Cuts pieces of many messages that are too long, as old logs have them."""
    start = 0
    for piece in pieces:
        end = start + len(piece)
        while end - start > 2 * BLOCK_BYTES:
            index = bisect_right(ends, start + BLOCK_BYTES)
            border = ends[index - 1] if index and ends[index - 1] > start else ends[index]
            if border >= end:
                break
            yield piece[start - end : border - end]
            start = border
        yield piece if start == end - len(piece) else piece[start - end :]
        start = end


def _short(ends: Ends[int]) -> Ends[int] | None:
    return None if len(ends) == 1 else ends


def _short_times(times: Times) -> Times:
    if not isinstance(times, int) and times.count(times[0]) == len(times):
        return times[0]
    return times
