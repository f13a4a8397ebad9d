"""Bodies that compress like real ones: hex digits of random bytes shrink to about a half.

All of it follows from the seed. The pool is larger than a compressor's window over a row group, so
that the same piece hardly ever meets itself.
"""

import itertools
import random
import struct
from collections.abc import Iterator

POOL_BYTES = 16 * 2**20


class Payloads:
    def __init__(self, seed: int = 1) -> None:
        self._dice = random.Random(seed)
        self._pool = self._dice.randbytes(POOL_BYTES // 2).hex().encode()

    def text(self, size: int) -> bytes:
        start = self._dice.randrange(POOL_BYTES - size)
        return self._pool[start : start + size]

    def records(self, count: int, size: int) -> bytes:
        """The body of an append-batch."""
        text, lead = self.text(count * size), struct.pack(">I", size)
        return b"".join(lead + text[at : at + size] for at in range(0, count * size, size))

    def json_array(self, count: int, size: int) -> bytes:
        """An array of objects of about `size` bytes."""
        inside = max(1, size - len(b'{"id":123456,"text":""}'))
        text = self.text(count * inside)
        numbers = itertools.count(self._dice.randrange(100_000, 900_000))
        objects = (
            b'{"id":%d,"text":"%b"}' % (next(numbers), text[at : at + inside])
            for at in range(0, count * inside, inside)
        )
        return b"[%b]" % b",".join(objects)


def in_turn(streams: int, count: int) -> Iterator[int]:
    """Numbers of streams: all of them, one after the other, again and again."""
    return itertools.islice(itertools.cycle(range(streams)), count)
