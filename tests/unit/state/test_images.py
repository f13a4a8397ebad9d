"""What is kept of a state, and the state that is made of it again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.blocks import Block
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.layout import StreamId
from millstream.limits import SMALL_BLOCK_BYTES
from millstream.state.commands import AnyCommand, AppendEntries, SetRules
from millstream.state.images import (
    encode_image,
    hot_content,
    image_of,
    restore_hot,
    restore_stream,
)
from millstream.state.log import Log
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from millstream.state.records import restore_records, take_records
from millstream.state.rules import Rules
from tests.support.blocks import messages_of
from tests.unit.effort import brief
from tests.unit.state.command_sequences import sequences
from tests.unit.state.store import JSON, NOW_MS, Store, blob_uses, describe, image_bytes
from tests.unit.state.test_machine_random import facts
from tests.unit.state.tiered import Tiered, restarted

LARGE = bytes(range(256)) * (SMALL_BLOCK_BYTES // 256)


def rich_store() -> Store:
    """At least one stream for every field of an image."""
    store = Store()
    store.create(b"plain", b"1", content_type=b"Text/Plain; x=y")
    store.create(b"json", b"1,", b"22,", content_type=JSON, ttl_ms=5000)
    store.now_ms += 10
    store.produce(b"plain", 3, 0, by=b"\xffp", stream_seq=b"\xfe9")
    store.create(b"absolute", expires_at_ms=NOW_MS + 5000)
    store.fork(b"fork", b"json", content_type=JSON, fork_ordinal=1)
    store.touch(b"json")
    store.create(b"doomed", b"x")
    store.fork(b"heir", b"doomed", b"y", fork_byte=0, fork_sub_offset=1)
    store.delete(b"doomed")
    store.append(b"heir", closes=True)
    store.create(b"trimmed", b"one", b"two", b"three")
    store.publish(b"trimmed", 2, blob="first")
    store.fork(b"twig", b"trimmed", fork_ordinal=2)
    store.create_bucket(b"empty")
    store.now_ms += 10
    store.create_bucket(b"later")
    store.create(b"later/a", b"x")
    store.create(b"whole", b"one")
    store.publish(b"whole", 1, blob="second", digest="other")
    return store


def restarted_store() -> Store:
    store = Store()
    store.machine = restarted(rich_store().machine)
    return store


def test_every_field_survives_a_checkpoint() -> None:
    store = rich_store()
    again = restarted(store.machine)
    assert describe(again) == describe(store.machine)
    assert image_bytes(again) == image_bytes(store.machine)


def test_every_field_of_an_image_is_the_streams_again() -> None:
    store = rich_store()
    for stream in store.machine.by_id.values():
        encoded = encode_image(image_of(stream))
        again, missing_bytes = restore_stream(encoded)
        restore_hot(again.log, hot_content(stream.stream_id, stream.log.unpublished()))
        assert missing_bytes == stream.log.tail_byte - stream.log.cold_byte
        assert encode_image(image_of(again)) == encoded


def test_a_restored_snapshot_is_shared_by_the_same_forks() -> None:
    restored = restarted_store()
    assert blob_uses(restored.machine) == {"first": 2, "second": 1}
    assert restored[b"trimmed"].earliest == restored[b"twig"].earliest
    assert restored.messages(b"trimmed") == [b"three"]
    restored.delete(b"trimmed")
    assert restored.machine.outbox.unused_blobs == []
    restored.delete(b"twig")
    assert restored.machine.outbox.unused_blobs == ["first"]


def test_an_empty_bucket_is_there_again() -> None:
    buckets = restarted_store().machine.names.buckets
    assert (buckets[b"empty"].streams, buckets[b"empty"].created_ms) == (0, NOW_MS + 10)
    assert (buckets[b"later"].streams, buckets[b"later"].created_ms) == (1, NOW_MS + 20)


def test_a_trimmed_log_goes_on_counting_after_a_restore() -> None:
    restored = restarted_store()
    assert restored[b"whole"].tail == "0000000000000001_0000000000000003"
    restored.append(b"whole", b"four")
    assert restored[b"whole"].tail == "0000000000000002_0000000000000007"
    assert restored.messages(b"whole") == [b"four"]


def test_a_restored_lifetime_goes_on_from_its_last_journaled_renewal() -> None:
    restored = restarted_store()[b"json"]
    assert restored.accessed_ms == restored.touched_ms == NOW_MS + 10


@given(sequences, sequences)
@brief
def test_a_restored_machine_is_equal_and_goes_on_alike(
    before: list[AnyCommand], after: list[AnyCommand]
) -> None:
    """Published runs are not looked into here: see test_machine_tiered.py."""
    machine = StateMachine()
    tiered = Tiered()
    for command in before:
        machine.apply(command)
        tiered.apply(command)
    tiered.checkpoint()
    tiered.restart()
    for command in after:
        assert facts(tiered.apply(command)) == facts(machine.apply(command))
    tiered.wake_all()
    assert image_bytes(tiered.machine) == image_bytes(machine)


@given(sequences, sequences, st.integers(0, 5))
@brief
def test_later_changes_do_not_show_in_a_capture(
    before: list[AnyCommand], after: list[AnyCommand], taken: int
) -> None:
    """Whether a stream is taken at once, later, or because it changes."""
    told = []
    for takes in (1000, taken):
        machine = StateMachine()
        for command in before:
            machine.apply(command)
        capture = machine.changes.begin_capture(1, take_records(machine))
        capture.take_some(takes)
        for command in after:
            machine.apply(command)
        capture.take_some(1000)
        machine.changes.end_capture(capture)
        changes, hot = capture.encode()
        changes.streams.sort(key=lambda row: row.stream_id)
        for runs in changes.runs:
            runs.sort(key=lambda run: (run.stream_id, run.first_ordinal))
        hot.sort(key=lambda content: content.stream_id)
        told.append((changes, hot))
    assert told[0] == told[1]


def test_a_capture_does_not_see_later_merges_of_its_blocks() -> None:
    store = Store()
    store.create(b"a", b"1")
    capture = store.machine.changes.begin_capture(1, take_records(store.machine))
    capture.take_some(1)
    for _ in range(1000):
        store.append(b"a", b"23")
    store.machine.changes.end_capture(capture)
    _, hot = capture.encode()
    assert hot == [HotContent(store[b"a"].stream_id, [(b"1", b"", NOW_MS)])]


@given(st.lists(st.sampled_from([1, 700, 5000, SMALL_BLOCK_BYTES]), max_size=40), st.data())
@brief
def test_large_and_merged_content_survives_with_its_forks(
    sizes: list[int], data: st.DataObject
) -> None:
    store = Store()
    store.create(b"a")
    for number, size in enumerate(sizes):
        store.now_ms += number % 3
        store.append(b"a", bytes([number]) * size)
    cut = data.draw(st.integers(0, store[b"a"].log.tail_byte))
    store.fork(b"f", b"a", fork_ordinal=0, fork_sub_offset=cut)
    assert describe(restarted(store.machine)) == describe(store.machine)


@given(st.lists(st.sampled_from([1, 3, 700, SMALL_BLOCK_BYTES]), min_size=1, max_size=30))
@brief
def test_hot_content_keeps_when_each_message_came(sizes: list[int]) -> None:
    store = Store()
    store.create(b"a")
    for number, size in enumerate(sizes):
        store.now_ms += number % 2
        store.append(b"a", *[bytes(size)] * (1 + number % 3))
    log, again = store[b"a"].log, Log()
    restore_hot(again, hot_content(StreamId(1), log.unpublished()))
    assert times_of(again) == times_of(log)


def times_of(log: Log) -> list[int]:
    return [message.time for block in log.unpublished() for message in messages_of(block)]


def test_content_that_forks_inherit_is_written_once() -> None:
    store = Store()
    store.create(b"a", LARGE)
    for path in (b"f", b"g", b"h"):
        store.fork(path, b"a")
    capture = store.machine.changes.begin_capture(1, take_records(store.machine))
    capture.take_some(10)
    _, hot = capture.encode()
    assert [content.stream_id for content in hot] == [store[b"a"].stream_id]


def test_content_of_a_deleted_source_is_written_as_long_as_a_fork_needs_it() -> None:
    store = Store()
    store.create(b"a", LARGE)
    store.fork(b"f", b"a")
    store.delete(b"a")
    again = Store()
    again.machine = restarted(store.machine)
    assert again.messages(b"f") == [LARGE]


def test_an_empty_machine_is_told_by_next_to_nothing() -> None:
    assert describe(restarted(StateMachine())) == describe(StateMachine())


# What passes its checksum and still makes no sense


@pytest.mark.parametrize(
    "image", [b"junk", msgspec.msgpack.encode([1, 2, 3]), msgspec.msgpack.encode({"a": 1})]
)
def test_an_image_that_makes_no_sense_is_refused(image: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        restore_stream(image)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("births", b"many"),
        ("keys", b"junk"),
        ("bucket/a", b"junk"),
        ("blob/a", b"junk"),
        ("subscription/a", b"junk"),
        ("surprise", b""),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(key: str, value: bytes) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        restore_records(StateMachine(), [(key, value)])


def test_an_image_says_how_much_content_is_not_with_it() -> None:
    store = Store()
    store.create(b"a", b"one", b"three")
    store.flush(b"a", 1)
    image = image_of(store[b"a"])
    assert isinstance(image, StreamImage)
    stream, missing_bytes = restore_stream(encode_image(image))
    assert missing_bytes == 5
    assert (stream.log.held_ordinal, stream.log.tail_ordinal, stream.log.tail_byte) == (1, 1, 3)


def test_rules_hints_and_the_empty_key_survive_a_checkpoint() -> None:
    store = Store()
    store.create(b"a", content_type=JSON)
    stream = store[b"a"]
    rules = Rules(0, "evlog", b"{}", (b"{}",), (b"",), b"key", b"search", touch=True)
    store.machine.apply(SetRules(NOW_MS, stream.stream_id, 0, rules, begins_version=True))
    command = AppendEntries(NOW_MS + 9, stream.stream_id, b"1,", b"", 1)
    command.keys, command.hint_ms, command.rules_revision = b"", NOW_MS + 5, 1
    assert store.machine.apply(command) is Done.APPENDED
    again = restarted(store.machine).by_id[stream.stream_id]
    assert again.rules == stream.rules
    assert again.rules is not None
    assert again.rules.boundaries == ((0, 1),)
    assert again.hinted == stream.hinted == (1, NOW_MS + 5)
    assert again.log.blocks == [Block(b"1,", None, NOW_MS + 5, b"")]
