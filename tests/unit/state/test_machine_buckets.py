from __future__ import annotations

from millstream.errors import BucketExists, BucketNotEmpty, BucketNotFound, StreamExists
from millstream.state.outcomes import Done
from tests.unit.state.store import NOW_MS, Store, image_bytes


def test_a_bucket_is_created_once() -> None:
    store = Store()
    assert store.create_bucket(b"bucket") is Done.CREATED
    before = image_bytes(store.machine)
    store.now_ms += 5
    assert isinstance(store.create_bucket(b"bucket"), BucketExists)
    assert image_bytes(store.machine) == before
    assert store.machine.names.buckets[b"bucket"].created_ms == NOW_MS


def test_a_stream_needs_its_bucket_unless_it_brings_it_along() -> None:
    store = Store()
    assert isinstance(store.create(b"bucket/a", implies_bucket=False), BucketNotFound)
    assert b"bucket" not in store.machine.names.buckets
    assert store.machine.births == 0
    assert store.create(b"bucket/a") is Done.CREATED
    assert store.machine.names.buckets[b"bucket"].streams == 1
    assert store.create(b"bucket/b", implies_bucket=False) is Done.CREATED


def test_a_fork_needs_its_own_bucket_too() -> None:
    store = Store()
    store.create(b"bucket/a", b"1")
    assert isinstance(store.fork(b"other/f", b"bucket/a", implies_bucket=False), BucketNotFound)
    assert store[b"bucket/a"].forks == 0


def test_only_an_empty_bucket_can_be_deleted() -> None:
    store = Store()
    assert isinstance(store.delete_bucket(b"bucket"), BucketNotFound)
    store.create(b"bucket/a")
    assert isinstance(store.delete_bucket(b"bucket"), BucketNotEmpty)
    store.delete(b"bucket/a")
    assert store.delete_bucket(b"bucket") is Done.DELETED
    assert isinstance(store.delete_bucket(b"bucket"), BucketNotFound)
    assert store.create_bucket(b"bucket") is Done.CREATED


def test_a_stream_that_is_only_kept_for_its_forks_does_not_keep_its_bucket() -> None:
    store = Store()
    store.create(b"source/a", b"1")
    store.fork(b"forks/f", b"source/a")
    store.delete(b"source/a")
    assert store.machine.names.buckets[b"source"].streams == 0
    assert store.delete_bucket(b"source") is Done.DELETED
    assert isinstance(store.create(b"source/a", implies_bucket=False), BucketNotFound)
    store.create_bucket(b"source")
    assert isinstance(store.create(b"source/a", implies_bucket=False), StreamExists)
    store.delete(b"forks/f")
    assert store.create(b"source/a", implies_bucket=False) is Done.CREATED
    assert store.machine.names.buckets[b"source"].streams == 1


def test_an_expired_stream_leaves_its_bucket_when_it_is_removed() -> None:
    store = Store()
    store.create(b"bucket/a", ttl_ms=1000)
    store.now_ms += 1000
    assert isinstance(store.delete_bucket(b"bucket"), BucketNotEmpty)
    store.expire(b"bucket/a")
    assert store.delete_bucket(b"bucket") is Done.DELETED


def test_a_name_taken_over_from_an_expired_stream_counts_once() -> None:
    store = Store()
    store.create(b"bucket/a", ttl_ms=1000)
    store.now_ms += 1000
    assert store.create(b"bucket/a") is Done.CREATED
    assert store.machine.names.buckets[b"bucket"].streams == 1
    assert list(store.machine.names.keys_from(b"")) == [b"bucket/a"]
