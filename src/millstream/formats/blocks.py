"""Blocks: contiguous messages of one stream in one piece of bytes, in memory.

A block is never changed, so a log, its readers and a flush may hold the same one. Everything that
cuts messages apart or joins them does it here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

import msgspec
import numpy as np

from millstream.limits import BLOCK_BYTES

Ends: TypeAlias = "array[int]"  # array("I"): of each message, from the start of the block
Times: TypeAlias = "int | array[int]"  # ms since 1970: one for all messages, or array("Q")
Keys: TypeAlias = bytes | tuple[bytes | None, ...] | None  # one for all messages, or one each

_MOVED_AT_ONCE = 64  # ends; fewer are quicker one by one


class Block(msgspec.Struct, frozen=True, gc=False):
    """At least one message. A struct that the garbage collector does not look at: every append
    makes one, and it costs less than an entry in each of three lists."""

    data: bytes  # wire bytes
    ends: Ends | None  # None: exactly one message
    times: Times  # one number where it is exactly one message
    keys: Keys = None

    @property
    def count(self) -> int:
        """Messages."""
        return 1 if self.ends is None else len(self.ends)

    @property
    def message_ends(self) -> Sequence[int]:
        return (len(self.data),) if self.ends is None else self.ends

    @property
    def first_ms(self) -> int:
        return self.times if isinstance(self.times, int) else self.times[0]

    @property
    def last_ms(self) -> int:
        return self.times if isinstance(self.times, int) else self.times[-1]

    def time_of(self, index: int) -> int:
        return self.times if isinstance(self.times, int) else self.times[index]

    def count_before(self, time_ms: int) -> int:
        """How many of its first messages were appended before then; times never go back."""
        if isinstance(self.times, int):
            return self.count if self.times < time_ms else 0
        return bisect_left(self.times, time_ms)

    def indexes_of(self, key: bytes) -> Sequence[int]:
        """Which of its messages have exactly this key."""
        if not isinstance(self.keys, tuple):
            return range(self.count) if self.keys == key else ()
        indexes: list[int] = []
        for _ in range(self.keys.count(key)):  # twice as fast as looking at each one here
            indexes.append(self.keys.index(key, indexes[-1] + 1 if indexes else 0))
        return indexes

    def end_of(self, count: int) -> int:
        """Where the first `count` messages end."""
        if count == 0:
            return 0
        return len(self.data) if self.ends is None else self.ends[count - 1]

    def count_within(self, size: int) -> int:
        """How many messages the first `size` bytes hold whole."""
        if self.ends is None:
            return int(size >= len(self.data))
        return bisect_right(self.ends, size)

    def cut(self, size: int) -> Block:
        """The first `size` bytes; a message that the cut goes through ends there."""
        if size >= len(self.data):
            return self
        if self.ends is None:
            return Block(self.data[:size], None, self.times, self.keys)
        whole = bisect_left(self.ends, size)
        ends = self.ends[:whole]
        ends.append(size)
        times, keys = _part_of(self.times, 0, whole + 1), _part_of_keys(self.keys, 0, whole + 1)
        return Block(self.data[:size], _short(ends), times, keys)

    def first(self, count: int) -> Block:
        """Its first `count` messages, at least one."""
        return self if count >= self.count else self._between(0, count)

    def after(self, count: int) -> Block:
        """What follows its first `count` messages, which are not all."""
        return self if count == 0 else self._between(count, self.count)

    def split(self, count: int) -> tuple[Block, Block]:
        """Cut in two behind `count` messages, which are neither none nor all."""
        return self.first(count), self.after(count)

    def _between(self, first: int, last: int) -> Block:
        assert self.ends is not None
        assert first < last
        start = self.end_of(first)
        ends = self.ends[first:last]
        return Block(
            self.data[start : self.ends[last - 1]],
            _short(shifted(ends, -start) if start else ends),
            _part_of(self.times, first, last),
            _part_of_keys(self.keys, first, last),
        )


def decode_ends(encoded: bytes) -> Ends | None:
    """From the form of protocol.json_mode.Messages: empty for exactly one message."""
    if not encoded:
        return None
    ends = array("I")
    ends.frombytes(encoded)
    return ends


def shifted(ends: Ends, by: int) -> Ends:
    """The same ends, counted from `by` bytes earlier."""
    if len(ends) < _MOVED_AT_ONCE:
        return array("I", [end + by for end in ends])
    moved = np.frombuffer(ends, np.uint32).astype(np.int64) + by
    return array("I", moved.astype(np.uint32).tobytes())


def bounded_blocks(
    pieces: Iterable[bytes], ends: Ends, time: Times, keys: Keys = None
) -> Iterator[Block]:
    """Blocks of content that comes in pieces of whole messages; `ends` counts through all of them.

    A piece of many messages that is too long is cut, as old logs have them.
    """
    start = passed = 0
    for piece in _bounded(pieces, ends):
        last = bisect_right(ends, start + len(piece))
        own = ends[passed:last]
        own_keys = _part_of_keys(keys, passed, last)
        yield Block(piece, _short(shifted(own, -start) if start else own), time, own_keys)
        start, passed = start + len(piece), last


def _bounded(pieces: Iterable[bytes], ends: Ends) -> Iterator[bytes]:
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


def join(blocks: Sequence[Block]) -> Block:
    """One block of the messages of all, in order."""
    datas = [block.data for block in blocks]
    ends = [block.ends for block in blocks]
    are_single = ends.count(None) == len(ends)
    return Block(
        b"".join(datas),
        array("I", accumulate(map(len, datas))) if are_single else _joined_ends(datas, ends),
        _joined_times(blocks, are_single),
        _joined_keys(blocks),
    )


def _joined_ends(datas: Sequence[bytes], all_ends: Sequence[Ends | None]) -> Ends:
    joined = array("I")
    base = 0
    for data, ends in zip(datas, all_ends, strict=True):
        if ends is None:
            joined.append(base + len(data))
        else:
            joined.extend(shifted(ends, base))
        base += len(data)
    return joined


def _joined_times(blocks: Sequence[Block], are_single: bool) -> Times:
    times = [block.times for block in blocks]
    first = times[0]
    if isinstance(first, int) and times.count(first) == len(times):
        return first
    if are_single:
        return array("Q", cast("list[int]", times))  # one message each, so one number each
    joined = array("Q")
    for block in blocks:
        if isinstance(block.times, int):
            joined.extend([block.times] * block.count)
        else:
            joined.extend(block.times)
    return joined


def _joined_keys(blocks: Sequence[Block]) -> Keys:
    keys = [block.keys for block in blocks]
    first = keys[0]
    if not isinstance(first, tuple) and keys.count(first) == len(keys):
        return first
    joined: list[bytes | None] = []
    for block in blocks:
        joined += block.keys if isinstance(block.keys, tuple) else [block.keys] * block.count
    return tuple(joined)


def normal_keys(keys: Keys) -> Keys:
    """The one form of the same keys: one for all messages where it is the same for all."""
    if not isinstance(keys, tuple):
        return keys
    if not keys:
        return None
    return keys[0] if keys.count(keys[0]) == len(keys) else keys


def _short(ends: Ends) -> Ends | None:
    return None if len(ends) == 1 else ends


def _part_of(times: Times, first: int, last: int) -> Times:
    if isinstance(times, int):
        return times
    part = times[first:last]
    return part[0] if part.count(part[0]) == len(part) else part


def _part_of_keys(keys: Keys, first: int, last: int) -> Keys:
    if not isinstance(keys, tuple):
        return keys
    part = keys[first:last]
    return part[0] if part.count(part[0]) == len(part) else part
