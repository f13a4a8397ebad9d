from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import (
    ContentTypeMismatch,
    ForkSourceUnavailable,
    InvalidOffset,
    InvalidRequest,
    StreamError,
    StreamExists,
    StreamGone,
    StreamNotFound,
)
from millstream.limits import SMALL_BLOCK_BYTES
from millstream.state.commands import AppendEntries
from millstream.state.outcomes import Done
from millstream.state.stream import ForkOrigin
from tests.support.blocks import datas_of
from tests.unit.state.store import JSON, NOW_MS, Store, image_bytes


def text_source() -> Store:
    store = Store()
    store.create(b"a", b"one")
    store.append(b"a", b"three")
    store.append(b"a", b"five")
    return store


def json_source() -> Store:
    store = Store()
    store.create(b"a", b"1,", b"22,", b"333,", content_type=JSON)
    return store


def test_a_fork_without_an_offset_holds_everything_the_source_had() -> None:
    store = text_source()
    assert store.fork(b"f", b"a") is Done.CREATED
    assert store.messages(b"f") == [b"one", b"three", b"five"]
    assert store[b"f"].origin == ForkOrigin(store[b"a"].stream_id, b"a", 3, 12, 0)
    assert store[b"a"].forks == 1


@pytest.mark.parametrize(
    "offset",
    [
        {"fork_ordinal": 1, "fork_byte": 3},
        {"fork_ordinal": 1},
        {"fork_byte": 3},
    ],
)
def test_an_offset_may_come_in_either_unit(offset: dict[str, Any]) -> None:
    store = text_source()
    store.fork(b"f", b"a", **offset)
    assert store.messages(b"f") == [b"one"]
    assert store[b"f"].tail == "0000000000000001_0000000000000003"


def test_a_fork_at_the_start_is_empty() -> None:
    store = text_source()
    store.fork(b"f", b"a", fork_ordinal=0, fork_byte=0)
    assert store.messages(b"f") == []
    store.append(b"f", b"own")
    assert store.messages(b"f") == [b"own"]


@pytest.mark.parametrize(
    "offset",
    [
        {"fork_ordinal": 1, "fork_byte": 4},
        {"fork_byte": 4},
        {"fork_byte": 13},
        {"fork_ordinal": 4},
        {"fork_ordinal": 2**64 - 1},
        {"fork_ordinal": 0, "fork_byte": 3},
    ],
)
def test_an_offset_that_is_no_boundary_of_the_source_is_refused(offset: dict[str, Any]) -> None:
    store = text_source()
    before = image_bytes(store.machine)
    assert isinstance(store.fork(b"f", b"a", **offset), InvalidOffset)
    assert image_bytes(store.machine) == before


def test_a_sub_offset_counts_messages_on_a_json_stream() -> None:
    store = json_source()
    store.fork(b"f", b"a", content_type=JSON, fork_ordinal=1, fork_byte=2, fork_sub_offset=1)
    assert store.messages(b"f") == [b"1,", b"22,"]
    assert store[b"f"].origin == ForkOrigin(store[b"a"].stream_id, b"a", 1, 2, 1)


@pytest.mark.parametrize(
    ("sub_offset", "expected"),
    [
        (0, [b"one"]),
        (1, [b"one", b"t"]),
        (5, [b"one", b"three"]),
        (7, [b"one", b"three", b"fi"]),
        (9, [b"one", b"three", b"five"]),
    ],
)
def test_a_sub_offset_counts_bytes_elsewhere_and_may_cut_a_message(
    sub_offset: int, expected: list[bytes]
) -> None:
    store = text_source()
    store.fork(b"f", b"a", fork_ordinal=1, fork_byte=3, fork_sub_offset=sub_offset)
    assert store.messages(b"f") == expected
    store.append(b"f", b"own")
    assert store.messages(b"f") == [*expected, b"own"]
    assert store.messages(b"a") == [b"one", b"three", b"five"]


@pytest.mark.parametrize(("make", "beyond"), [(text_source, 10), (json_source, 3)])
def test_a_sub_offset_beyond_the_tail_is_refused(make: Any, beyond: int) -> None:
    store = make()
    fork = {"content_type": store[b"a"].content_type, "fork_ordinal": 1}
    assert type(store.fork(b"f", b"a", fork_sub_offset=beyond, **fork)) is InvalidRequest
    assert store.fork(b"f", b"a", fork_sub_offset=beyond - 1, **fork) is Done.CREATED


def test_a_forks_own_content_comes_behind_what_it_inherits() -> None:
    store = text_source()
    store.fork(b"f", b"a", b"own", fork_ordinal=1)
    assert store.messages(b"f") == [b"one", b"own"]


