"""The body of an answer whose client reads only when told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from millstream.http.streaming import BodyStream


class FakeBody:
    """Takes one piece, then is blocked until `drain`, as a connection to a slow client."""

    def __init__(self, *, is_slow: bool = True) -> None:
        self.pieces: list[list[bytes | memoryview]] = []
        self.is_slow = is_slow
        self.is_blocked = False
        self.ended = self.was_aborted = False
        self.on_drain: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None

    @property
    def stream(self) -> BodyStream:
        """The same under the type that writers take."""
        return cast(BodyStream, self)

    @property
    def content(self) -> bytes:
        return b"".join(bytes(part) for parts in self.pieces for part in parts)

    @property
    def is_whole(self) -> bool:
        return self.ended and not self.was_aborted

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        assert not self.ended
        assert not self.is_blocked, "nobody may write to a client that does not read"
        self.pieces.append(list(parts))
        self.is_blocked = self.is_slow

    def write(self, data: bytes) -> None:
        self.write_parts([data])

    def keep_unsent_below(self, bytes_max: int) -> None:
        pass

    def drain(self) -> None:
        self.is_blocked = False
        if self.on_drain is not None and not self.ended:
            self.on_drain()

    def leave(self) -> None:
        """The client is gone."""
        self.ended = self.was_aborted = True
        if self.on_end is not None:
            self.on_end()

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = self.was_aborted = True
