from __future__ import annotations

import pytest

from millstream.schemas.weighed_cache import WeighedCache


def _length(key: bytes, _: object) -> int:
    return len(key)


def test_what_was_used_last_is_kept_within_the_bound() -> None:
    made: list[bytes] = []

    def make(key: bytes) -> str:
        made.append(key)
        return key.decode()

    cache: WeighedCache[bytes, str] = WeighedCache(10)
    for key in (b"aaaa", b"bbbb", b"aaaa", b"cccc", b"aaaa"):
        assert cache.get(key, make, _length) == key.decode()
    assert made == [b"aaaa", b"bbbb", b"cccc"]
    assert len(cache) == 2
    cache.get(b"bbbb", make, _length)
    assert made[3:] == [b"bbbb"]


def test_one_that_is_too_heavy_is_kept_alone() -> None:
    cache: WeighedCache[bytes, int] = WeighedCache(10)
    for key in (b"a", b"b" * 100):
        cache.get(key, len, _length)
    assert len(cache) == 1
    cache.get(b"c", len, _length)
    assert len(cache) == 1


def test_a_failure_is_not_kept() -> None:
    cache: WeighedCache[bytes, int] = WeighedCache(10)
    with pytest.raises(ZeroDivisionError):
        cache.get(b"a", lambda key: 1 // 0, _length)
    assert cache.get(b"a", len, _length) == 1
