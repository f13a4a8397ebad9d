"""A response body that is written piece by piece: of a length known before, else chunked, or until
close for HTTP/1.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.http.connection import Connection

LAST_CHUNK = b"0\r\n\r\n"


def encode_chunk(data: bytes) -> bytes:
    """Encode once, write to any number of streams with `write_chunk`."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Sink(Protocol):
    """A body to those who write it: a BodyStream, or something on the way to one."""

    ended: bool  # by either side; writes are ignored then
    on_drain: Callable[[], None] | None  # the client reads again
    on_end: Callable[[], None] | None  # the client left

    @property
    def is_blocked(self) -> bool:
        """It takes no more for now: wait for `on_drain`."""
        ...

    def write(self, data: bytes) -> None: ...
    def write_chunk(self, chunk: bytes, data: bytes) -> None: ...
    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None: ...
    def keep_unsent_below(self, bytes_max: int) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...


class BodyStream:
    """Ends when either side says so. After that, writes are ignored."""

    __slots__ = ("chunked", "connection", "ended", "is_finite", "on_drain", "on_end")

    def __init__(self, connection: Connection, chunked: bool, is_finite: bool = False) -> None:
        self.connection = connection
        self.chunked = chunked
        self.is_finite = is_finite  # it ends by itself: a client that sends no more may wait for it
        self.ended = False
        self.on_drain: Callable[[], None] | None = None  # the client reads again
        self.on_end: Callable[[], None] | None = None  # the client left

    @property
    def is_blocked(self) -> bool:
        """The client does not read as fast as we write: wait for `on_drain`."""
        return self.connection.write_paused

    def write_chunk(self, chunk: bytes, data: bytes) -> None:
        """`chunk` is `encode_chunk(data)`, made once for all subscribers."""
        if not self.ended:
            self.connection.write(chunk if self.chunked else data)

    def write(self, data: bytes) -> None:
        if not self.ended:
            self.connection.write(encode_chunk(data) if self.chunked else data)

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """One after the other, without joining them."""
        if self.ended:
            return
        if self.chunked:
            size = b"%x\r\n" % sum(map(len, parts))
            parts = (size, *parts, b"\r\n")
        self.connection.write_parts(parts)

    def keep_unsent_below(self, bytes_max: int) -> None:
        """`is_blocked` as soon as more than this waits for the client, until this body ends."""
        if not self.ended:
            self.connection.limit_unsent(bytes_max)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.on_drain = self.on_end = None
            if self.chunked:
                self.connection.write(LAST_CHUNK)
            self.connection.stream_ended()

    def abort(self) -> None:
        """Drops the connection: the client must not take this for a whole answer."""
        if not self.ended:
            self.ended = True
            self.on_drain = self.on_end = None
            self.connection.abort()

    def connection_lost(self) -> None:
        if not self.ended:
            self.ended = True
            on_end, self.on_drain, self.on_end = self.on_end, None, None
            if on_end is not None:
                on_end()
