from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import (
    InvalidOffset,
    OffsetGone,
    SnapshotConflict,
    StreamError,
    StreamGone,
    StreamNotFound,
)
from millstream.state.commands import PublishSnapshot
from millstream.state.decisions import decide_publish
from millstream.state.outcomes import Done
from millstream.state.stream import Snapshot
from tests.unit.state.store import JSON, NOW_MS, Store, blob_uses, image_bytes


def source() -> Store:
    """Messages end at bytes 3, 8, 12."""
    store = Store()
    store.create(b"a", b"one")
    store.append(b"a", b"three")
    store.append(b"a", b"five")
    return store


def test_a_snapshot_takes_the_place_of_the_messages_before_it() -> None:
    store = source()
    assert store.publish(b"a", 2) is Done.PUBLISHED
    assert store[b"a"].snapshot == Snapshot(2, 8, "blob", b"a/b; c=d", 4, "digest")
    assert store[b"a"].earliest == "0000000000000002_0000000000000008"
    assert store.messages(b"a") == [b"five"]
    assert store[b"a"].tail == "0000000000000003_0000000000000012"
    store.append(b"a", b"six")
    assert store.messages(b"a") == [b"five", b"six"]


@pytest.mark.parametrize("ordinal", [0, 1, 3])
def test_any_boundary_will_do(ordinal: int) -> None:
    store = source()
    assert store.publish(b"a", ordinal) is Done.PUBLISHED
    assert store.messages(b"a") == [b"one", b"three", b"five"][ordinal:]


@pytest.mark.parametrize(
    ("ordinal", "byte", "refusal"),
    [
        pytest.param(4, 12, SnapshotConflict, id="a message too far"),
        pytest.param(3, 13, SnapshotConflict, id="a byte too far"),
        pytest.param(99, 99, SnapshotConflict, id="far too far"),
        pytest.param(1, 4, InvalidOffset, id="inside a message"),
        pytest.param(2, 3, InvalidOffset, id="units that disagree"),
        pytest.param(0, 3, InvalidOffset, id="a byte that is another message's"),
    ],
)
def test_what_is_no_boundary_is_refused(
    ordinal: int, byte: int, refusal: type[StreamError]
) -> None:
    store = source()
    before = image_bytes(store.machine)
    assert isinstance(store.publish(b"a", ordinal, byte), refusal)
    assert image_bytes(store.machine) == before
    assert store.machine.outbox.unused_blobs == ["blob"]
    assert blob_uses(store.machine) == {}


@pytest.mark.parametrize(
    ("ordinal", "byte", "refusal"),
    [
        pytest.param(1, 3, OffsetGone, id="before it"),
        pytest.param(1, 4, OffsetGone, id="before it and misaligned"),
        pytest.param(0, 0, OffsetGone, id="the start"),
        pytest.param(2, 7, OffsetGone, id="a byte before it"),
        pytest.param(1, 99, OffsetGone, id="before it and beyond the tail"),
        pytest.param(2, 13, SnapshotConflict, id="beyond the tail"),
        pytest.param(2, 9, InvalidOffset, id="misaligned behind it"),
    ],
)
def test_the_order_of_the_checks_is_gone_then_beyond_then_aligned(
    ordinal: int, byte: int, refusal: type[StreamError]
) -> None:
    store = source()
    store.publish(b"a", 2, blob="first")
    assert isinstance(store.publish(b"a", ordinal, byte, blob="second"), refusal)
    assert store[b"a"].snapshot is not None
    assert store[b"a"].snapshot.blob == "first"
    assert store.machine.outbox.unused_blobs == ["second"]


def test_a_refusal_because_of_retention_names_the_earliest_offset() -> None:
    store = source()
    store.publish(b"a", 2)
    refusal = store.publish(b"a", 1, 3)
    assert isinstance(refusal, OffsetGone)
    assert refusal.earliest == "0000000000000002_0000000000000008"


def test_the_same_snapshot_again_is_no_news_and_another_is_a_conflict() -> None:
    store = source()
    store.publish(b"a", 2, blob="first")
    assert store.publish(b"a", 2, blob="again") is Done.EXISTED
    assert isinstance(store.publish(b"a", 2, blob="other", digest="else"), SnapshotConflict)
    assert store.machine.outbox.unused_blobs == ["again", "other"]
    assert blob_uses(store.machine) == {"first": 1}


def test_a_snapshot_told_twice_keeps_its_blob() -> None:
    store = source()
    store.publish(b"a", 2, blob="first")
    assert store.publish(b"a", 2, blob="first") is Done.EXISTED
    assert store.machine.outbox.unused_blobs == []


def test_a_newer_snapshot_gives_up_the_blob_of_the_older() -> None:
    store = source()
    store.publish(b"a", 1, blob="first")
    store.publish(b"a", 3, blob="second")
    assert store.machine.outbox.unused_blobs == ["first"]
    assert blob_uses(store.machine) == {"second": 1}
    assert store.messages(b"a") == []


def test_streams_that_are_not_there_take_no_snapshot() -> None:
    store = source()
    assert isinstance(store.publish_to(99, 0, 0, "stray"), StreamNotFound)
    store.create(b"brief", b"x", ttl_ms=1000)
    store.create(b"doomed", b"x")
    store.fork(b"heir", b"doomed")
    store.delete(b"doomed")
    store.now_ms += 1000
    assert isinstance(store.publish(b"brief", 1, blob="late"), StreamNotFound)
    assert isinstance(store.publish(b"doomed", 0, blob="dead"), StreamGone)
    assert store.machine.outbox.unused_blobs == ["stray", "late", "dead"]


