"""The namespace against a plain set of keys."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.layout import StreamId
from millstream.state.buckets import Namespace, split_key
from tests.unit.effort import brief
from tests.unit.state.store import NOW_MS

keys = st.builds(
    lambda bucket, stream: bucket + b"/" + stream,
    st.sampled_from([b"aaaa", b"aaaa-", b"bbbb"]),
    st.binary(min_size=1, max_size=4),
)


def filled(wanted: set[bytes]) -> Namespace:
    names = Namespace()
    for number, key in enumerate(sorted(wanted)):
        names.add(key, StreamId(number + 1), NOW_MS)
    return names


def test_the_first_slash_splits_bucket_from_stream() -> None:
    assert split_key(b"bucket/stream") == (b"bucket", b"stream")
    assert split_key(b"bucket/a/b") == (b"bucket", b"a/b")


@given(st.sets(keys, max_size=30), st.sets(keys, max_size=30))
@brief
def test_keys_come_in_the_order_of_their_bytes(added: set[bytes], removed: set[bytes]) -> None:
    names = filled(added | removed)
    for number, key in enumerate(sorted(added | removed)):
        if key in removed:
            names.remove(key, StreamId(number + 1))
    left = sorted(added - removed)
    assert list(names.keys_from(b"")) == left
    assert len(names) == len(left)
    counts = {name: bucket.streams for name, bucket in names.buckets.items()}
    for name in counts:
        assert counts[name] == sum(split_key(key)[0] == name for key in left)


@given(st.sets(keys, max_size=30), keys)
@brief
def test_a_walk_may_begin_at_or_behind_any_key(wanted: set[bytes], first: bytes) -> None:
    names = filled(wanted)
    assert list(names.keys_from(first)) == sorted(key for key in wanted if key >= first)
    behind = sorted(key for key in wanted if key > first)
    assert list(names.keys_from(first, inclusive=False)) == behind


class Names:
    """A store of nothing but names."""

    def __init__(self, names: set[bytes]) -> None:
        self._names = names

    def find(self, path: bytes) -> bytes | None:
        return None

    def find_by_id(self, stream_id: int) -> bytes | None:
        return None

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        return iter(sorted(n for n in self._names if n > first or (inclusive and n == first)))


@given(st.sets(keys, max_size=20), st.sets(keys, max_size=20), st.sets(keys, max_size=20), keys)
@brief
def test_names_at_rest_and_news_about_them_are_listed_as_one(
    stored: set[bytes], removed: set[bytes], added: set[bytes], first: bytes
) -> None:
    store = Names(stored)
    names = Namespace(store)
    for bucket in (b"aaaa", b"aaaa-", b"bbbb"):
        count = sum(split_key(key)[0] == bucket for key in stored)
        names.add_bucket(bucket, NOW_MS).streams = count
    for key in removed & stored:
        names.remove(key, StreamId(1))
    for key in added - (stored - removed):
        names.add(key, StreamId(2), NOW_MS)
    expected = sorted((stored - removed) | added)
    told = names.news()
    for _ in range(2):  # before and after the store knows
        assert list(names.keys_from(b"")) == expected
        assert list(names.keys_from(first)) == [key for key in expected if key >= first]
        behind = [key for key in expected if key > first]
        assert list(names.keys_from(first, inclusive=False)) == behind
        assert len(names) == len(expected)
        store._names = set(expected)
        names.settle(told)
    assert names.news() == {}


def test_news_that_came_after_a_checkpoint_was_taken_stay_news() -> None:
    store = Names(set())
    names = Namespace(store)
    for key in (b"aaaa/x", b"aaaa/y", b"aaaa/z"):
        names.add(key, StreamId(1), NOW_MS)
    told = names.news()
    names.remove(b"aaaa/x", StreamId(1))
    names.remove(b"aaaa/y", StreamId(1))
    names.add(b"aaaa/y", StreamId(2), NOW_MS)
    store._names = {b"aaaa/x", b"aaaa/y", b"aaaa/z"}
    names.settle(told)
    assert names.news() == {b"aaaa/x": -1, b"aaaa/y": 2}
    assert list(names.keys_from(b"")) == [b"aaaa/y", b"aaaa/z"]


def test_a_bucket_stays_when_its_last_stream_leaves() -> None:
    names = filled({b"aaaa/x"})
    names.remove(b"aaaa/x", StreamId(1))
    assert names.buckets[b"aaaa"].streams == 0


def test_a_stream_joins_the_bucket_that_is_there() -> None:
    names = Namespace()
    names.add_bucket(b"aaaa", NOW_MS)
    names.add(b"aaaa/x", StreamId(1), NOW_MS + 5)
    names.add(b"bbbb/x", StreamId(2), NOW_MS + 5)
    assert (names.buckets[b"aaaa"].created_ms, names.buckets[b"aaaa"].streams) == (NOW_MS, 1)
    assert names.buckets[b"bbbb"].created_ms == NOW_MS + 5
