"""Buckets and the names in them: the namespace, in order.

A stream's key is `bucket/stream`. Names that the store (see residents.py) does not know yet, or
still knows though they are gone, stand here; the rest is asked from it, so that a million names at
rest cost no memory and a page of a listing costs what the page holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from millstream.formats.layout import StreamId
from millstream.state.residents import EMPTY_STORE, StreamStore


class Retention(NamedTuple):
    """What a bucket's streams keep at least; None: all of it."""

    age_ms: int | None = None
    bytes_max: int | None = None


class Bucket:
    __slots__ = ("created_ms", "name", "retention", "streams")

    def __init__(
        self,
        name: bytes,
        created_ms: int,
        streams: int = 0,
        retention: Retention = Retention(),  # noqa: B008 - a tuple
    ) -> None:
        self.name = name
        self.created_ms = created_ms
        self.streams = streams  # live ones
        self.retention = retention


def split_key(key: bytes) -> tuple[bytes, bytes]:
    bucket, _, stream = key.partition(b"/")
    return bucket, stream


class Namespace:
    def __init__(self, store: StreamStore = EMPTY_STORE) -> None:
        self.buckets: SortedDict[bytes, Bucket] = SortedDict()
        self.hidden: set[bytes] = set()  # keys of streams that no bucket counts, see `hide`
        self.changed_buckets: set[bytes] = set()  # since the last checkpoint
        self._store = store
        self._fresh: SortedList[bytes] = SortedList()
        self._news: dict[bytes, int] = {}  # key -> id of a new stream, or minus that of a gone one

    def __len__(self) -> int:
        return sum(bucket.streams for bucket in self.buckets.values())

    def add_bucket(self, name: bytes, now_ms: int) -> Bucket:
        bucket = Bucket(name, now_ms)
        self.put_bucket(bucket)
        return bucket

    def put_bucket(self, bucket: Bucket) -> None:
        self.buckets[bucket.name] = bucket
        self.changed_buckets.add(bucket.name)

    def remove_bucket(self, name: bytes) -> None:
        del self.buckets[name]
        self.changed_buckets.add(name)

    def hide(self, key: bytes) -> None:
        """A stream of this name is the server's own: none of a bucket, and in no listing unless it
        is asked for. Said before the stream is added."""
        self.hidden.add(key)

    def add(self, key: bytes, stream_id: StreamId, now_ms: int) -> None:
        """A stream is born; its bucket comes into being with it if it has to."""
        name, _ = split_key(key)
        if key not in self.hidden:
            bucket = self.buckets.get(name) or self.add_bucket(name, now_ms)
            bucket.streams += 1
            self.changed_buckets.add(name)
        if self._news.get(key, 0) <= 0:
            self._fresh.add(key)
        self._news[key] = stream_id

    def remove(self, key: bytes, stream_id: StreamId) -> None:
        name, _ = split_key(key)
        if key not in self.hidden:
            self.buckets[name].streams -= 1
            self.changed_buckets.add(name)
        if self._news.get(key, 0) > 0:
            self._fresh.remove(key)
        self._news[key] = -stream_id

    def news(self) -> dict[bytes, int]:
        """What the store will know once it has the checkpoint that is taken now."""
        return self._news.copy()

    def settle(self, stored: dict[bytes, int]) -> None:
        """The store knows these now."""
        unsaid = self._news
        for key, news in stored.items():
            if unsaid.get(key) == news:
                del unsaid[key]
        # All at once: to take thousands of them out one by one would hold everybody up.
        self._fresh = SortedList([key for key in self._fresh if unsaid.get(key, 0) > 0])

    def keys_from(
        self, first: bytes, *, inclusive: bool = True, with_hidden: bool = False
    ) -> Iterator[bytes]:
        """Keys in byte order, from `first` on."""
        fresh: Iterator[bytes] = self._fresh.irange(first, inclusive=(inclusive, True))
        stored = self._store.names(first, inclusive=inclusive)
        keys = _merged(fresh, (key for key in stored if key not in self._news))
        if with_hidden or not self.hidden:
            return keys
        return (key for key in keys if key not in self.hidden)


def _merged(left: Iterator[bytes], right: Iterator[bytes]) -> Iterator[bytes]:
    """Both in order and no key in both."""
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        if one < other:
            yield one
            one = next(left, None)
        else:
            yield other
            other = next(right, None)
    if one is not None:
        yield one
        yield from left
    if other is not None:
        yield other
        yield from right
