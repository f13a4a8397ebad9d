from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.tier.catalog import (
    Catalog,
    Changes,
    Replacement,
    SegmentSpan,
    SegmentUse,
    StreamRow,
)
from tests.unit.tier.catalog_world import garbage_of, id_for, open_catalog

SHARDS = 3


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = open_catalog(tmp_path / "catalog", SHARDS)
    yield catalog
    catalog.close()


def stream(path: bytes, number: int = 1, **fields: object) -> StreamRow:
    given = {"deadline_ms": None, "listed": True, "created_ms": 5, "image": b"image", **fields}
    return StreamRow(id_for(path, number, SHARDS), path, **given)  # type: ignore[arg-type]


def segment(name: str, shard: int) -> Segment:
    return Segment(name, shard, 1000, 100, 10, 7)


def run(row: StreamRow, first: int, count: int) -> Run:
    """Ten bytes a message."""
    return Run(row.stream_id, first, first * 10, count, count * 10, 0, 0, 4_000_000_000)


def flush(row: StreamRow, name: str, *runs: Run) -> Changes:
    return Changes(0, segments=[segment(name, row.stream_id % SHARDS)], runs=[list(runs)])


def merge(catalog: Catalog, changes: Changes) -> None:
    changes.lsn = catalog.lsn + 1
    catalog.merge(changes)


def test_a_new_catalog_is_empty(catalog: Catalog) -> None:
    assert catalog.lsn == 0
    assert catalog.count_streams() == 0
    assert catalog.find(b"a") is None
    assert catalog.find_by_id(StreamId(7)) is None
    assert list(catalog.names(b"")) == []
    assert catalog.next_deadline() is None
    assert catalog.runs_from(StreamId(7), ordinal=0, limit=9) == []
    assert catalog.record("a") is None
    assert catalog.verify() == (0, 0, 0, None)


def test_a_stream_that_is_kept_for_its_forks_is_found_but_not_listed(catalog: Catalog) -> None:
    kept, listed = stream(b"a", image=b"kept", listed=False), stream(b"b")
    catalog.merge(Changes(1, streams=[kept, listed]))
    assert catalog.find(b"a") == catalog.find_by_id(kept.stream_id) == b"kept"
    assert list(catalog.names(b"")) == [(b"b", 5)]
    assert catalog.count_streams() == 2


def test_a_changed_stream_is_changed_in_all_it_says(catalog: Catalog) -> None:
    catalog.merge(Changes(1, streams=[stream(b"a", deadline_ms=10)]))
    changed = stream(b"a", deadline_ms=20, created_ms=6, image=b"new")
    catalog.merge(Changes(2, streams=[changed]))
    assert catalog.find(b"a") == b"new"
    assert catalog.due(10, 9) == []
    assert catalog.next_deadline() == 20
    assert list(catalog.names(b"")) == [(b"a", 6)]
    catalog.merge(Changes(3, streams=[stream(b"a", listed=False)]))
    assert list(catalog.names(b"")) == []
    assert catalog.next_deadline() is None


def test_a_name_can_be_given_again_in_the_changes_that_remove_it(catalog: Catalog) -> None:
    first, second = stream(b"a", 1, image=b"1"), stream(b"a", 2, image=b"2")
    catalog.merge(Changes(1, streams=[first]))
    catalog.merge(Changes(2, removed=[first.stream_id], streams=[second]))
    assert catalog.find(b"a") == b"2"
    assert catalog.find_by_id(first.stream_id) is None
    assert catalog.count_streams() == 1


def test_names_come_in_order_over_all_shards(catalog: Catalog) -> None:
    paths = [b"%03d" % number for number in range(500)]
    catalog.merge(Changes(1, streams=[stream(p, n) for n, p in enumerate(reversed(paths))]))
    assert [path for path, _ in catalog.names(b"")] == paths
    assert [path for path, _ in catalog.names(b"123", b"127")] == [b"124", b"125", b"126"]
    assert next(catalog.names(b"499"), None) is None


def test_names_taken_while_a_merge_happens_are_each_there_once(catalog: Catalog) -> None:
    rows = [stream(b"%04d" % number, number) for number in range(1000)]
    catalog.merge(Changes(1, streams=rows))
    names = catalog.names(b"")
    taken = list(islice(names, 300))
    catalog.merge(Changes(2, streams=[stream(b"%04d.5" % n, 2000 + n) for n in range(0, 1000, 9)]))
    taken += names
    assert [path for path, _ in taken if b"." not in path] == [row.path for row in rows]


def test_the_oldest_deadlines_come_first(catalog: Catalog) -> None:
    rows = [stream(b"%d" % number, number, deadline_ms=100 - number) for number in range(9)]
    catalog.merge(Changes(1, streams=rows))
    ids = [row.stream_id for row in rows]
    assert catalog.due(96, 2) == [ids[8], ids[7]]
    assert catalog.due(95, 99) == [ids[8], ids[7], ids[6], ids[5]]
    assert catalog.next_deadline() == 92