def test_a_closed_stream_may_still_be_compacted() -> None:
    store = source()
    store.append(b"a", closes=True)
    assert store.publish(b"a", 3) is Done.PUBLISHED
    assert store[b"a"].closed


def test_publishing_renews_a_sliding_lifetime() -> None:
    store = Store()
    store.create(b"a", b"x", ttl_ms=1000)
    store.now_ms += 900
    store.publish(b"a", 1)
    assert store[b"a"].deadline_ms(store[b"a"].touched_ms) == NOW_MS + 1900


def test_producers_and_sequences_are_not_touched() -> None:
    store = source()
    store.produce(b"a", 1, 0, stream_seq=b"7")
    store.publish(b"a", 4)
    assert store.produce(b"a", 1, 0) is Done.DUPLICATE
    assert store.produce(b"a", 1, 1, stream_seq=b"8") is Done.APPENDED


# Forks


def test_a_fork_made_before_keeps_reading_what_it_inherited() -> None:
    store = source()
    store.fork(b"f", b"a")
    store.publish(b"a", 3)
    assert store.messages(b"f") == [b"one", b"three", b"five"]
    assert store[b"f"].snapshot is None


def test_a_fork_made_after_begins_with_the_same_snapshot() -> None:
    store = source()
    store.publish(b"a", 2)
    store.fork(b"f", b"a")
    assert store.messages(b"f") == [b"five"]
    assert store[b"f"].snapshot == store[b"a"].snapshot
    assert store[b"f"].earliest == store[b"a"].earliest
    assert blob_uses(store.machine) == {"blob": 2}


@pytest.mark.parametrize(
    "offset",
    [
        {"fork_ordinal": 1, "fork_byte": 3},
        {"fork_ordinal": 0},
        {"fork_byte": 3},
        {"fork_byte": 4},
        {"fork_ordinal": 1, "fork_sub_offset": 5},
    ],
)
def test_a_fork_cannot_begin_before_the_snapshot(offset: dict[str, Any]) -> None:
    store = source()
    store.publish(b"a", 2)
    refusal = store.fork(b"f", b"a", **offset)
    assert isinstance(refusal, OffsetGone)
    assert refusal.earliest == store[b"a"].earliest
    assert b"f" not in store


def test_a_fork_at_the_snapshot_begins_with_nothing_behind_it() -> None:
    store = source()
    store.publish(b"a", 2)
    assert store.fork(b"f", b"a", fork_ordinal=2) is Done.CREATED
    assert store.messages(b"f") == []
    assert store[b"f"].tail == store[b"a"].earliest
    store.append(b"f", b"own")
    assert store.messages(b"f") == [b"own"]


def test_a_fork_may_cut_a_message_behind_the_snapshot() -> None:
    store = source()
    store.publish(b"a", 2)
    store.fork(b"f", b"a", fork_ordinal=2, fork_sub_offset=3)
    assert store.messages(b"f") == [b"fiv"]
    assert store[b"f"].tail == "0000000000000003_0000000000000011"


def test_a_fork_of_a_json_stream_counts_messages_behind_the_snapshot() -> None:
    store = Store()
    store.create(b"a", b"1,", b"22,", b"333,", content_type=JSON)
    store.publish(b"a", 1)
    store.fork(b"f", b"a", content_type=JSON, fork_ordinal=1, fork_sub_offset=1)
    assert store.messages(b"f") == [b"22,"]


def test_a_shared_blob_is_given_up_by_its_last_user() -> None:
    store = source()
    store.publish(b"a", 2, blob="shared")
    store.fork(b"f", b"a")
    store.fork(b"g", b"f")
    assert blob_uses(store.machine) == {"shared": 3}
    store.publish(b"a", 3, blob="own")
    store.delete(b"f")
    assert blob_uses(store.machine) == {"shared": 1, "own": 1}
    assert store.machine.outbox.unused_blobs == []
    store.delete(b"g")
    assert store.machine.outbox.unused_blobs == ["shared"]
    assert blob_uses(store.machine) == {"own": 1}


def test_a_source_deleted_but_kept_for_its_forks_needs_no_blob_of_its_own() -> None:
    store = source()
    store.fork(b"f", b"a")
    store.publish(b"a", 3)
    store.delete(b"a")
    assert store.machine.outbox.unused_blobs == ["blob"]
    store.delete(b"f")
    assert store.machine.outbox.unused_blobs == ["blob"]
    assert store.machine.by_id == {}


def test_an_expired_stream_gives_its_blob_up() -> None:
    store = Store()
    store.create(b"a", b"x", ttl_ms=1000)
    store.publish(b"a", 1)
    store.now_ms += 1000
    store.expire(b"a")
    assert store.machine.outbox.unused_blobs == ["blob"]


def test_a_name_taken_over_from_an_expired_stream_has_no_snapshot() -> None:
    store = Store()
    store.create(b"a", b"x", ttl_ms=1000)
    store.publish(b"a", 1)
    store.now_ms += 1000
    store.create(b"a")
    assert store[b"a"].snapshot is None
    assert store[b"a"].earliest == "0000000000000000_0000000000000000"
    assert store.machine.outbox.unused_blobs == ["blob"]


def test_a_decision_does_not_change_anything() -> None:
    store = source()
    before = image_bytes(store.machine)
    fields: tuple[Any, ...] = (NOW_MS, store[b"a"].stream_id, 2, 8, "blob", b"a/b", 1, "d")
    assert decide_publish(store[b"a"], PublishSnapshot(*fields)) is None
    assert image_bytes(store.machine) == before
