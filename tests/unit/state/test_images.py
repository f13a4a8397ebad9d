from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.checkpoint import (
    BUCKET,
    DATA,
    END,
    HEADER,
    STREAM,
    CheckpointEnd,
    CheckpointHeader,
    decode_blocks,
)
from millstream.limits import SMALL_BLOCK_BYTES
from millstream.state.commands import AnyCommand
from millstream.state.images import Restorer, capture, encode_capture
from millstream.state.machine import StateMachine
from tests.unit.effort import brief
from tests.unit.state.command_sequences import sequences
from tests.unit.state.store import JSON, NOW_MS, Store, describe, image_bytes
from tests.unit.state.test_machine_random import facts

LARGE = bytes(range(256)) * (SMALL_BLOCK_BYTES // 256)


def restore(image: bytes) -> StateMachine:
    restorer = Restorer()
    for _, kind, payload in decode_blocks(memoryview(image)):
        restorer.add(kind, payload)
    return restorer.machine


def kinds(machine: StateMachine) -> list[int]:
    return [kind for _, kind, _ in decode_blocks(memoryview(image_bytes(machine)))]


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


def test_every_field_survives_a_checkpoint() -> None:
    store = rich_store()
    assert describe(restore(image_bytes(store.machine))) == describe(store.machine)


def test_a_restored_snapshot_is_shared_by_the_same_forks() -> None:
    restored = Store()
    restored.machine = restore(image_bytes(rich_store().machine))
    assert restored.machine.blob_uses == {"first": 2, "second": 1}
    assert restored[b"trimmed"].earliest == restored[b"twig"].earliest
    assert restored.messages(b"trimmed") == [b"three"]
    restored.delete(b"trimmed")
    assert restored.machine.unused_blobs == []
    restored.delete(b"twig")
    assert restored.machine.unused_blobs == ["first"]


def test_an_empty_bucket_is_there_again() -> None:
    restored = restore(image_bytes(rich_store().machine))
    buckets = restored.names.buckets
    assert (buckets[b"empty"].streams, buckets[b"empty"].created_ms) == (0, NOW_MS + 10)
    assert (buckets[b"later"].streams, buckets[b"later"].created_ms) == (1, NOW_MS + 20)


def test_a_trimmed_log_goes_on_counting_after_a_restore() -> None:
    restored = Store()
    restored.machine = restore(image_bytes(rich_store().machine))
    assert restored[b"whole"].tail == "0000000000000001_0000000000000003"
    restored.append(b"whole", b"four")
    assert restored[b"whole"].tail == "0000000000000002_0000000000000007"
    assert restored.messages(b"whole") == [b"four"]


def test_a_restored_lifetime_goes_on_from_its_last_journaled_renewal() -> None:
    store = rich_store()
    restored = restore(image_bytes(store.machine)).by_path[b"json"]
    assert restored.accessed_ms == restored.touched_ms == NOW_MS + 10


@given(sequences, sequences)
@brief
def test_a_restored_machine_is_equal_and_goes_on_alike(
    before: list[AnyCommand], after: list[AnyCommand]
) -> None:
    machine = StateMachine()
    for command in before:
        machine.apply(command)
    restored = restore(image_bytes(machine))
    assert describe(restored) == describe(machine)
    for command in after:
        assert facts(restored.apply(command)) == facts(machine.apply(command))
    assert describe(restored) == describe(machine)


@given(sequences, sequences)
@brief
def test_later_changes_do_not_show_in_a_capture(
    before: list[AnyCommand], after: list[AnyCommand]
) -> None:
    machine = StateMachine()
    for command in before:
        machine.apply(command)
    image = image_bytes(machine)
    captured = capture(machine)
    for command in after:
        machine.apply(command)
    assert b"".join(encode_capture(captured, "0" * 32, 1)) == image


def test_a_capture_does_not_see_later_merges_of_its_blocks() -> None:
    store = Store()
    store.create(b"a", b"1")
    captured = capture(store.machine)
    image = image_bytes(store.machine)
    for _ in range(1000):
        store.append(b"a", b"23")
    assert b"".join(encode_capture(captured, "0" * 32, 1)) == image


@given(st.lists(st.sampled_from([1, 700, 5000, SMALL_BLOCK_BYTES]), max_size=40), st.data())
@brief
def test_large_and_merged_content_survives_with_its_forks(
    sizes: list[int], data: st.DataObject
) -> None:
    store = Store()
    store.create(b"a")
    for number, size in enumerate(sizes):
        store.append(b"a", bytes([number]) * size)
    cut = data.draw(st.integers(0, store[b"a"].log.tail_byte))
    store.fork(b"f", b"a", fork_ordinal=0, fork_sub_offset=cut)
    assert describe(restore(image_bytes(store.machine))) == describe(store.machine)


def test_content_shared_by_forks_is_written_once() -> None:
    store = Store()
    store.create(b"a", LARGE)
    for path in (b"f", b"g", b"h"):
        store.fork(path, b"a")
    assert kinds(store.machine) == [HEADER, *[BUCKET] * 4, DATA, *[STREAM] * 4, END]


def test_content_shared_by_forks_is_shared_again_after_a_restore() -> None:
    store = Store()
    store.create(b"a", LARGE)
    store.fork(b"f", b"a")
    restored = restore(image_bytes(store.machine))
    assert restored.by_path[b"f"].log.datas[0] is restored.by_path[b"a"].log.datas[0]


def test_small_content_shared_by_forks_is_shared_again_after_a_restore() -> None:
    store = Store()
    store.create(b"a")
    for number in range(5000):
        store.append(b"a", b"%06d" % number)
    store.fork(b"f", b"a")
    restored = restore(image_bytes(store.machine))
    held = {id(data) for data in restored.by_path[b"a"].log.datas}
    shared = sum(len(data) for data in restored.by_path[b"f"].log.datas if id(data) in held)
    assert shared > 0.9 * restored.by_path[b"f"].log.tail_byte


def test_content_of_a_deleted_source_is_written_as_long_as_a_fork_holds_it() -> None:
    store = Store()
    store.create(b"a", LARGE)
    store.fork(b"f", b"a")
    store.delete(b"a")
    assert kinds(store.machine).count(DATA) == 1
    assert restore(image_bytes(store.machine)).by_path[b"f"].log.tail_byte == len(LARGE)


def test_an_empty_machine_is_a_header_and_an_end() -> None:
    assert kinds(StateMachine()) == [HEADER, END]
    assert describe(restore(image_bytes(StateMachine()))) == describe(StateMachine())


def test_the_header_says_what_the_checkpoint_covers() -> None:
    blocks = b"".join(encode_capture(capture(rich_store().machine), "f" * 32, 4711))
    restorer = Restorer()
    for _, kind, payload in decode_blocks(memoryview(blocks)):
        restorer.add(kind, payload)
    assert restorer.header is not None
    header = restorer.header
    assert (header.format, header.store_id, header.lsn) == (1, "f" * 32, 4711)


# Blocks that pass their checksum and still make no sense


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (9, b""),
        (HEADER, b"junk"),
        (STREAM, b"junk"),
        (STREAM, msgspec.msgpack.encode([1, 2, 3])),
        (END, b"junk"),
        (END, msgspec.msgpack.encode(CheckpointEnd(1, 0))),
        (END, msgspec.msgpack.encode(CheckpointEnd(0, 1))),
    ],
)
def test_a_block_that_makes_no_sense_is_refused(kind: int, payload: bytes) -> None:
    restorer = Restorer()
    restorer.add(HEADER, msgspec.msgpack.encode(CheckpointHeader(1, "0" * 32, 1, 1)))
    with pytest.raises(ValueError):
        restorer.add(kind, payload)


def test_a_stream_whose_content_is_missing_is_refused() -> None:
    store = Store()
    store.create(b"a", b"1")
    blocks = [block[1:] for block in decode_blocks(memoryview(image_bytes(store.machine)))]
    (header, _, _, stream, _) = blocks
    restorer = Restorer()
    restorer.add(*header)
    with pytest.raises((ValueError, IndexError)):
        restorer.add(*stream)
