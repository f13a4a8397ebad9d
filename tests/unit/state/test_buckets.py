"""The namespace against a plain set of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    for key in wanted:
        names.add(key, NOW_MS)
    return names


def test_the_first_slash_splits_bucket_from_stream() -> None:
    assert split_key(b"bucket/stream") == (b"bucket", b"stream")
    assert split_key(b"bucket/a/b") == (b"bucket", b"a/b")


@given(st.sets(keys, max_size=30), st.sets(keys, max_size=30))
@brief
def test_keys_come_in_the_order_of_their_bytes(added: set[bytes], removed: set[bytes]) -> None:
    names = filled(added | removed)
    for key in removed:
        names.remove(key)
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


@given(st.sets(keys, max_size=30), st.integers(0, 40), st.integers(0, 40))
@brief
def test_keys_can_be_taken_by_their_place(wanted: set[bytes], index: int, count: int) -> None:
    found = list(filled(wanted).keys_at(index, count))
    assert found == sorted(wanted)[index : index + count]


def test_a_bucket_stays_when_its_last_stream_leaves() -> None:
    names = filled({b"aaaa/x"})
    names.remove(b"aaaa/x")
    assert names.buckets[b"aaaa"].streams == 0


def test_a_stream_joins_the_bucket_that_is_there() -> None:
    names = Namespace()
    names.add_bucket(b"aaaa", NOW_MS)
    names.add(b"aaaa/x", NOW_MS + 5)
    names.add(b"bbbb/x", NOW_MS + 5)
    assert (names.buckets[b"aaaa"].created_ms, names.buckets[b"aaaa"].streams) == (NOW_MS, 1)
    assert names.buckets[b"bbbb"].created_ms == NOW_MS + 5
