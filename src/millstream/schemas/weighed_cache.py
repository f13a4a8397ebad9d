"""Values that are made from bytes at some cost, kept while they are used, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeighedCache(Generic[K, V]):
    """Keyed by content, so that an entry can never be out of date. Any thread may ask."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._kept: OrderedDict[K, tuple[int, V]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, make: Callable[[K], V], weight: Callable[[K, V], int]) -> V:
        """What `make` returns for the key, now or earlier. What it raises is not kept."""
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known[1]
        made = make(key)  # two threads may both do it; the work is pure
        self._keep(key, made, weight(key, made))
        return made

    def _keep(self, key: K, made: V, weight: int) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = weight, made
            self._weight += weight
            while self._weight > self._weight_max and len(self._kept) > 1:
                self._weight -= self._kept.popitem(last=False)[1][0]