def test_fork_and_source_do_not_see_each_others_later_appends() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    store.append(b"a", b"source")
    store.append(b"f", b"fork")
    assert store.messages(b"a")[3:] == [b"source"]
    assert store.messages(b"f")[3:] == [b"fork"]


def test_a_fork_inherits_neither_closure_nor_producers_nor_stream_seq() -> None:
    store = text_source()
    store.produce(b"a", 5, 0, stream_seq=b"9", closes=True)
    store.fork(b"f", b"a")
    assert not store[b"f"].closed
    assert (store[b"f"].producers, store[b"f"].stream_seq) == (None, None)
    assert store.produce(b"f", 0, 0, stream_seq=b"1") is Done.APPENDED


@pytest.mark.parametrize("lifetime", [{"ttl_ms": 5000}, {"expires_at_ms": NOW_MS + 5000}])
def test_a_fork_without_a_lifetime_inherits_its_sources(lifetime: dict[str, Any]) -> None:
    store = Store()
    store.create(b"a", **lifetime)
    store.fork(b"f", b"a")
    expected = (lifetime.get("ttl_ms"), lifetime.get("expires_at_ms"))
    assert (store[b"f"].ttl_ms, store[b"f"].expires_at_ms) == expected


def test_a_fork_with_a_lifetime_has_only_its_own() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.fork(b"f", b"a", expires_at_ms=NOW_MS + 9000, lifetime_given=True)
    assert (store[b"f"].ttl_ms, store[b"f"].expires_at_ms) == (None, NOW_MS + 9000)


def test_a_forks_sliding_lifetime_begins_with_the_fork() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.now_ms += 4000
    store.fork(b"f", b"a")
    assert not store[b"f"].is_expired(NOW_MS + 8999)
    assert store[b"f"].is_expired(NOW_MS + 9000)


# Refused sources


def test_a_fork_of_nothing_finds_nothing() -> None:
    assert isinstance(Store().fork(b"f", b"a"), StreamNotFound)


def test_a_fork_of_itself_finds_nothing() -> None:
    assert isinstance(Store().fork(b"f", b"f"), StreamNotFound)


def test_a_fork_of_an_expired_stream_finds_nothing() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.now_ms += 5000
    assert isinstance(store.fork(b"f", b"a"), StreamNotFound)


def test_a_fork_of_a_deleted_stream_is_refused_though_it_is_kept() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    store.delete(b"a")
    assert isinstance(store.fork(b"g", b"a"), ForkSourceUnavailable)


def test_a_fork_keeps_its_sources_content_type() -> None:
    store = text_source()
    assert isinstance(store.fork(b"f", b"a", content_type=JSON), ContentTypeMismatch)
    assert store.fork(b"f", b"a", content_type=b"TEXT/plain;x=y") is Done.CREATED


# Forking again


def forked_store() -> Store:
    store = text_source()
    store.create(b"other")
    store.fork(b"f", b"a", fork_ordinal=1, fork_byte=3, fork_sub_offset=2)
    return store


@pytest.mark.parametrize(
    "fields",
    [
        {"fork_ordinal": 1, "fork_byte": 3, "fork_sub_offset": 2},
        {"fork_ordinal": 1, "fork_sub_offset": 2},
        {"fork_byte": 3, "fork_sub_offset": 2},
        {"fork_sub_offset": 2},
    ],
)
def test_the_same_fork_again_is_found(fields: dict[str, Any]) -> None:
    store = forked_store()
    assert store.fork(b"f", b"a", **fields) is Done.EXISTED
    assert store[b"a"].forks == 1


def test_the_same_fork_again_is_found_after_its_source_grew() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    store.append(b"a", b"more")
    assert store.fork(b"f", b"a") is Done.EXISTED


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        (b"a", {"fork_ordinal": 1, "fork_byte": 3}),
        (b"a", {"fork_ordinal": 2, "fork_byte": 8, "fork_sub_offset": 2}),
        (b"a", {"fork_byte": 0, "fork_sub_offset": 2}),
        (b"other", {"fork_sub_offset": 2}),
        (b"a", {"fork_sub_offset": 2, "ttl_ms": 5000, "lifetime_given": True}),
        (b"a", {"fork_sub_offset": 2, "closed": True}),
    ],
)
def test_another_fork_under_a_forks_name_is_refused(source: bytes, fields: dict[str, Any]) -> None:
    store = forked_store()
    before = image_bytes(store.machine)
    assert isinstance(store.fork(b"f", source, **fields), StreamExists)
    assert image_bytes(store.machine) == before


def test_a_plain_stream_under_a_forks_name_is_refused() -> None:
    assert isinstance(forked_store().create(b"f"), StreamExists)


# The end of sources and forks


def test_deleting_a_stream_without_forks_frees_its_name() -> None:
    store = text_source()
    stream = store[b"a"]
    assert store.delete(b"a") is Done.DELETED
    assert b"a" not in store
    assert store.machine.by_id == {}
    assert store.machine.outbox.ended == [stream.stream_id]
    assert stream.deleted  # readers that wait still hold it


