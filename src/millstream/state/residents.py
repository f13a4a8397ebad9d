"""Streams in memory, and the store where those rest that are not.

A stream leaves memory only when the store has it as it is. Code that still holds the object then
keeps it findable, so there are never two objects of one stream; and so do the commands that are
under way (horizon.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from millstream.errors import MissingContent
from millstream.formats.layout import StreamId
from millstream.limits import STORED_INTEGER_MAX
from millstream.state.horizon import Horizon
from millstream.state.images import decode_image, forget_tail, restore_stream
from millstream.state.stream import Stream


class StreamStore(Protocol):
    """Answers at once: it is asked in the middle of a request."""

    def find(self, path: bytes) -> bytes | None:
        """The image of the stream of this name."""
        ...

    def find_by_id(self, stream_id: StreamId) -> bytes | None: ...

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        """Names of live streams in byte order, one at a time."""
        ...


class EmptyStore:
    def find(self, path: bytes) -> bytes | None:
        return None

    def find_by_id(self, stream_id: StreamId) -> bytes | None:
        return None

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        return iter(())


EMPTY_STORE = EmptyStore()


class Residents:
    def __init__(
        self,
        store: StreamStore = EMPTY_STORE,
        horizon: Horizon | None = None,
        *,
        is_tail_lost: bool = False,
    ) -> None:
        self.by_path: dict[bytes, Stream] = {}
        self.by_id: dict[StreamId, Stream] = {}
        self.removed: dict[StreamId, None] = {}  # the store still has these, but they are no more
        self.on_loaded: Callable[[Stream], None] = _ignore  # told of every stream that comes back
        self._store = store
        self._horizon = horizon or Horizon()
        self._is_tail_lost = is_tail_lost
        self._leaving: WeakValueDictionary[StreamId, Stream] = WeakValueDictionary()
        self._leaving_by_path: WeakValueDictionary[bytes, Stream] = WeakValueDictionary()
        self._absent: Counter[bytes | StreamId] = Counter()  # no store is asked for these

    def find(self, path: bytes) -> Stream | None:
        stream = self.find_in_memory(path)
        if stream is not None:
            return stream
        image = None if path in self._absent else self._store.find(path)
        return None if image is None else self._restore(image)

    def find_in_memory(self, path: bytes) -> Stream | None:
        """The stream when no store has to be asked for it. One that was about to leave stays."""
        stream = self.by_path.get(path)
        if stream is None:
            leaving = self._leaving_by_path.get(path)
            if leaving is not None:
                return self._come_back(leaving)
        return stream

    def find_by_id(self, stream_id: StreamId) -> Stream | None:
        stream = self.by_id.get(stream_id)
        if stream is not None:
            return stream
        leaving = self._leaving.get(stream_id)
        if leaving is not None:
            return self._come_back(leaving)
        image = self._image_of(stream_id)
        return None if image is None else self._restore(image)

    def _image_of(self, stream_id: StreamId) -> bytes | None:
        if stream_id in self.removed or stream_id in self._absent:
            return None
        return self._store.find_by_id(stream_id) if 0 < stream_id <= STORED_INTEGER_MAX else None

    def look_up(self, path: bytes) -> Stream | None:
        """To be looked at only: one that is at rest stays there."""
        stream = self.by_path.get(path) or self._leaving_by_path.get(path)
        if stream is not None:
            return stream
        image = self._store.find(path)
        if image is None:
            return None
        stream, _ = restore_stream(image)
        return None if stream.stream_id in self.removed else stream

    def knows(self, name: bytes | StreamId) -> bool:
        """Whether to find the stream of this name or id, or that there is none, reads no file."""
        if isinstance(name, bytes):
            return name in self.by_path or name in self._leaving_by_path or name in self._absent
        return (
            name in self.by_id
            or name in self._leaving
            or name in self.removed
            or name in self._absent
            or not 0 < name <= STORED_INTEGER_MAX
        )

    def note_absent(self, name: bytes | StreamId) -> None:
        """The store has no stream of this name or id. One that is created from now on is in memory
        until the command that this is noted for, the next to be submitted, is applied."""
        self._absent[name] += 1
        self._horizon.later(partial(self._forget_absent, name), behind=1)

    def _forget_absent(self, name: bytes | StreamId) -> None:
        if self._absent[name] == 1:
            del self._absent[name]
        else:
            self._absent[name] -= 1

    def blob_of(self, stream_id: StreamId) -> str | None:
        """The blob of the stream's snapshot. A stream that rests stays where it is."""
        stream = self.by_id.get(stream_id) or self._leaving.get(stream_id)
        if stream is not None:
            return None if stream.snapshot is None else stream.snapshot.blob
        image = self._image_of(stream_id)
        snapshot = None if image is None else decode_image(image).snapshot
        return None if snapshot is None else snapshot[2]

    def _restore(self, image: bytes) -> Stream | None:
        stream, missing_bytes = restore_stream(image)
        if stream.stream_id in self.removed or stream.stream_id in self.by_id:
            return None  # its name was given up, to another stream perhaps
        if missing_bytes:
            if not self._is_tail_lost:
                raise MissingContent(stream.path, missing_bytes)
            forget_tail(stream)
        return self._come_back(self._leaving.get(stream.stream_id, stream))

    def _come_back(self, stream: Stream) -> Stream:
        self._leaving.pop(stream.stream_id, None)
        self._leaving_by_path.pop(stream.path, None)
        self.add(stream)
        self.on_loaded(stream)
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
        self._absent[stream.path] += 1  # a command on its way may still ask for it
        self._horizon.later(partial(self._forget_absent, stream.path))

    def settle(self, removed: list[StreamId]) -> None:
        """The store has forgotten these."""
        for stream_id in removed:
            self.removed.pop(stream_id, None)

    def evict(self, stream: Stream) -> None:
        """The store has it as it is, and it holds nothing that is nowhere else."""
        del self.by_id[stream.stream_id]
        if self.by_path.get(stream.path) is stream:
            del self.by_path[stream.path]
        self._leaving[stream.stream_id] = stream
        self._leaving_by_path[stream.path] = stream
        self._horizon.later(partial(_ignore, stream))  # a command on its way may count on it


def _ignore(stream: Stream) -> None:
    pass
