from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import (
    ContentTypeMismatch,
    ProducerEpochStart,
    ProducerFenced,
    ProducerGap,
    SequenceRegression,
    StreamClosed,
    StreamError,
    StreamGone,
    StreamNotFound,
)
from millstream.state.commands import Append, NoOp
from millstream.state.decisions import decide_append, is_final
from millstream.state.outcomes import Done
from tests.unit.state.store import JSON, TEXT, Store, image_bytes


def test_an_append_adds_one_message_behind_the_tail() -> None:
    store = Store()
    store.create(b"a", b"one")
    store.now_ms += 7
    assert store.append(b"a", b"three") is Done.APPENDED
    assert store.messages(b"a") == [b"one", b"three"]
    assert store[b"a"].tail == "0000000000000002_0000000000000008"
    assert store[b"a"].last_write_ms == store.now_ms


def test_a_batch_adds_all_of_its_messages() -> None:
    store = Store()
    store.create(b"a", content_type=JSON)
    store.append(b"a", b"1,", b"22,", b"333,")
    assert store.messages(b"a") == [b"1,", b"22,", b"333,"]


def test_an_append_to_an_unknown_stream_finds_nothing() -> None:
    assert isinstance(Store().append_to(99, b"x"), StreamNotFound)


def test_an_append_to_an_expired_stream_finds_nothing() -> None:
    store = Store()
    store.create(b"a", ttl_ms=5000)
    store.now_ms += 5000
    assert isinstance(store.append(b"a", b"x"), StreamNotFound)
    store.create(b"b", expires_at_ms=store.now_ms)
    assert isinstance(store.append(b"b", b"x"), StreamNotFound)


def test_an_append_to_a_stream_kept_for_its_forks_finds_it_gone() -> None:
    store = Store()
    store.create(b"a")
    store.fork(b"f", b"a")
    store.delete(b"a")
    assert isinstance(store.append(b"a", b"x"), StreamGone)


def test_an_append_is_refused_when_the_types_differ() -> None:
    store = Store()
    store.create(b"a", content_type=b"Text/Plain;x=y")
    assert isinstance(store.append(b"a", b"x", content_type=JSON), ContentTypeMismatch)
    assert store.append(b"a", b"x", content_type=TEXT) is Done.APPENDED


# Close


def test_a_close_without_content_closes_and_adds_nothing() -> None:
    store = Store()
    store.create(b"a", b"1")
    assert store.append(b"a", closes=True) is Done.APPENDED
    assert store[b"a"].closed
    assert store.messages(b"a") == [b"1"]


def test_a_close_with_content_adds_it_as_the_last() -> None:
    store = Store()
    store.create(b"a", b"1")
    store.append(b"a", b"2", closes=True)
    assert store[b"a"].closed
    assert store.messages(b"a") == [b"1", b"2"]


def test_closing_again_without_content_is_fine() -> None:
    store = Store()
    store.create(b"a", closed=True)
    assert store.append(b"a", closes=True) is Done.ALREADY_CLOSED


@pytest.mark.parametrize("closes", [False, True])
def test_an_append_after_close_is_refused_with_the_final_offset(closes: bool) -> None:
    store = Store()
    store.create(b"a", b"12345", closed=True)
    refusal = store.append(b"a", b"x", closes=closes)
    assert isinstance(refusal, StreamClosed)
    assert refusal.final_offset == "0000000000000001_0000000000000005"


# Stream-Seq


def test_a_stream_seq_must_grow_byte_by_byte_and_not_as_a_number() -> None:
    store = Store()
    store.create(b"a")
    assert store.append(b"a", b"x", stream_seq=b"10") is Done.APPENDED
    assert store.append(b"a", b"x", stream_seq=b"9") is Done.APPENDED
    assert isinstance(store.append(b"a", b"x", stream_seq=b"10"), SequenceRegression)
    assert store.append(b"a", b"x", stream_seq=b"9a") is Done.APPENDED


