from __future__ import annotations

import pytest

from millstream.formats.layout import StreamId
from millstream.state.commands import ExpireStream, TouchStream
from millstream.state.outcomes import Done
from tests.unit.state.store import NOW_MS, Store, image_bytes


def sliding_store() -> Store:
    store = Store()
    store.create(b"a", b"1", ttl_ms=5000)
    return store


def test_a_sliding_lifetime_ends_one_window_after_creation() -> None:
    store = sliding_store()
    assert not store[b"a"].is_expired(NOW_MS + 4999)
    assert store[b"a"].is_expired(NOW_MS + 5000)


def test_a_touch_renews_a_sliding_lifetime() -> None:
    store = sliding_store()
    store.now_ms += 3000
    assert store.touch(b"a") is Done.TOUCHED
    assert not store[b"a"].is_expired(NOW_MS + 7999)
    assert store[b"a"].is_expired(NOW_MS + 8000)


def test_an_append_renews_a_sliding_lifetime() -> None:
    store = sliding_store()
    store.now_ms += 3000
    store.append(b"a", b"2")
    assert not store[b"a"].is_expired(NOW_MS + 7999)
    assert store[b"a"].is_expired(NOW_MS + 8000)


def test_a_refused_append_renews_nothing() -> None:
    store = sliding_store()
    store.append(b"a", closes=True)
    store.now_ms += 3000
    store.append(b"a", b"2")
    assert store[b"a"].is_expired(NOW_MS + 5000)


def test_an_absolute_lifetime_is_never_renewed() -> None:
    store = Store()
    store.create(b"a", expires_at_ms=NOW_MS + 5000)
    store.now_ms += 3000
    store.touch(b"a")
    store.append(b"a", b"2")
    assert not store[b"a"].is_expired(NOW_MS + 4999)
    assert store[b"a"].is_expired(NOW_MS + 5000)


@pytest.mark.parametrize("earlier_ms", [0, 1, 1000])
def test_a_touch_that_is_not_newer_changes_nothing(earlier_ms: int) -> None:
    store = sliding_store()
    store.now_ms += 3000
    store.append(b"a", b"2")
    store.now_ms -= earlier_ms
    assert store.touch(b"a") is Done.NOTHING
    assert store[b"a"].is_expired(NOW_MS + 8000)


def test_an_append_from_before_the_last_touch_does_not_take_it_back() -> None:
    store = sliding_store()
    store.now_ms += 3000
    store.touch(b"a")
    store.now_ms -= 1000
    store.append(b"a", b"2")
    assert not store[b"a"].is_expired(NOW_MS + 7999)


def test_expiry_before_the_deadline_does_nothing() -> None:
    store = sliding_store()
    before = image_bytes(store.machine)
    store.now_ms += 4999
    assert store.expire(b"a") is Done.NOTHING
    assert image_bytes(store.machine) == before


def test_expiry_at_the_deadline_removes_the_stream() -> None:
    store = sliding_store()
    stream_id = store[b"a"].stream_id
    store.now_ms += 5000
    assert store.expire(b"a") is Done.DELETED
    assert b"a" not in store
    assert store.machine.outbox.ended == [stream_id]


def test_expiry_of_a_stream_renewed_meanwhile_does_nothing() -> None:
    store = sliding_store()
    store.now_ms += 4999
    store.touch(b"a")
    store.now_ms += 1
    assert store.expire(b"a") is Done.NOTHING
    assert b"a" in store


def test_a_stream_without_a_lifetime_never_expires() -> None:
    store = Store()
    store.create(b"a")
    store.now_ms += 10**15
    assert store.expire(b"a") is Done.NOTHING
    assert not store[b"a"].is_expired(store.now_ms)


def test_expiry_of_a_forked_stream_keeps_it_for_its_forks() -> None:
    store = sliding_store()
    store.fork(b"f", b"a", ttl_ms=60_000, lifetime_given=True)
    store.now_ms += 5000
    assert store.expire(b"a") is Done.DELETED
    assert store[b"a"].deleted
    assert store.messages(b"f") == [b"1"]
    assert store.expire(b"a") is Done.NOTHING
    store.delete(b"f")
    assert b"a" not in store


def test_touch_and_expiry_of_an_unknown_stream_do_nothing() -> None:
    store = Store()
    assert store.machine.apply(TouchStream(NOW_MS, StreamId(7))) is Done.NOTHING
    assert store.machine.apply(ExpireStream(NOW_MS, StreamId(7))) is Done.NOTHING
