"""Which streams leave memory, with a real catalog for them to rest in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.cold import eviction as eviction_module
from millstream.engine.timings import Backoff, Timings
from millstream.state.commands import DeleteStream, TouchStream
from tests.unit.cold.cold_office import ColdOffice, run, until
from tests.unit.engine.world import FakeWatcher


async def fill(office: ColdOffice, count: int) -> None:
    for number in range(count):
        await office.create(b"%d" % number, data=b"x", count=1)


def resident(office: ColdOffice) -> list[bytes]:
    return sorted(office.machine.residents.by_path)


def test_streams_at_rest_leave_memory_down_to_the_number_that_may_stay(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 6)
        await office.flush()
        assert len(resident(office)) == 6
        await office.checkpoint()
        assert resident(office) == [b"3", b"4", b"5"]
        assert len(office.machine.names) == 6
        assert list(office.machine.names.keys_from(b"")) == [b"%d" % n for n in range(6)]

    run(tmp_path, story, streams_max=3)


def test_unpublished_content_keeps_a_stream_in_memory(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 3)
        await office.checkpoint()
        assert len(resident(office)) == 3
        await office.flush()
        await office.checkpoint()
        assert resident(office) == [b"2"]

    run(tmp_path, story, streams_max=1)


def test_a_stream_that_changed_meanwhile_stays_until_the_next_checkpoint(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 2)
        await office.flush()
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.machine.changes.epoch == 2, seconds=0)
        await office.append(b"0", b"later")
        await checkpoint
        assert resident(office) == [b"0"]
        await office.flush()
        await office.checkpoint()
        assert resident(office) == []

    run(tmp_path, story, streams_max=0)


def test_a_stream_that_is_watched_stays(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 3)
        stream = office.machine.residents.by_path[b"1"]
        watcher = FakeWatcher(stream)
        office.engine.watch(stream, watcher)
        await office.flush()
        await office.checkpoint()
        assert resident(office) == [b"1"]
        office.engine.unwatch(stream, watcher)
        office.eviction.check()
        await until(lambda: resident(office) == [])

    run(tmp_path, story, streams_max=0)


def test_a_renewal_only_memory_knows_of_is_journaled_before_the_stream_goes(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        stream = await office.create(b"a", ttl_ms=60_000)
        office.clock.advance(1000)
        office.engine.lifetimes.renew(stream, office.clock.now_ms())
        renewed_ms = stream.accessed_ms
        assert office.journal.count(TouchStream) == 0
        await office.checkpoint()
        await asyncio.sleep(0)
        assert office.journal.count(TouchStream) == 1
        assert resident(office) == [b"a"]
        await office.checkpoint()
        assert resident(office) == []
        del stream
        again = office.machine.find(b"a")
        assert again is not None
        assert again.touched_ms == renewed_ms
        assert office.catalog.next_deadline() == renewed_ms + 60_000

    run(tmp_path, story, streams_max=0)


def test_a_stream_that_came_back_may_go_again(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 2)
        await office.flush()
        await office.checkpoint()
        for _ in range(3):
            assert office.machine.find(b"0") is not None
            assert resident(office) == [b"0"]
            await until(lambda: resident(office) == [])

    run(tmp_path, story, streams_max=0)


def test_what_leaves_memory_reads_the_same_when_it_comes_back(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 1)
        await office.append(b"0", b"yz")
        await office.flush()
        await office.checkpoint()
        stream = office.machine.find(b"0")
        assert stream is not None
        assert stream.tail == "0000000000000002_0000000000000003"
        runs = office.catalog.runs_from(stream.stream_id, ordinal=0, limit=9)
        assert office.content_of(runs) == b"xyz"
        await office.append(b"0", b"!")
        assert b"".join(stream.log.slices(3, 4)) == b"!"

    run(tmp_path, story, streams_max=0)


def test_streams_that_all_may_stay_are_not_written_down_again_and_again(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 3)
        for number in range(20):
            await office.append(b"%d" % (number % 3), b"x")
            await office.checkpoint()
        assert office.eviction.candidates <= 3

    run(tmp_path, story, streams_max=10)


def test_streams_that_are_gone_for_good_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_module, "CANDIDATES_ABSENT_MAX", 5)

    async def story(office: ColdOffice) -> None:
        await office.start_all()
        for number in range(20):
            stream = await office.create(b"%d" % number)
            await office.checkpoint()
            await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        assert office.eviction.candidates <= 8

    run(tmp_path, story, streams_max=10)


def test_an_error_behind_the_last_eviction_is_got_over(tmp_path: Path) -> None:
    """Nothing is left to be evicted then, and the service must not count as failing for ever."""

    async def story(office: ColdOffice) -> None:
        await office.start_all()
        await fill(office, 2)
        await office.flush()
        evict, errors = office.eviction._evict_some, [KeyError("injected")]

        def evict_and_fail() -> None:
            evict()
            if not resident(office) and errors:
                raise errors.pop()

        office.eviction._evict_some = evict_and_fail  # type: ignore[method-assign]
        await office.checkpoint()
        faults = office.engine.faults
        await until(lambda: faults.counts["eviction"])
        await until(lambda: not faults.failing())
        assert resident(office) == []

    run(tmp_path, story, streams_max=0, timings=Timings(eviction_retry=Backoff(0.01, 0.01)))
