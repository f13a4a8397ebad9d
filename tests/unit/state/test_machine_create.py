from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import StreamExists
from millstream.state.outcomes import Done
from tests.unit.state.store import JSON, NOW_MS, TEXT, Store, image_bytes


def test_a_created_stream_is_empty_open_and_has_what_was_asked_for() -> None:
    store = Store()
    assert (
        store.create(b"a", content_type=b"Text/Plain; charset=utf-8", ttl_ms=5000) is Done.CREATED
    )
    stream = store[b"a"]
    assert stream.content_type == b"Text/Plain; charset=utf-8"
    assert (stream.essence, stream.is_json) == (TEXT, False)
    assert (stream.ttl_ms, stream.expires_at_ms) == (5000, None)
    assert (stream.created_ms, stream.touched_ms, stream.last_write_ms) == (NOW_MS,) * 3
    assert (stream.closed, stream.deleted, stream.forks, stream.origin) == (False, False, 0, None)
    assert stream.tail == "0000000000000000_0000000000000000"


def test_a_stream_may_be_created_with_content() -> None:
    store = Store()
    store.create(b"a", b"1,", b"22,", content_type=JSON)
    assert store.messages(b"a") == [b"1,", b"22,"]
    assert store[b"a"].tail == "0000000000000002_0000000000000005"


def test_a_stream_may_be_created_closed_with_its_only_content() -> None:
    store = Store()
    store.create(b"a", b"all", closed=True)
    assert store[b"a"].closed
    assert store.messages(b"a") == [b"all"]


def test_every_stream_has_an_id_of_its_own_even_under_a_name_used_before() -> None:
    store = Store()
    ids = set()
    for _ in range(3):
        store.create(b"a")
        store.create(b"b")
        ids |= {store[b"a"].stream_id, store[b"b"].stream_id}
        store.delete(b"a")
        store.delete(b"b")
    assert len(ids) == 6


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"content_type": b"TEXT/PLAIN"},
        {"content_type": b"text/plain; charset=latin-1"},
    ],
)
def test_creating_again_with_an_equal_configuration_changes_nothing(
    configuration: dict[str, Any],
) -> None:
    store = Store()
    store.create(b"a", b"old")
    before = image_bytes(store.machine)
    store.now_ms += 1
    assert store.create(b"a", b"new", **configuration) is Done.EXISTED
    assert image_bytes(store.machine) == before


@pytest.mark.parametrize("lifetime", [{"ttl_ms": 5000}, {"expires_at_ms": NOW_MS + 5000}])
def test_creating_again_with_the_same_lifetime_finds_the_stream(lifetime: dict[str, Any]) -> None:
    store = Store()
    store.create(b"a", **lifetime)
    assert store.create(b"a", **lifetime) is Done.EXISTED


def test_creating_again_closed_finds_the_closed_stream() -> None:
    store = Store()
    store.create(b"a", closed=True)
    assert store.create(b"a", closed=True) is Done.EXISTED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"content_type": JSON}),
        ({}, {"ttl_ms": 5000}),
        ({}, {"expires_at_ms": NOW_MS + 5000}),
        ({}, {"closed": True}),
        ({}, {"fork_from": b"other"}),
        ({"ttl_ms": 5000}, {}),
        ({"ttl_ms": 5000}, {"ttl_ms": 6000}),
        ({"ttl_ms": 5000}, {"expires_at_ms": NOW_MS + 5000}),
        ({"expires_at_ms": NOW_MS + 5000}, {"expires_at_ms": NOW_MS + 5001}),
        ({"closed": True}, {}),
    ],
)
def test_creating_again_with_another_configuration_is_refused_and_changes_nothing(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    store = Store()
    store.create(b"other")
    store.create(b"a", **first)
    before = image_bytes(store.machine)
    assert isinstance(store.create(b"a", b"new", **second), StreamExists)
    assert image_bytes(store.machine) == before


def test_a_stream_closed_by_an_append_does_not_match_an_open_one_any_more() -> None:
    store = Store()
    store.create(b"a")
    store.append(b"a", closes=True)
    assert isinstance(store.create(b"a"), StreamExists)
    assert store.create(b"a", closed=True) is Done.EXISTED


def test_the_name_of_an_expired_stream_may_be_taken_with_nothing_of_the_old_one_left() -> None:
    store = Store()
    store.create(b"a", b"old", ttl_ms=5000)
    store.produce(b"a", 3, 0, stream_seq=b"9")
    old_id = store[b"a"].stream_id
    store.now_ms += 5000
    assert store.create(b"a", content_type=JSON) is Done.CREATED
    stream = store[b"a"]
    assert stream.stream_id != old_id
    assert (stream.producers, stream.stream_seq, stream.ttl_ms) == (None, None, None)
    assert store.messages(b"a") == []
    assert old_id not in store.machine.by_id
    assert store.machine.outbox.ended == [old_id]


def test_until_its_last_millisecond_a_stream_keeps_its_name() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.now_ms += 4999
    assert isinstance(store.create(b"a"), StreamExists)


def test_the_name_of_an_expired_stream_is_kept_while_forks_read_from_it() -> None:
    store = Store()
    store.create(b"a", b"1", ttl_ms=5000)
    store.fork(b"f", b"a", ttl_ms=60_000, lifetime_given=True)
    store.now_ms += 5000
    assert isinstance(store.create(b"a", ttl_ms=5000), StreamExists)
    assert store.messages(b"f") == [b"1"]


def test_a_ttl_of_zero_is_over_at_once() -> None:
    store = Store()
    assert store.create(b"a", ttl_ms=0) is Done.CREATED
    assert store[b"a"].is_expired(store.now_ms)
    assert store.create(b"a", ttl_ms=0) is Done.CREATED


def test_an_expired_fork_that_is_replaced_lets_go_of_its_deleted_source() -> None:
    store = Store()
    store.create(b"a", b"1")
    store.fork(b"f", b"a", ttl_ms=1000, lifetime_given=True)
    store.delete(b"a")
    store.now_ms += 1000
    assert store.create(b"f") is Done.CREATED
    assert b"a" not in store
    assert store.create(b"a") is Done.CREATED


def test_replacing_an_expired_fork_by_a_new_fork_of_the_same_source_counts_once() -> None:
    store = Store()
    store.create(b"a", b"1")
    store.fork(b"f", b"a", ttl_ms=1000, lifetime_given=True)
    store.now_ms += 1000
    assert store.fork(b"f", b"a") is Done.CREATED
    assert store[b"a"].forks == 1