def test_deleting_what_is_unknown_expired_or_gone_is_refused() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.create(b"b")
    store.fork(b"f", b"b")
    store.delete(b"b")
    assert isinstance(store.delete(b"b"), StreamGone)
    store.now_ms += 5000
    assert isinstance(store.delete(b"a"), StreamNotFound)
    stream_id = store[b"f"].stream_id
    store.delete(b"f")
    assert stream_id not in store.machine.by_id


def test_a_deleted_source_is_gone_while_its_forks_go_on() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    source_id = store[b"a"].stream_id
    store.delete(b"a")
    assert store.machine.outbox.ended == [source_id]
    assert isinstance(store.append(b"a", b"x"), StreamGone)
    assert isinstance(store.create(b"a"), StreamExists)
    assert store.append(b"f", b"x") is Done.APPENDED
    assert store.messages(b"f") == [b"one", b"three", b"five", b"x"]


def test_a_deleted_source_keeps_its_content_until_its_last_fork_is_gone() -> None:
    store = text_source()
    store.fork(b"f", b"a", fork_ordinal=1)
    store.append(b"a", bytes(2 * SMALL_BLOCK_BYTES))
    store.delete(b"a")
    assert store.messages(b"f") == [b"one"]
    assert store.machine.changes.hot_bytes == [12 + 2 * SMALL_BLOCK_BYTES]
    store.delete(b"f")
    assert store.machine.changes.hot_bytes == [0]
    assert len(image_bytes(store.machine)) < SMALL_BLOCK_BYTES


def test_a_fork_holds_nothing_of_what_it_inherited() -> None:
    store = text_source()
    store.fork(b"f", b"a", b"own")
    assert datas_of(store[b"f"].log) == [b"own"]
    assert store.machine.changes.hot_bytes == [12 + 3]
    assert store.messages(b"f") == [b"one", b"three", b"five", b"own"]


def test_the_last_fork_takes_its_deleted_source_with_it() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    store.fork(b"g", b"a")
    store.delete(b"a")
    store.delete(b"f")
    assert b"a" in store
    store.delete(b"g")
    assert store.machine.residents.by_path == {}
    assert store.machine.by_id == {}
    assert store.create(b"a") is Done.CREATED


def test_the_last_fork_leaves_a_source_that_is_not_deleted() -> None:
    store = text_source()
    store.fork(b"f", b"a")
    store.delete(b"f")
    assert store[b"a"].forks == 0
    assert store.messages(b"a") == [b"one", b"three", b"five"]


def test_a_chain_of_deleted_sources_falls_with_its_last_fork() -> None:
    store = text_source()
    store.fork(b"b", b"a")
    store.fork(b"c", b"b")
    store.fork(b"d", b"c")
    ids = [store[path].stream_id for path in (b"a", b"b", b"c", b"d")]
    for path in (b"b", b"a", b"c"):
        store.delete(path)
    assert len(store.machine.residents.by_path) == 4
    store.machine.outbox.ended.clear()
    store.delete(b"d")
    assert store.machine.residents.by_path == {}
    assert sorted(store.machine.outbox.ended) == ids


def test_a_chain_falls_only_up_to_the_first_that_is_still_wanted() -> None:
    store = text_source()
    store.fork(b"b", b"a")
    store.fork(b"c", b"b")
    store.delete(b"b")
    store.delete(b"c")
    assert list(store.machine.residents.by_path) == [b"a"]
    assert store[b"a"].forks == 0


@pytest.mark.parametrize("act", [Store.delete, Store.expire])
def test_the_end_of_a_fork_by_any_cause_counts(act: Any) -> None:
    store = text_source()
    store.fork(b"f", b"a", ttl_ms=1000, lifetime_given=True)
    store.delete(b"a")
    store.now_ms += 1000 if act is Store.expire else 0
    outcome = act(store, b"f")
    assert not isinstance(outcome, StreamError)
    assert store.machine.residents.by_path == {}


def test_append_times_of_a_fork_do_not_go_back_behind_those_it_inherits() -> None:
    """Not even when the clock was set back."""
    store = text_source()
    store.now_ms = NOW_MS - 5000
    assert store.fork(b"f", b"a", b"own") is Done.CREATED
    assert store.append(b"f", b"more") is Done.APPENDED
    assert [block.times for block in store[b"f"].log.blocks] == [NOW_MS, NOW_MS]
    hinted = AppendEntries(store.now_ms, store[b"f"].stream_id, b"x", b"", 1, hint_ms=7)
    assert store.machine.apply(hinted) is Done.APPENDED
    assert store[b"f"].log.blocks[-1].times == NOW_MS
