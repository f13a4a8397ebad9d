"""What every stream of a soak holds: a function of the seed, the stream and the place.

So the checker remembers nothing but how many messages each stream was given. Every stream starts
elsewhere in one pool of random text, a quarter of them are JSON, and each has one message size;
content that ends up in the wrong stream or at the wrong place is therefore always seen.
"""

import random

POOL_BYTES = 8 * 2**20
MESSAGE_BYTES = (64, 100, 256, 1000, 4000)


class Content:
    def __init__(self, seed: int) -> None:
        pool = random.Random(seed).randbytes(POOL_BYTES // 2).hex().encode()
        self._pool = pool + pool
        self._salt = random.Random(seed + 1).getrandbits(64) | 1

    def is_json(self, stream: int) -> bool:
        return stream % 4 == 0

    def message_bytes(self, stream: int) -> int:
        """Of each message; in JSON mode without its comma."""
        return MESSAGE_BYTES[self._mix(stream) % len(MESSAGE_BYTES)]

    def messages(self, stream: int, first: int, count: int) -> list[bytes]:
        size = self.message_bytes(stream)
        if not self.is_json(stream):
            text = self._text(stream, first * size, count * size)
            return [text[at : at + size] for at in range(0, count * size, size)]
        inside = size - len(b'{"n":"0123456789","t":""}')
        text = self._text(stream, first * inside, count * inside)
        return [
            b'{"n":"%010d","t":"%b"}' % (first + index, text[index * inside : (index + 1) * inside])
            for index in range(count)
        ]

    def page(self, stream: int, first: int, size: int) -> bytes | None:
        """The body of a read of `size` bytes from message `first` on; None: no body can be so."""
        if size == 0:
            return b""
        message = self.message_bytes(stream)
        if not self.is_json(stream):
            return None if size % message else self._text(stream, first * message, size)
        if (size - 1) % (message + 1):
            return None
        return b"[%b]" % b",".join(self.messages(stream, first, (size - 1) // (message + 1)))

    def count(self, stream: int, size: int) -> int:
        """Messages in a body of so many bytes."""
        message = self.message_bytes(stream)
        return (size - 1) // (message + 1) if self.is_json(stream) else size // message

    def offset(self, stream: int, message: int) -> str:
        stride = self.message_bytes(stream) + self.is_json(stream)
        return f"{message:016d}_{message * stride:016d}"

    def _text(self, stream: int, place: int, size: int) -> bytes:
        assert size <= POOL_BYTES
        start = (self._mix(stream) // 8 + place) % POOL_BYTES
        return self._pool[start : start + size]

    def _mix(self, stream: int) -> int:
        mixed = (stream + 1) * self._salt * 0x9E3779B97F4A7C15 & (2**64 - 1)
        return mixed ^ mixed >> 29
