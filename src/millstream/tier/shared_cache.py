"""A cache that threads share: what several want at once is loaded once, what fits is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedCache(Generic[K, V]):
    """Keeps the values used last, up to `bytes_max`; a value larger than that is never kept."""

    def __init__(self, bytes_max: int, size_of: Callable[[V], int]) -> None:
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._lock = Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._loading: dict[K, Future[V]] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def kept(self, keys: Sequence[K]) -> dict[K, V]:
        """Those of the values that are here already; nothing is loaded or waited for."""
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
            return found

    def get(
        self, keys: Sequence[K], load: Callable[[list[K]], Iterable[tuple[K, V]]]
    ) -> dict[K, V]:
        """The values of all keys. `load` is called with those that no caller has or is loading.

        When a load fails, everyone who waits for one of its values gets the error, and the next
        one to ask tries again.
        """
        found, mine, others = self._claim(keys)
        if mine:
            found.update(self._load(mine, load))
        # Only now: a caller that waits has nothing left to do that another could wait for.
        for key, future in others.items():
            found[key] = future.result()
        return found

    def _claim(self, keys: Sequence[K]) -> tuple[dict[K, V], list[K], dict[K, Future[V]]]:
        found: dict[K, V] = {}
        mine: list[K] = []
        others: dict[K, Future[V]] = {}
        with self._lock:
            for key in keys:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    found[key] = self._kept[key]
                elif key in self._loading:
                    others[key] = self._loading[key]
                else:
                    self._loading[key] = Future()
                    mine.append(key)
        return found, mine, others

    def _load(
        self, mine: list[K], load: Callable[[list[K]], Iterable[tuple[K, V]]]
    ) -> Iterator[tuple[K, V]]:
        missing = set(mine)
        try:
            for key, value in load(mine):
                missing.discard(key)
                self._settle(key, value)
                yield key, value
            assert not missing, "a load brings every key it was asked for"
        except BaseException as error:
            with self._lock:
                failed = [self._loading.pop(key) for key in missing]
            for future in failed:
                future.set_exception(error)
            raise

    def put(self, key: K, value: V) -> None:
        """Keeps a value that came another way, unless one is here or on its way already."""
        with self._lock:
            if key not in self._kept and key not in self._loading:
                self._keep(key, value)

    def _settle(self, key: K, value: V) -> None:
        with self._lock:
            future = self._loading.pop(key)
            self._keep(key, value)
        future.set_result(value)

    def _keep(self, key: K, value: V) -> None:
        size = self._size_of(value)
        if size <= self._bytes_max:
            self._kept[key] = value
            self.used_bytes += size
        while self.used_bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self.used_bytes -= self._size_of(dropped)
