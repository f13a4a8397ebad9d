from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from millstream.tier.shared_cache import SharedCache


class Loader:
    def __init__(self) -> None:
        self.loads: list[list[str]] = []

    def __call__(self, keys: list[str]) -> Iterator[tuple[str, bytes]]:
        self.loads.append(keys)
        for key in keys:
            yield key, key.encode() * 10


@pytest.fixture
def cache() -> SharedCache[str, bytes]:
    return SharedCache(30, len)


def test_only_what_is_missing_is_loaded(cache: SharedCache[str, bytes]) -> None:
    load = Loader()
    cache.get(["a", "b"], load)
    assert cache.get(["a", "c"], load) == {"a": b"a" * 10, "c": b"c" * 10}
    assert load.loads == [["a", "b"], ["c"]]


def test_what_was_used_last_is_kept_up_to_the_bound(cache: SharedCache[str, bytes]) -> None:
    load = Loader()
    for key in "abcad":
        cache.get([key], load)
    assert cache.used_bytes == 30
    cache.get(["a", "b"], load)
    assert load.loads == [["a"], ["b"], ["c"], ["d"], ["b"]]


def test_what_is_kept_can_be_had_without_a_load_and_what_came_otherwise_is_kept(
    cache: SharedCache[str, bytes],
) -> None:
    load = Loader()
    cache.get(["a"], load)
    assert cache.kept(["a", "b"]) == {"a": b"a" * 10}
    cache.put("b", b"other")
    cache.put("a", b"other")  # is here already
    assert cache.get(["a", "b"], load) == {"a": b"a" * 10, "b": b"other"}
    assert (load.loads, cache.used_bytes) == ([["a"]], 15)
    cache.put("c", b"c" * 20)
    assert (sorted(cache.kept(["a", "b", "c"])), cache.used_bytes) == (["b", "c"], 25)


def test_what_is_larger_than_the_cache_is_given_but_not_kept() -> None:
    cache: SharedCache[str, bytes] = SharedCache(9, len)
    assert cache.get(["a"], Loader()) == {"a": b"a" * 10}
    assert cache.used_bytes == 0


def test_what_several_threads_want_is_loaded_once(cache: SharedCache[str, bytes]) -> None:
    loading, go_on = Event(), Event()
    load = Loader()

    def slow_load(keys: list[str]) -> Iterator[tuple[str, bytes]]:
        loading.set()
        assert go_on.wait(60)
        return load(keys)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(cache.get, ["a", "b"], slow_load)
        assert loading.wait(60)
        others = [threads.submit(cache.get, ["b", "c"], load) for _ in range(3)]
        go_on.set()
        assert first.result(60) == {"a": b"a" * 10, "b": b"b" * 10}
        assert all(other.result(60) == {"b": b"b" * 10, "c": b"c" * 10} for other in others)
    assert sorted(load.loads) == [["a", "b"], ["c"]]


def test_a_failed_load_is_heard_by_all_and_tried_again(cache: SharedCache[str, bytes]) -> None:
    loading, go_on = Event(), Event()

    def failing_load(keys: list[str]) -> Iterator[tuple[str, bytes]]:
        loading.set()
        assert go_on.wait(60)
        yield "a", b"whole"
        raise OSError("the store is away")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, ["a", "b"], failing_load)
        assert loading.wait(60)
        second = threads.submit(cache.get, ["b"], failing_load)
        go_on.set()
        for waiter in (first, second):
            with pytest.raises(OSError, match="away"):
                waiter.result(60)
    assert cache.get(["a", "b"], Loader()) == {"a": b"whole", "b": b"b" * 10}
