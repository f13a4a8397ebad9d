"""The content of one stream in memory: wire bytes in blocks, and where each message ends.

Blocks are immutable, so a fork shares them and a reader may hold them while the stream grows.
Small appends are merged to blocks of about 64 KiB; large ones stay the bytes object they came as.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from millstream.limits import SMALL_BLOCK_BYTES, SMALL_BLOCK_OVERHEAD

Ends = array  # array("I"): end of each message relative to its block


def decode_ends(encoded: bytes) -> Ends[int] | None:
    """From the form of protocol.json_mode.Messages: empty for exactly one message."""
    if not encoded:
        return None
    ends = array("I")
    ends.frombytes(encoded)
    return ends


def _message_count(ends: Ends[int] | None) -> int:
    return 1 if ends is None else len(ends)


class Log:
    """Positions are absolute, in bytes and in messages (ordinals), counted from the stream's start.

    Block i holds `datas[i]` and begins at byte `starts[i]` and message `ordinals[i]`; `ends[i]` is
    None when it is exactly one message. `starts` and `ordinals` may lag behind, see `_locate`.
    """

    __slots__ = (
        "datas",
        "ends",
        "first_byte",
        "first_ordinal",
        "ordinals",
        "small_bytes",
        "small_from",
        "starts",
        "tail_byte",
        "tail_ordinal",
    )

    def __init__(self) -> None:
        self.datas: list[bytes] = []
        self.ends: list[Ends[int] | None] = []
        self.starts: list[int] = []
        self.ordinals: list[int] = []
        self.first_byte = 0  # what comes before was trimmed
        self.first_ordinal = 0
        self.tail_byte = 0
        self.tail_ordinal = 0
        self.small_from = 0  # blocks from here on are small and wait to be merged
        self.small_bytes = 0

    def append(self, data: bytes, ends: Ends[int] | None, count: int) -> None:
        """`ends` is None for exactly one message, else one entry per message."""
        size = len(data)
        self.datas.append(data)
        self.ends.append(ends)
        self.tail_byte += size
        self.tail_ordinal += count
        # What a block costs beside its bytes counts too, so that tiny ones are merged as well.
        self.small_bytes += size + SMALL_BLOCK_OVERHEAD
        if self.small_bytes >= SMALL_BLOCK_BYTES:
            self._merge_small(size >= SMALL_BLOCK_BYTES)

    def _locate(self) -> None:
        """Writes down where the newest blocks begin; appends leave that to whoever reads."""
        index = len(self.starts)
        byte, ordinal = self.first_byte, self.first_ordinal
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
            self.datas[first:last] = [b"".join(self.datas[first:last])]
            self.ends[first:last] = [merged_ends]
            located = min(last, len(self.starts))
            del self.starts[first + 1 : located]
            del self.ordinals[first + 1 : located]
        self.small_from = len(self.datas)
        self.small_bytes = 0

    def _merged_ends(self, first: int, last: int) -> Ends[int]:
        if all(ends is None for ends in self.ends[first:last]):
            return array("I", accumulate(map(len, self.datas[first:last])))
        merged = array("I")
        base = 0
        for data, ends in zip(self.datas[first:last], self.ends[first:last], strict=True):
            if ends is None:
                merged.append(base + len(data))
            else:
                merged.extend([base + end for end in ends])
            base += len(data)
        return merged

    def byte_at(self, ordinal: int) -> int:
        """Where message `ordinal` begins; `ordinal` must be between the first and the tail."""
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
        if not self.first_byte <= byte < self.tail_byte:
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

    def prefix(self, ordinal: int, byte: int) -> Log:
        """A new log with everything before `byte`; a cut inside a message makes it a shorter one.

        `ordinal` is the number of messages the prefix holds, the cut one included.
        """
        fork = Log()
        fork.start_at(self.first_ordinal, self.first_byte)
        if byte == self.first_byte:
            return fork
        if len(self.starts) < len(self.datas):
            self._locate()
        block = bisect_right(self.starts, byte - 1) - 1
        fork.datas = self.datas[:block]
        fork.ends = self.ends[:block]
        fork.starts = self.starts[:block]
        fork.ordinals = self.ordinals[:block]
        fork.tail_byte = self.starts[block]
        fork.tail_ordinal = self.ordinals[block]
        fork.small_from = len(fork.datas)
        inside = byte - self.starts[block]
        count = ordinal - self.ordinals[block]
        ends = self.ends[block]
        if ends is not None:
            ends = ends[:count]
            ends[-1] = inside
        fork.append(self.datas[block][:inside], ends, count)
        return fork

    def blocks(self) -> list[tuple[bytes, Sequence[int]]]:
        """Everything the log holds now, block by block, with the end of each message in it.

        Nothing is copied: neither a block nor its ends are changed once they are in a log.
        """
        return [
            (data, (len(data),) if ends is None else ends)
            for data, ends in zip(self.datas, self.ends, strict=True)
        ]

    def start_at(self, ordinal: int, byte: int) -> None:
        """An empty log whose first message will be number `ordinal`, at `byte`."""
        self.first_ordinal = self.tail_ordinal = ordinal
        self.first_byte = self.tail_byte = byte

    def trim(self, ordinal: int, byte: int) -> None:
        """Forgets everything before this boundary. Readers and forks keep what they hold."""
        if len(self.starts) < len(self.datas):
            self._locate()
        keep = bisect_right(self.starts, byte) - 1 if byte < self.tail_byte else len(self.datas)
        del self.datas[:keep], self.ends[:keep], self.starts[:keep], self.ordinals[:keep]
        self.small_from = max(0, self.small_from - keep)
        self.first_ordinal, self.first_byte = ordinal, byte
        if not self.datas:
            self.small_bytes = 0
        elif self.starts[0] < byte:
            self._cut_front(ordinal, byte)

    def _cut_front(self, ordinal: int, byte: int) -> None:
        """The first block begins before the boundary: keep only its rest."""
        gone = byte - self.starts[0]
        ends = self.ends[0]
        assert ends is not None
        rest = array("I", [end - gone for end in ends[ordinal - self.ordinals[0] :]])
        self.datas[0] = self.datas[0][gone:]
        self.ends[0] = rest
        self.starts[0], self.ordinals[0] = byte, ordinal