def test_runs_are_found_by_message_and_by_byte(catalog: Catalog) -> None:
    row = stream(b"a")
    runs = [run(row, 5, 5), run(row, 10, 1), run(row, 11, 9)]
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "one", *runs[:2]))
    merge(catalog, flush(row, "two", runs[2]))
    one, two = (segment(name, row.stream_id % SHARDS) for name in ("one", "two"))
    everything = [(one, runs[0]), (one, runs[1]), (two, runs[2])]
    for ordinal, skipped in [(0, 0), (5, 0), (9, 0), (10, 1), (11, 2), (19, 2), (20, 3), (99, 3)]:
        assert catalog.runs_from(row.stream_id, ordinal=ordinal, limit=9) == everything[skipped:]
    for byte, skipped in [(0, 0), (50, 0), (99, 0), (100, 1), (110, 2), (199, 2), (200, 3)]:
        assert catalog.runs_from(row.stream_id, byte=byte, limit=9) == everything[skipped:]
    assert catalog.runs_from(row.stream_id, ordinal=7, limit=2) == everything[:2]


def test_trimming_takes_the_runs_that_end_there(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "one", run(row, 0, 5), run(row, 5, 5)))
    merge(catalog, Changes(0, trims=[(row.stream_id, 4)]))
    assert len(catalog.runs_from(row.stream_id, ordinal=0, limit=9)) == 2
    merge(catalog, Changes(0, trims=[(row.stream_id, 5)]))
    assert [r.first_ordinal for _, r in catalog.runs_from(row.stream_id, ordinal=0, limit=9)] == [5]
    assert catalog.segments() == [SegmentUse(segment("one", row.stream_id % SHARDS), 50, 1)]
    merge(catalog, Changes(0, trims=[(row.stream_id, 99)]))
    assert catalog.segments() == []
    assert garbage_of(catalog) == [("one", 1000)]


def test_runs_of_a_stream_that_is_gone_are_dropped(catalog: Catalog) -> None:
    row, gone = stream(b"a", 1), stream(b"a", 2)
    changes = flush(row, "one", run(row, 0, 5), run(gone, 0, 5))
    changes.streams = [row]
    merge(catalog, changes)
    assert catalog.runs_from(gone.stream_id, ordinal=0, limit=9) == []
    assert list(catalog.live_runs(["one"])) == [("one", run(row, 0, 5))]
    merge(catalog, Changes(0, removed=[row.stream_id]))
    assert garbage_of(catalog) == [("one", 1000)]


def test_a_segment_of_which_no_run_is_wanted_is_garbage_at_once(catalog: Catalog) -> None:
    merge(catalog, flush(stream(b"a"), "one", run(stream(b"a"), 0, 5)))
    assert catalog.segments() == []
    assert garbage_of(catalog) == [("one", 1000)]
    catalog.forget_garbage(["one"])
    assert garbage_of(catalog) == []


def test_a_replacement_swaps_segments(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "one", run(row, 0, 5)))
    merge(catalog, flush(row, "two", run(row, 5, 5)))
    new = segment("new", row.stream_id % SHARDS)
    merge(
        catalog,
        Changes(0, replacements=[Replacement(["one", "two"], [new], [[run(row, 0, 10)]])]),
    )
    assert catalog.runs_from(row.stream_id, ordinal=7, limit=9) == [(new, run(row, 0, 10))]
    assert catalog.segments(new.shard) == [SegmentUse(new, 100, 1)]
    assert sorted(garbage_of(catalog)) == [("one", 1000), ("two", 1000)]


def test_a_replacement_of_what_is_dead_already_brings_nothing_back(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "old", run(row, 0, 5)))
    shard = row.stream_id % SHARDS
    first, second = (
        Replacement(["old"], [segment(name, shard)], [[run(row, 0, 5)]]) for name in "12"
    )
    merge(catalog, Changes(0, replacements=[first, second]))
    assert [use.segment.name for use in catalog.segments()] == ["1"]
    assert sorted(garbage_of(catalog)) == [("2", 1000), ("old", 1000)]


def test_of_several_old_segments_those_that_died_do_not_matter(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "dead", run(row, 0, 5)))
    merge(catalog, flush(row, "old", run(row, 5, 5)))
    merge(catalog, Changes(0, trims=[(row.stream_id, 5)]))
    new = segment("new", row.stream_id % SHARDS)
    late = Replacement(["dead", "old"], [new], [[run(row, 0, 5), run(row, 5, 5)]])
    merge(catalog, Changes(0, replacements=[late]))
    assert catalog.runs_from(row.stream_id, ordinal=0, limit=9) == [(new, run(row, 5, 5))]
    assert sorted(garbage_of(catalog)) == [("dead", 1000), ("old", 1000)]


