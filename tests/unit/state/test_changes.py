"""What a checkpoint is told, and what of it is taken when."""

from __future__ import annotations

from millstream.state.records import take_records
from tests.unit.state.store import Store


def store_of_three() -> Store:
    store = Store()
    for path in (b"a", b"b", b"c"):
        store.create(path, path * 3)
    return store


def test_streams_with_unpublished_content_are_known_at_every_step_of_a_capture() -> None:
    store = store_of_three()
    changes = store.machine.changes
    every = [store[path] for path in (b"a", b"b", b"c")]
    capture = changes.begin_capture(1, take_records(store.machine))
    while not capture.is_complete:
        assert changes.hot_streams(0) == every
        capture.take_some(1)
    assert changes.hot_streams(0) == every
    changes.end_capture(capture)
    assert changes.hot_streams(0) == every
    changes.settle(capture)
    assert changes.hot_streams(0) == every


def test_what_is_published_or_gone_is_no_longer_hot() -> None:
    store = store_of_three()
    changes = store.machine.changes
    capture = changes.begin_capture(1, take_records(store.machine))
    capture.take_some(3)
    store.flush(b"a")
    store.delete(b"b")
    assert changes.hot_streams(0) == [store[b"c"]]
    changes.end_capture(capture)
    assert changes.hot_streams(0) == [store[b"c"]]
    assert changes.hot_bytes == [3]


def test_a_capture_is_the_state_at_its_beginning_whatever_happens_until_it_is_taken() -> None:
    store = store_of_three()
    changes = store.machine.changes
    capture = changes.begin_capture(7, take_records(store.machine))
    store.append(b"a", b"later")
    store.delete(b"b")
    store.flush(b"c")
    store.create(b"d")
    capture.take_some(10)
    changes.end_capture(capture)
    encoded, hot = capture.encode()
    assert [row.path for row in encoded.streams] == [b"a", b"b", b"c"]
    assert encoded.removed == []
    assert encoded.segments == []
    assert [b"".join(block[0] for block in each.blocks) for each in hot] == [b"aaa", b"bbb", b"ccc"]


def test_the_next_capture_tells_what_happened_during_the_one_before() -> None:
    store = store_of_three()
    changes = store.machine.changes
    gone = store[b"b"].stream_id
    first = changes.begin_capture(7, take_records(store.machine))
    store.append(b"a", b"later")
    store.delete(b"b")
    published = store.flush(b"c")
    first.take_some(10)
    changes.end_capture(first)
    changes.settle(first)
    second = changes.begin_capture(8, take_records(store.machine))
    second.take_some(10)
    changes.end_capture(second)
    encoded, hot = second.encode()
    assert [row.path for row in encoded.streams] == [b"a", b"c"]
    assert encoded.removed == [gone]
    assert (encoded.segments, encoded.runs) == ([published.segment], [published.runs])
    assert [each.stream_id for each in hot] == [store[b"a"].stream_id]


def test_content_that_stays_hot_is_in_every_checkpoint_and_its_image_only_once() -> None:
    store = store_of_three()
    changes = store.machine.changes
    told = []
    for lsn in (1, 2, 3):
        capture = changes.begin_capture(lsn, take_records(store.machine))
        capture.take_some(10)
        changes.end_capture(capture)
        encoded, hot = capture.encode()
        told.append((len(encoded.streams), len(hot)))
        changes.settle(capture)
    assert told == [(3, 3), (0, 3), (0, 3)]


def test_only_records_that_changed_are_told_again() -> None:
    store = store_of_three()
    store.create_bucket(b"bucket")
    first = dict(take_records(store.machine))
    assert first.keys() == {"births", "bucket/a", "bucket/b", "bucket/c", "bucket/bucket"}
    assert dict(take_records(store.machine)).keys() == {"births"}
    store.delete_bucket(b"bucket")
    assert dict(take_records(store.machine))["bucket/bucket"] is None


def test_runs_of_streams_that_ended_or_were_trimmed_meanwhile_are_not_taken() -> None:
    store = store_of_three()
    store.append(b"a", b"more")
    late = [store.gathered(path) for path in (b"a", b"b", b"c")]
    store.trim(b"a", 1)
    store.delete(b"b")
    for command in late:
        store.machine.apply(command)
    log = store[b"a"].log
    assert (log.cold_ordinal, log.runs) == (1, None)
    assert store[b"c"].log.cold_ordinal == 1
    assert store.machine.changes.hot_bytes == [4]
