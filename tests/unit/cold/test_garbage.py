from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.cold.garbage import ORPHAN, SUPERSEDED, UNREFERRED
from millstream.engine.timings import Timings
from millstream.state.commands import CreateStream, PublishSnapshot
from millstream.state.stream import Stream
from tests.unit.cold.cold_office import until
from tests.unit.cold.tier_world import PATIENCE, TierWorld, tier

SEGMENT = "segments/0001/1700000000000-0badcafe.parquet"


def play(
    folder: Path, story: Callable[[TierWorld], Awaitable[None]], timings: Timings = PATIENCE
) -> None:
    async def whole() -> None:
        async with tier(folder, timings) as world:
            await story(world)

    asyncio.run(whole())


async def publish(world: TierWorld, stream: Stream, suffix: str = "00") -> str:
    """A snapshot at the tail; the name of its object."""
    log = stream.log
    blob = f"{stream.stream_id}-{log.tail_ordinal}-{suffix}"
    world.objects.put(f"snapshots/{blob}", b"snapshot")
    place = (stream.stream_id, log.tail_ordinal, log.tail_byte)
    command = PublishSnapshot(world.clock.now_ms(), *place, blob, b"text/plain", 8, blob)
    await world.submit(command)
    return f"snapshots/{blob}"


def test_a_segment_waits_until_both_manifests_are_beyond_it(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        stream = await world.create(b"a/1")
        await world.flush(stream)
        [name] = world.names("segments")
        await world.upload()
        await world.delete(stream)
        for _ in range(2):  # the next upload is the first without it, the one after the second
            assert await world.collect() == []
            assert world.names("segments") == [name]
            await world.create(b"a/other")
            await world.upload()
            report = await world.look()
        assert [item.reason for item in report.ready] == [UNREFERRED]
        assert await world.collect() == [name]
        assert world.names("segments") == []
        assert (await world.look()) == ([], [])

    play(tmp_path, story)


def test_a_superseded_snapshot_waits_in_the_same_way(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        stream = await world.create(b"a/1")
        first = await publish(world, stream)
        await world.upload()
        await world.append(stream, b"more")
        second = await publish(world, stream)
        [(item, waits_for)] = (await world.look()).waiting
        assert (item.name, item.reason) == (first, SUPERSEDED)
        assert waits_for == f"both copies of the catalog to be at {item.lsn} or later"
        await world.upload()
        assert await world.collect() == []
        await world.append(stream, b"more")
        await world.upload()
        assert await world.collect() == [first]
        assert world.names("snapshots") == [second]

    play(tmp_path, story)


def test_the_grace_counts_from_the_checkpoint(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        stream = await world.create(b"a/1")
        await publish(world, stream)
        await world.delete(stream)
        await world.upload()
        await world.create(b"a/2")
        await world.upload()
        [(_, waits_for)] = (await world.look()).waiting
        assert waits_for == "3600 seconds of grace for readers"
        assert await world.collect() == []

    play(tmp_path, story, replace(PATIENCE, garbage_grace=3600.0))


def test_an_orphan_is_found_and_goes_after_two_uploads(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        world.objects.put(SEGMENT, b"x")
        world.objects.put("snapshots/3-1-00", b"y")
        await world.find_orphans()
        waiting = (await world.look()).waiting
        assert {item.name for item, _ in waiting} == {SEGMENT, "snapshots/3-1-00"}
        assert {item.reason for item, _ in waiting} == {ORPHAN}
        for number in range(2):
            await world.create(b"a/%d" % number)
            await world.upload()
        assert sorted(await world.collect()) == [SEGMENT, "snapshots/3-1-00"]
        assert world.names("segments") == world.names("snapshots") == []

    play(tmp_path, story)


def test_young_objects_are_no_orphans(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        now_ms = world.clock.now_ms()
        world.objects.put(f"segments/0001/{now_ms - 3_599_000:013d}-00000000.parquet", b"young")
        world.objects.put(f"segments/0001/{now_ms - 3_601_000:013d}-00000000.parquet", b"old")
        await world.find_orphans()
        [(item, _)] = (await world.look()).waiting
        assert item.size == 3

    play(tmp_path, story, replace(PATIENCE, orphan_age=3600.0))


def test_what_is_referred_to_anywhere_is_no_orphan(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        stored, fresh = await world.create(b"a/stored"), await world.create(b"a/fresh")
        await world.flush(stored)
        await publish(world, stored)
        await world.checkpoint()
        world.machine.residents.evict(stored)
        await world.flush(fresh)
        await publish(world, fresh)
        world.pending.add(SEGMENT)
        world.objects.put(SEGMENT, b"on its way")
        await world.find_orphans()
        names = {item.name for item, _ in (await world.look()).waiting}
        assert names.isdisjoint(world.names("snapshots"))
        assert SEGMENT not in names
        assert world.machine.by_id.keys() == {fresh.stream_id}, "looking brings nobody back"
        await world.checkpoint()
        await world.find_orphans()
        assert SEGMENT not in {item.name for item, _ in (await world.look()).waiting}
        world.pending.remove(SEGMENT)
        await world.find_orphans()
        assert SEGMENT in {item.name for item, _ in (await world.look()).waiting}

    play(tmp_path, story)


def test_a_blob_is_kept_for_the_fork_that_shares_it_when_its_first_owner_is_gone(
    tmp_path: Path,
) -> None:
    async def story(world: TierWorld) -> None:
        source = await world.create(b"a/source")
        shared = await publish(world, source)
        fork = CreateStream(world.clock.now_ms(), b"a/fork", b"text/plain", fork_from=b"a/source")
        await world.submit(fork)
        await world.delete(source)
        await world.checkpoint()
        await world.find_orphans()
        assert (await world.look()) == ([], [])
        found = world.machine.find(b"a/fork")
        assert found is not None
        await world.delete(found)
        [(item, _)] = (await world.look()).waiting
        assert (item.name, item.reason) == (shared, SUPERSEDED)

    play(tmp_path, story)


def test_segments_of_a_job_under_way_are_no_orphans(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        world.objects.put(SEGMENT, b"x")
        world.jobs.started_ms = 1_700_000_000_000
        await world.find_orphans()
        assert (await world.look()) == ([], [])
        world.jobs.started_ms = None
        await world.find_orphans()
        for number in range(2):
            await world.create(b"a/%d" % number)
            await world.upload()
        world.jobs.started_ms = 1_600_000_000_000  # one that began before: it may be its after all
        assert await world.collect() == []
        assert world.names("segments") == [SEGMENT]

    play(tmp_path, story)


def test_a_segment_that_a_job_reads_waits_for_the_job(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        stream = await world.create(b"a/1")
        await world.flush(stream)
        [name] = world.names("segments")
        world.jobs.names = {name}
        await world.delete(stream)
        for number in range(2):
            await world.create(b"a/other%d" % number)
            await world.upload()
        report = await world.look()
        assert [(item.name, reason) for item, reason in report.waiting] == [
            (name, "the job of the pipeline that reads it")
        ]
        assert await world.collect() == []
        world.jobs.names = set()
        assert await world.collect() == [name]

    play(tmp_path, story)


def test_what_could_not_be_deleted_is_deleted_later(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        world.objects.put(SEGMENT, b"x")
        await world.find_orphans()
        for number in range(2):
            await world.create(b"a/%d" % number)
            await world.upload()
        path = tmp_path / "cold" / SEGMENT
        path.unlink()
        path.mkdir()
        with pytest.raises(OSError, match="cannot delete"):
            await world.collect()
        path.rmdir()
        path.write_bytes(b"x")
        assert await world.collect() == [SEGMENT]
        assert not path.exists()

    play(tmp_path, story)


def test_a_stop_lets_a_deletion_that_is_under_way_come_to_its_end(tmp_path: Path) -> None:
    """The catalog hears of what is gone, and nothing else is begun."""
    reached, opened = threading.Event(), threading.Event()

    async def story(world: TierWorld) -> None:
        for number in range(2):
            stream = await world.create(b"a/%d" % number)
            await world.flush(stream)
            await world.delete(stream)
        for number in range(2):
            await world.create(b"a/other%d" % number)
            await world.upload()
        delete = world.objects.delete

        def slow_delete(names: list[str]) -> None:
            reached.set()
            assert opened.wait(20)
            delete(names)

        world.objects.delete = slow_delete  # type: ignore[method-assign,assignment]
        world.garbage.hurry()
        await until(reached.is_set)
        asyncio.get_running_loop().call_later(0.01, opened.set)

    async def look_again(world: TierWorld) -> None:
        assert await world.look() == ([], [])
        assert world.names("segments") == []

    play(tmp_path, story)
    play(tmp_path, look_again)