def test_a_name_that_comes_again_is_the_same_segment(catalog: Catalog) -> None:
    """Commands never do that; if one did, the checkpoint must not fail for ever."""
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "x", run(row, 0, 5)))
    merge(catalog, flush(row, "x"))
    assert catalog.segments() == [SegmentUse(segment("x", row.stream_id % SHARDS), 50, 1)]
    merge(catalog, Changes(0, trims=[(row.stream_id, 5)]))
    assert garbage_of(catalog) == [("x", 1000)]
    merge(catalog, flush(row, "x", run(row, 5, 5)))
    assert garbage_of(catalog) == []
    assert catalog.verify().problem is None


def test_what_was_trimmed_during_a_compaction_does_not_come_back(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "old", run(row, 0, 5), run(row, 5, 5)))
    merge(catalog, Changes(0, trims=[(row.stream_id, 5)]))
    new = segment("new", row.stream_id % SHARDS)
    late = Replacement(["old"], [new], [[run(row, 0, 5), run(row, 5, 5)]])
    merge(catalog, Changes(0, replacements=[late]))
    assert catalog.runs_from(row.stream_id, ordinal=0, limit=9) == [(new, run(row, 5, 5))]


def test_segments_can_be_replaced_by_nothing(catalog: Catalog) -> None:
    row = stream(b"a")
    merge(catalog, Changes(0, streams=[row]))
    merge(catalog, flush(row, "old", run(row, 0, 5)))
    merge(catalog, Changes(0, replacements=[Replacement(["old", "gone"], [], [])]))
    assert catalog.segments() == []
    assert garbage_of(catalog) == [("old", 1000)]


def test_records_are_kept_replaced_and_deleted(catalog: Catalog) -> None:
    catalog.merge(Changes(1, records=[("s/1", b"1"), ("s/2", b"2"), ("t/1", b"3"), ("s/1", b"4")]))
    assert catalog.record("s/1") == b"4"
    assert list(catalog.records("s/")) == [("s/1", b"4"), ("s/2", b"2")]
    catalog.merge(Changes(2, records=[("s/1", None), ("s/2", b"")]))
    assert list(catalog.records("")) == [("s/2", b""), ("t/1", b"3")]


def test_changes_that_were_merged_are_not_merged_again(catalog: Catalog) -> None:
    row = stream(b"a")
    changes = flush(row, "one", run(row, 0, 5))
    changes.lsn, changes.streams = 7, [row]
    catalog.merge(changes)
    catalog.merge(changes)
    catalog.merge(Changes(6, removed=[row.stream_id]))
    assert catalog.lsn == 7
    assert catalog.find(b"a") == b"image"
    assert len(catalog.segments()) == 1


def test_many_rows_are_merged_as_one_is(catalog: Catalog) -> None:
    rows = [stream(b"%05d" % number, number) for number in range(2001)]
    changes = Changes(1, streams=rows)
    for shard in range(SHARDS):
        changes.segments.append(segment(f"{shard}", shard))
        changes.runs.append([run(row, 0, 5) for row in rows if row.stream_id % SHARDS == shard])
    catalog.merge(changes)
    assert catalog.verify() == (2001, 3, 2001, None)
    catalog.merge(Changes(2, trims=[(row.stream_id, 5) for row in rows[1:]]))
    assert catalog.verify() == (2001, 1, 1, None)
    catalog.merge(Changes(3, removed=[row.stream_id for row in rows[1:]]))
    assert catalog.verify() == (1, 1, 1, None)


def test_the_span_of_a_segment_tells_its_live_rows_and_streams(catalog: Catalog) -> None:
    row = stream(b"b/one")
    other = next(
        found
        for number in range(2, 100)
        if (found := stream(b"b/%d" % number, number)).stream_id % SHARDS == row.stream_id % SHARDS
    )
    shard = row.stream_id % SHARDS
    changes = flush(row, "x", run(row, 0, 4), run(other, 0, 3))
    catalog.merge(Changes(1, streams=[row, other], segments=changes.segments, runs=changes.runs))
    first, last = sorted((row.stream_id, other.stream_id))
    assert catalog.segment_spans(shard) == {"x": SegmentSpan(7, first, last)}
    catalog.merge(Changes(2, removed=[other.stream_id]))
    assert catalog.segment_spans(shard) == {"x": SegmentSpan(4, row.stream_id, row.stream_id)}
    assert catalog.segment_spans((shard + 1) % SHARDS) == {}


def test_live_runs_of_several_shards_come_in_the_order_of_streams(catalog: Catalog) -> None:
    rows = [stream(b"%d" % number, number) for number in range(40)]
    catalog.merge(Changes(1, streams=rows))
    for shard in range(SHARDS):
        mine = [row for row in rows if row.stream_id % SHARDS == shard]
        merge(catalog, flush(mine[0], f"{shard}", *(run(row, 0, 5) for row in mine)))
    found = list(catalog.live_runs(["0", "2"]))
    assert found == sorted(found, key=lambda one: one[1].stream_id)
    assert {name for name, _ in found} == {"0", "2"}
    assert [use.segment.shard for use in catalog.segments()] == [0, 1, 2]