def test_the_same_stream_seq_again_is_refused() -> None:
    store = Store()
    store.create(b"a")
    store.append(b"a", b"x", stream_seq=b"5")
    assert isinstance(store.append(b"a", b"x", stream_seq=b"5"), SequenceRegression)


def test_an_append_without_stream_seq_leaves_it_where_it_is() -> None:
    store = Store()
    store.create(b"a")
    store.append(b"a", b"x", stream_seq=b"5")
    assert store.append(b"a", b"x") is Done.APPENDED
    assert store[b"a"].stream_seq == b"5"


# Producers


@pytest.mark.parametrize("epoch", [0, 1, 77])
def test_a_new_producer_starts_at_seq_0_in_any_epoch(epoch: int) -> None:
    store = Store()
    store.create(b"a")
    assert store.produce(b"a", epoch, 0) is Done.APPENDED
    assert store.produce(b"a", epoch, 1) is Done.APPENDED
    assert store.messages(b"a") == [b"x", b"x"]


def test_a_new_producer_that_starts_later_leaves_a_gap() -> None:
    store = Store()
    store.create(b"a")
    refusal = store.produce(b"a", 0, 4)
    assert isinstance(refusal, ProducerGap)
    assert (refusal.expected, refusal.received) == (0, 4)


def test_a_producer_that_skips_leaves_a_gap() -> None:
    store = Store()
    store.create(b"a")
    store.produce(b"a", 0, 0)
    refusal = store.produce(b"a", 0, 2)
    assert isinstance(refusal, ProducerGap)
    assert (refusal.expected, refusal.received) == (1, 2)


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_what_a_producer_sent_before_is_a_duplicate(seq: int) -> None:
    store = Store()
    store.create(b"a")
    for earlier in range(3):
        store.produce(b"a", 0, earlier)
    before = image_bytes(store.machine)
    assert store.produce(b"a", 0, seq) is Done.DUPLICATE
    assert image_bytes(store.machine) == before


def test_an_older_epoch_is_fenced_off_and_told_the_current_one() -> None:
    store = Store()
    store.create(b"a")
    store.produce(b"a", 5, 0)
    refusal = store.produce(b"a", 4, 0)
    assert isinstance(refusal, ProducerFenced)
    assert refusal.current_epoch == 5


def test_a_newer_epoch_starts_over_at_seq_0() -> None:
    store = Store()
    store.create(b"a")
    store.produce(b"a", 0, 0)
    store.produce(b"a", 0, 1)
    assert isinstance(store.produce(b"a", 3, 2), ProducerEpochStart)
    assert store.produce(b"a", 3, 0) is Done.APPENDED
    assert store.produce(b"a", 3, 1) is Done.APPENDED
    assert isinstance(store.produce(b"a", 0, 2), ProducerFenced)


def test_producers_count_apart_from_each_other_and_per_stream() -> None:
    store = Store()
    store.create(b"a")
    store.create(b"b")
    store.produce(b"a", 7, 0, by=b"p")
    assert store.produce(b"a", 0, 0, by=b"q") is Done.APPENDED
    assert store.produce(b"b", 0, 0, by=b"p") is Done.APPENDED


def test_the_retry_of_the_append_that_closed_the_stream_is_a_duplicate() -> None:
    store = Store()
    store.create(b"a")
    store.produce(b"a", 0, 0, closes=True)
    assert store.produce(b"a", 0, 0, closes=True) is Done.DUPLICATE
    assert isinstance(store.produce(b"a", 0, 1, closes=True), StreamClosed)


def test_a_close_without_content_takes_a_seq_of_its_producer_too() -> None:
    store = Store()
    store.create(b"a")
    close = {"closes": True, "producer_id": b"p", "producer_epoch": 0, "producer_seq": 0}
    assert store.append(b"a", **close) is Done.APPENDED
    assert store.append(b"a", **close) is Done.DUPLICATE


# The order of the checks, and what a refusal leaves behind


