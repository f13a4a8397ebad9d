from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from millstream.formats.changes import Changes, StreamRow
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.inspection import holdings
from millstream.inspection.holdings import NONE, Holdings, HoldingsCount
from millstream.limits import COUNTED_STREAMS_KEPT
from millstream.state.stream import Stream
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_changes import SegmentShare
from tests.unit.tier.catalog_world import open_catalog

ID = StreamId(3)


def stream() -> Stream:
    return Stream(ID, b"a/b", b"text/plain", 0)


def segment(number: int, created_ms: int = 5) -> Segment:
    return Segment(f"segments/0000/{number:013d}-00000000.parquet", 0, 100, 10, 9, created_ms)


def run(first: int, count: int = 2) -> Run:
    """Ten bytes a message."""
    return Run(ID, first, first * 10, count, count * 10, 0, 0, 0)


def finish(steps: Generator[None, None, Holdings]) -> tuple[Holdings, int]:
    """What came out, and in how many steps."""
    for number in range(1, 1000):
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, number
    raise AssertionError("it does not end")


class Shelf:
    """A catalog with these runs, each in a segment of its own, that counts its questions."""

    def __init__(self, runs: int = 0) -> None:
        self.runs = runs
        self.change = 1
        self.asked = 0

    def shares_from(
        self, stream_id: StreamId, after_ordinal: int, limit: int
    ) -> list[SegmentShare]:
        self.asked += 1
        first = after_ordinal + 1
        numbers = range(first, min(first + limit, self.runs))
        return [SegmentShare(number, number, 1, 1, 10, number, number + 1) for number in numbers]

    def change_of(self, stream_id: StreamId) -> int:
        return self.change

    def disk_bytes(self) -> int:
        return 77


def test_without_a_cold_tier_nothing_is_held() -> None:
    count = HoldingsCount(None)
    assert finish(count.steps(stream())) == (NONE, 1)
    assert count.catalog_bytes() == 0


def test_a_long_history_is_counted_in_many_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "COUNTED_RUNS_AT_ONCE", 10)
    shelf = Shelf(runs=95)
    counted, steps = finish(HoldingsCount(shelf).steps(stream()))
    assert counted == Holdings(95, 95, 95, 950, 94, 95)
    assert (steps, shelf.asked) == (10, 10)


def test_what_was_counted_is_kept_until_the_catalog_changes() -> None:
    shelf = Shelf(runs=3)
    count = HoldingsCount(shelf)
    for _ in range(3):
        assert finish(count.steps(stream()))[0].runs == 3
    assert shelf.asked == 1
    shelf.runs, shelf.change = 4, 2
    assert finish(count.steps(stream()))[0].runs == 4
    assert shelf.asked == 2


def test_no_more_counts_are_kept_than_agreed() -> None:
    shelf = Shelf(runs=1)
    count = HoldingsCount(shelf)
    for number in range(COUNTED_STREAMS_KEPT + 10):
        finish(count.steps(Stream(StreamId(number), b"a", b"text/plain", 0)))
    assert len(count._kept) == COUNTED_STREAMS_KEPT


def test_what_the_catalog_has_not_heard_of_is_counted_once() -> None:
    shelf, one = Shelf(runs=2), stream()
    one.log.runs = [(segment(1), run(0)), (segment(2, 9), run(2)), (segment(2, 9), run(4))]
    counted, _ = finish(HoldingsCount(shelf).steps(one))
    assert counted == Holdings(3, 4, 6, 60, 9, 6)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(tmp_path / "catalog", 1)


def test_a_real_catalog_before_and_behind_a_checkpoint(catalog: Catalog) -> None:
    count, one = HoldingsCount(catalog), stream()
    published = [(segment(1, 4), run(0)), (segment(1, 4), run(2)), (segment(2, 8), run(4))]
    one.log.runs = published.copy()
    expected = Holdings(2, 3, 6, 60, 8, 6)
    assert finish(count.steps(one))[0] == expected
    catalog.merge(
        Changes(
            1,
            streams=[StreamRow(ID, b"a/b", None, True, 5, b"image")],
            segments=[segment(1, 4), segment(2, 8)],
            runs=[[run(0), run(2)], [run(4)]],
        )
    )
    assert finish(count.steps(one))[0] == expected  # the log has not let go of them yet
    one.log.runs = None
    assert finish(count.steps(one))[0] == expected
    catalog.merge(Changes(2, trims=[(ID, 4)]))
    assert finish(count.steps(one))[0] == Holdings(1, 1, 2, 20, 8, 6)
    assert count.catalog_bytes() > 10_000
    catalog.close()
