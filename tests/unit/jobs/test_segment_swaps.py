"""What a job hears of its swap, from a real catalog."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.errors import JobConflict
from millstream.formats.runs import Run, Segment
from millstream.jobs.segment_swaps import SegmentSwaps
from millstream.state.commands import DeleteStream
from tests.unit.cold.cold_office import ColdOffice, run

NEW = Segment("segments/new.parquet", 0, 100, 10, 2, 0)


async def swap(
    office: ColdOffice, old: list[str], runs: list[Run], segment: Segment = NEW, seen: int = 0
) -> None:
    swaps = SegmentSwaps(office.engine, office.checkpointer)
    async with asyncio.timeout(20):
        await swaps.swap(0, old, [segment], [runs], seen)


async def fill(office: ColdOffice) -> list[str]:
    """Two streams, each in a segment of its own, which the catalog knows."""
    await office.start(office.checkpointer, office.flusher)
    for path in (b"_default/a", b"_default/b"):
        await office.create(path)
        await office.append(path, b"message")
        await office.flush()
    await office.checkpoint()
    return [use.segment.name for use in office.catalog.segments(0)]


def all_runs(office: ColdOffice) -> list[Run]:
    catalog = office.catalog
    return [found for use in catalog.segments(0) for found in catalog.runs_in(use.segment)]


def test_a_swap_is_told_once_the_catalog_has_it(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        old = await fill(office)
        assert len(old) == 2
        await swap(office, old, all_runs(office))
        assert [use.segment.name for use in office.catalog.segments(0)] == [NEW.name]

    run(tmp_path, story)


def test_what_died_while_a_job_was_at_work_stays_dead(tmp_path: Path) -> None:
    """All that one of them held was deleted: its segment is gone, and the swap happens."""

    async def story(office: ColdOffice) -> None:
        old = await fill(office)
        runs = all_runs(office)
        stream = office.machine.find(b"_default/b")
        assert stream is not None
        await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        await office.checkpoint()
        await swap(office, old, runs)
        assert [use.segment.name for use in office.catalog.segments(0)] == [NEW.name]
        assert all_runs(office) == runs[:1]
        assert sorted(one.name for one in office.catalog.garbage()) == sorted(old)

    run(tmp_path, story)


def test_a_swap_that_came_too_late_is_refused(tmp_path: Path) -> None:
    """Another job was faster: what this one wrote is garbage, what the other wrote lives."""

    async def story(office: ColdOffice) -> None:
        old = await fill(office)
        runs, late = all_runs(office), Segment("segments/late.parquet", 0, 100, 10, 2, 0)
        await swap(office, old, runs)
        with pytest.raises(JobConflict, match="was replaced by another swap"):
            await swap(office, old[:1], runs[:1], late)
        await office.checkpoint()
        assert [use.segment.name for use in office.catalog.segments(0)] == [NEW.name]
        assert late.name in [one.name for one in office.catalog.garbage()]

    run(tmp_path, story)


def test_the_name_of_a_segment_on_its_way_to_the_catalog_is_taken(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        old = await fill(office)
        runs = all_runs(office)
        await office.append(b"_default/a", b"more")
        await office.flush()
        [coming] = office.machine.changes.segments.values()
        with pytest.raises(JobConflict, match="in use"):
            await swap(office, old, runs, coming)

    run(tmp_path, story)