def troubled_store() -> Store:
    """Producer p stands at (5, 1), Stream-Seq at "5"; `closed` was closed after that."""
    store = Store()
    for path in (b"open", b"closed"):
        store.create(path)
        store.produce(path, 5, 0)
        store.produce(path, 5, 1, stream_seq=b"5")
    store.append(b"closed", closes=True)
    return store


FENCED = {"producer_id": b"p", "producer_epoch": 4, "producer_seq": 0}
NEW_EPOCH_LATE = {"producer_id": b"p", "producer_epoch": 6, "producer_seq": 1}
GAP = {"producer_id": b"p", "producer_epoch": 5, "producer_seq": 3}
NEXT = {"producer_id": b"p", "producer_epoch": 5, "producer_seq": 2}
OTHER_TYPE, LOW_SEQ = {"content_type": JSON}, {"stream_seq": b"5"}


@pytest.mark.parametrize(
    ("path", "fields", "refusal"),
    [
        (b"closed", FENCED | OTHER_TYPE | LOW_SEQ, ProducerFenced),
        (b"closed", NEW_EPOCH_LATE | OTHER_TYPE | LOW_SEQ, ProducerEpochStart),
        (b"closed", GAP | OTHER_TYPE | LOW_SEQ, ProducerGap),
        (b"closed", NEXT | OTHER_TYPE | LOW_SEQ, StreamClosed),
        (b"closed", OTHER_TYPE | LOW_SEQ, StreamClosed),
        (b"open", NEXT | OTHER_TYPE | LOW_SEQ, ContentTypeMismatch),
        (b"open", OTHER_TYPE | LOW_SEQ, ContentTypeMismatch),
        (b"open", NEXT | LOW_SEQ, SequenceRegression),
        (b"open", LOW_SEQ, SequenceRegression),
        (b"open", LOW_SEQ | {"closes": True}, SequenceRegression),
    ],
)
def test_the_first_check_that_fails_decides_and_nothing_changes(
    path: bytes, fields: dict[str, Any], refusal: type[StreamError]
) -> None:
    store = troubled_store()
    before = image_bytes(store.machine)
    store.now_ms += 1
    assert type(store.append(path, b"x", **fields)) is refusal
    assert image_bytes(store.machine) == before


def test_a_duplicate_wins_over_every_later_check() -> None:
    store = troubled_store()
    duplicate = {"producer_id": b"p", "producer_epoch": 5, "producer_seq": 1}
    outcome = store.append(b"closed", b"x", **duplicate, **OTHER_TYPE, **LOW_SEQ)
    assert outcome is Done.DUPLICATE


def test_after_a_refusal_the_producer_may_send_the_same_seq_again() -> None:
    store = troubled_store()
    assert isinstance(store.append(b"open", b"x", **NEXT, **LOW_SEQ), SequenceRegression)
    assert store.append(b"open", b"x", **NEXT, stream_seq=b"6") is Done.APPENDED


def test_deciding_changes_nothing() -> None:
    store = troubled_store()
    before = image_bytes(store.machine)
    command = Append(store.now_ms, store[b"open"].stream_id, b"x", b"", 1, TEXT, True)
    assert decide_append(store[b"open"], command) is None
    assert image_bytes(store.machine) == before


@pytest.mark.parametrize(
    ("fields", "final"), [(FENCED, True), (GAP, False), (NEW_EPOCH_LATE, False)]
)
def test_only_what_a_command_under_way_could_heal_is_not_final(
    fields: dict[str, Any], final: bool
) -> None:
    store = troubled_store()
    command = Append(store.now_ms, store[b"open"].stream_id, b"x", b"", 1, TEXT, **fields)
    decided = decide_append(store[b"open"], command)
    assert decided is not None
    assert is_final(decided) == final


def test_a_mark_changes_nothing() -> None:
    store = troubled_store()
    before = image_bytes(store.machine)
    assert store.machine.apply(NoOp(store.now_ms)) is Done.NOTHING
    assert image_bytes(store.machine) == before
