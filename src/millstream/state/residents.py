"""Streams in memory, and the shelf where those rest that are not.

A stream leaves memory only when the shelf has it as it is. Whoever still holds the object then
keeps it findable, so there are never two objects of one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakValueDictionary

from millstream.errors import MissingContent
from millstream.limits import STORED_INTEGER_MAX
from millstream.state.images import decode_image, forget_tail, restore_stream
from millstream.state.stream import Stream


class Shelf(Protocol):
    """Answers at once: it is asked in the middle of a request."""

    def find(self, path: bytes) -> bytes | None:
        """The image of the stream of this name."""
        ...

    def find_by_id(self, stream_id: int) -> bytes | None: ...

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        """Names of live streams in byte order, one at a time."""
        ...


class EmptyShelf:
    def find(self, path: bytes) -> bytes | None:
        return None

    def find_by_id(self, stream_id: int) -> bytes | None:
        return None

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        return iter(())


EMPTY_SHELF = EmptyShelf()


class Residents:
    def __init__(self, shelf: Shelf = EMPTY_SHELF, *, is_tail_lost: bool = False) -> None:
        self.by_path: dict[bytes, Stream] = {}
        self.by_id: dict[int, Stream] = {}
        self.removed: dict[int, None] = {}  # the shelf still has these, but they are no more
        self.welcome: Callable[[Stream], None] = _ignore  # told of every stream that comes back
        self._shelf = shelf
        self._is_tail_lost = is_tail_lost
        self._leaving: WeakValueDictionary[int, Stream] = WeakValueDictionary()

    def find(self, path: bytes) -> Stream | None:
        stream = self.by_path.get(path)
        if stream is not None:
            return stream
        image = self._shelf.find(path)
        return None if image is None else self._restore(image)

    def find_by_id(self, stream_id: int) -> Stream | None:
        stream = self.by_id.get(stream_id)
        if stream is not None:
            return stream
        if stream_id in self.removed or not 0 < stream_id <= STORED_INTEGER_MAX:
            return None
        image = self._shelf.find_by_id(stream_id)
        return None if image is None else self._restore(image)

    def look_up(self, path: bytes) -> Stream | None:
        """To be looked at only: one that is at rest stays there."""
        stream = self.by_path.get(path)
        if stream is not None:
            return stream
        image = self._shelf.find(path)
        if image is None:
            return None
        stream, _ = restore_stream(image)
        return None if stream.stream_id in self.removed else stream

    def blob_of(self, stream_id: int) -> str | None:
        """The blob of the stream's snapshot. A stream that rests stays where it is."""
        stream = self.by_id.get(stream_id)
        if stream is not None:
            return None if stream.snapshot is None else stream.snapshot.blob
        image = None if stream_id in self.removed else self._shelf.find_by_id(stream_id)
        snapshot = None if image is None else decode_image(image).snapshot
        return None if snapshot is None else snapshot[2]

    def _restore(self, image: bytes) -> Stream | None:
        stream, missing_bytes = restore_stream(image)
        if stream.stream_id in self.removed or stream.stream_id in self.by_id:
            return None  # its name was given up, to somebody else perhaps
        if missing_bytes:
            if not self._is_tail_lost:
                raise MissingContent(stream.path, missing_bytes)
            forget_tail(stream)
        stream = self._leaving.pop(stream.stream_id, stream)
        self.add(stream)
        self.welcome(stream)
        return stream

    def add(self, stream: Stream) -> None:
        self.by_path[stream.path] = stream
        self.by_id[stream.stream_id] = stream

    def remove(self, stream: Stream) -> None:
        """It is no more."""
        del self.by_id[stream.stream_id]
        if self.by_path.get(stream.path) is stream:
            del self.by_path[stream.path]
        self.removed[stream.stream_id] = None

    def settle(self, removed: list[int]) -> None:
        """The shelf has forgotten these."""
        for stream_id in removed:
            self.removed.pop(stream_id, None)

    def evict(self, stream: Stream) -> None:
        """The shelf has it as it is, and it holds nothing that is nowhere else."""
        del self.by_id[stream.stream_id]
        if self.by_path.get(stream.path) is stream:
            del self.by_path[stream.path]
        self._leaving[stream.stream_id] = stream


def _ignore(stream: Stream) -> None:
    pass
