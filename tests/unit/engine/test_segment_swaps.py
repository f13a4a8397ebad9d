"""What a job hears of its swap, from a real catalog."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.engine.segment_swaps import SegmentSwaps
from millstream.errors import JobConflict
from millstream.formats.runs import Run, Segment
from millstream.state.commands import DeleteStream
from millstream.state.outcomes import Done, Outcome
from tests.unit.engine.cold_office import ColdOffice, run

NEW = Segment("segments/new.parquet", 0, 100, 10, 2, 0)


async def swap(office: ColdOffice, old: list[str], runs: list[Run]) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    swaps = SegmentSwaps(office.engine, office.checkpointer, office.catalog)
    swaps.swap(0, old, [NEW], [runs], told.set_result)
    return await asyncio.wait_for(told, 20)


async def fill(office: ColdOffice) -> list[str]:
    """Two streams, each in a segment of its own, which the catalog knows."""
    loop = asyncio.get_running_loop()
    office.flusher.start(loop)
    office.checkpointer.start(loop)
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
        assert await swap(office, old, all_runs(office)) is Done.ACCEPTED
        assert [use.segment.name for use in office.catalog.segments(0)] == [NEW.name]

    run(tmp_path, story)


def test_a_swap_that_came_too_late_is_not_told_as_done(tmp_path: Path) -> None:
    """All that one of them held was deleted while the job was at work: its segment is gone."""

    async def story(office: ColdOffice) -> None:
        old = await fill(office)
        runs = all_runs(office)
        stream = office.machine.find(b"_default/b")
        assert stream is not None
        await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        await office.checkpoint()
        outcome = await swap(office, old, runs)
        assert isinstance(outcome, JobConflict)
        assert "1 of its 2 segments" in str(outcome)
        assert [use.segment.name for use in office.catalog.segments(0)] == old[:1]

    run(tmp_path, story)
