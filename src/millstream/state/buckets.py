"""Buckets and the names in them: the namespace, in order.

A stream's key is `bucket/stream`. All keys of live streams stand in one sorted list, so that a
page of a listing costs what the page holds, not what the bucket holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList


class Bucket:
    __slots__ = ("created_ms", "name", "streams")

    def __init__(self, name: bytes, created_ms: int, streams: int = 0) -> None:
        self.name = name
        self.created_ms = created_ms
        self.streams = streams  # live ones


def split_key(key: bytes) -> tuple[bytes, bytes]:
    bucket, _, stream = key.partition(b"/")
    return bucket, stream


class Namespace:
    def __init__(self) -> None:
        self.buckets: dict[bytes, Bucket] = {}
        self._keys: SortedList[bytes] = SortedList()

    def __len__(self) -> int:
        return len(self._keys)

    def add_bucket(self, name: bytes, now_ms: int) -> Bucket:
        bucket = self.buckets[name] = Bucket(name, now_ms)
        return bucket

    def add(self, key: bytes, now_ms: int) -> None:
        """A stream is born; its bucket comes into being with it if it has to."""
        name, _ = split_key(key)
        bucket = self.buckets.get(name) or self.add_bucket(name, now_ms)
        bucket.streams += 1
        self._keys.add(key)

    def remove(self, key: bytes) -> None:
        bucket = self.buckets[split_key(key)[0]]
        bucket.streams -= 1
        self._keys.remove(key)

    def keys_from(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        """Keys in byte order, from `first` on."""
        keys: Iterator[bytes] = self._keys.irange(first, inclusive=(inclusive, True))
        return keys

    def keys_at(self, index: int, count: int) -> Iterator[bytes]:
        """Keys by their place in the whole order."""
        return islice(self._keys.islice(index), count)
