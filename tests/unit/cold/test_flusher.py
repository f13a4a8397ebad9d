"""Hot content on its way to the object store, with real segments in a real folder."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from millstream.cold import flusher as flusher_module
from millstream.cold.flush_planning import FlushLimits
from millstream.cold.flusher import Flusher
from millstream.cold.pending_objects import PendingObjects
from millstream.engine.timings import Backoff, Timings
from millstream.errors import ShuttingDown
from millstream.limits import FLUSH_THREADS
from millstream.limits import PUBLISHED_RUN_OVERHEAD as OVERHEAD
from millstream.state.commands import DeleteStream, PublishRuns
from tests.unit.cold.cold_office import NEVER, STORE_ID, ColdOffice, run, until


def test_flushed_content_is_in_a_segment_and_published(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a")
        await office.append(b"a", b"one", b"two")
        other = await office.create(b"b")
        await office.append(b"b", b"three")
        await office.flush()
        assert office.machine.changes.hot_bytes == [0]
        assert office.journal.count(PublishRuns) == 1  # one segment for many streams
        [name] = office.stored()
        assert {segment.name for segment, _ in stream.log.runs or []} == {name}
        assert office.content_of(stream.log.runs or []) == b"onetwo"
        assert office.content_of(other.log.runs or []) == b"three"
        assert (office.flusher.segments, office.flusher.held_bytes) == (1, 9 + 7 + 2 * OVERHEAD)
        assert b"".join(stream.log.slices(0, 6)) == b"onetwo"  # as long as the budget allows

    run(tmp_path, story)


def test_each_shard_gets_a_segment_of_its_own(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        for number in range(20):
            await office.create(b"%d" % number)
            await office.append(b"%d" % number, b"x")
        used = [shard for shard, hot in enumerate(office.machine.changes.hot_bytes) if hot]
        await office.flush()
        assert office.machine.changes.hot_bytes == [0, 0, 0, 0]
        assert [int(name.split("/")[1]) for name in office.stored()] == used

    run(tmp_path, story, shards=4)


def test_a_full_shard_is_flushed_by_itself(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        await office.create(b"a")
        await office.append(b"a", bytes(99))
        assert office.journal.count(PublishRuns) == 0
        await office.append(b"a", b"x")
        await until(lambda: office.machine.changes.hot_bytes == [0])

    run(tmp_path, story, NEVER._replace(shard_bytes=100))


def test_old_content_is_flushed_however_little_it_is(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.create(b"a")
        await office.append(b"a", b"x")
        await office.start(office.flusher)
        await asyncio.sleep(0.05)
        assert office.journal.count(PublishRuns) == 0
        office.clock.advance(5000)
        await until(lambda: office.machine.changes.hot_bytes == [0])

    run(tmp_path, story, NEVER._replace(age_ms=5000), timings=Timings(flush_look=0.01))


def test_published_content_leaves_memory_when_the_budget_is_used(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        for path in (b"a", b"b"):
            await office.create(path)
            await office.append(path, bytes(300))
            await office.flush()
        a, b = office.machine.find(b"a"), office.machine.find(b"b")
        assert a is not None
        assert b is not None
        assert office.flusher.held_bytes == 900 + 2 * OVERHEAD
        assert (a.log.held_byte, b.log.held_byte) == (0, 0)
        await office.append(b"a", bytes(450))  # 600 + 450 are too many: the oldest goes
        await until(lambda: (a.log.held_byte, b.log.held_byte) == (300, 0))
        assert office.flusher.held_bytes == 450 + OVERHEAD
        assert len(b"".join(a.log.slices(300, 750))) == 450

    hot_bytes = 1300 + 2 * OVERHEAD
    run(tmp_path, story, FlushLimits(shard_bytes=10**6, age_ms=10**9, hot_bytes=hot_bytes))


def test_writers_wait_while_unpublished_content_fills_the_budget(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        (tmp_path / "cold" / "segments").touch()  # no folder: nothing can be stored
        await office.start(office.flusher)
        await office.create(b"a")
        await office.append(b"a", bytes(999))
        assert not office.engine.hot_budget.full_shards
        await office.append(b"a", b"x")
        assert office.engine.hot_budget.full_shards
        await asyncio.sleep(0.1)
        assert office.engine.hot_budget.full_shards
        assert office.machine.changes.hot_bytes == [1000]  # nothing is lost meanwhile
        (tmp_path / "cold" / "segments").unlink()
        await until(lambda: not office.engine.hot_budget.full_shards)
        assert office.machine.changes.hot_bytes == [0]

    (tmp_path / "cold").mkdir()
    run(tmp_path, story, FlushLimits(shard_bytes=10**6, age_ms=10**9, hot_bytes=1000))


def test_who_asked_for_a_flush_hears_that_the_store_failed(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        (tmp_path / "cold" / "segments").touch()
        await office.start(office.flusher)
        stream = await office.create(b"a")
        await office.append(b"a", b"one")
        assert isinstance(await office.flush_stream(stream, 100), OSError)
        await office.flush()  # calls back too
        (tmp_path / "cold" / "segments").unlink()
        assert await office.flush_stream(stream, 100) is None
        assert office.machine.changes.hot_bytes == [0]

    (tmp_path / "cold").mkdir()
    run(tmp_path, story)


@pytest.mark.parametrize(
    ("bytes_max", "published"),
    [(1, 3), (3, 3), (5, 3), (6, 6), (8, 6), (11, 11), (12, 11), (15, 15), (100, 15)],
)
def test_one_stream_is_flushed_up_to_a_message_and_at_least_one(
    tmp_path: Path, bytes_max: int, published: int
) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a", data=b"onetwo", ends=b"\3\0\0\0\6\0\0\0", count=2)
        await office.append(b"a", b"three", b"four")
        await office.create(b"b", data=b"other", count=1)
        assert await office.flush_stream(stream, bytes_max) is None
        assert stream.log.cold_byte == published
        assert office.content_of(stream.log.runs or []) == b"onetwothreefour"[:published]
        assert office.machine.changes.hot_bytes == [20 - published]

    run(tmp_path, story)


def test_a_stream_without_anything_to_flush_is_flushed_at_once(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        assert await office.flush_stream(await office.create(b"a"), 100) is None
        assert office.stored() == []

    run(tmp_path, story)


def test_flushes_of_one_shard_come_one_after_the_other(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a")
        await office.append(b"a", b"one", b"two", b"six")
        results = await asyncio.gather(*(office.flush_stream(stream, 3) for _ in range(4)))
        assert results == [None] * 4
        assert [run.size for _, run in stream.log.runs or []] == [3, 3, 3]

    run(tmp_path, story)


def test_a_flush_of_all_shards_ends_when_one_of_them_was_emptied_meanwhile(tmp_path: Path) -> None:
    """Its turn comes when there is nothing left in it to flush."""

    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        streams = [await office.create(b"%d" % number, data=b"x", count=1) for number in range(9)]
        flushing = asyncio.ensure_future(office.flush())
        await asyncio.sleep(0)
        for stream in streams:
            await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        async with asyncio.timeout(10):
            await flushing
        assert office.machine.changes.hot_bytes == [0, 0]

    run(tmp_path, story, shards=2)


def test_runs_of_a_stream_that_was_deleted_during_the_upload_belong_to_nobody(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.checkpointer, office.flusher)
        stream = await office.create(b"a", data=b"x", count=1)
        flushing = asyncio.ensure_future(office.flusher.flush_floor(1))
        await asyncio.sleep(0)
        office.engine.submit_and_forget(DeleteStream(office.clock.now_ms(), stream.stream_id))
        await flushing
        assert office.flusher.segments == 1
        assert office.machine.changes.hot_bytes == [0]
        await office.checkpoint()
        assert [garbage.name for garbage in office.catalog.garbage()] == office.stored()

    run(tmp_path, story)


def test_a_crash_between_upload_and_publication_leaves_an_object_nobody_refers_to(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a", data=b"x", count=1)
        office.journal.is_full = True  # the command never becomes durable
        await office.flush()
        assert len(office.stored()) == 1
        assert (stream.log.runs, stream.log.cold_byte) == (None, 0)
        assert office.machine.changes.hot_bytes == [1]
        assert office.flusher.held_bytes == 0
        office.journal.is_full = False
        await until(lambda: stream.log.cold_byte == 1)  # tried again, after the back-off
        assert len(office.stored()) == 2
        assert {segment.name for segment, _ in stream.log.runs or []} < set(office.stored())
        assert office.content_of(stream.log.runs or []) == b"x"

    run(tmp_path, story)


def test_published_content_of_an_earlier_run_of_the_server_counts_as_held(tmp_path: Path) -> None:
    """The log was replayed: appends and their publication, nothing in between left memory."""

    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a", data=bytes(600), count=1)
        await office.flush()
        limits, pending = NEVER._replace(hot_bytes=1300), PendingObjects()
        again = Flusher(office.engine, office.objects, STORE_ID, limits, pending, Timings())
        await office.start(again)
        assert again.held_bytes == 900 + OVERHEAD
        await office.append(b"a", bytes(450))
        await until(lambda: (again.held_bytes, stream.log.held_byte) == (0, 600))

    run(tmp_path, story)


def test_closing_ends_what_is_being_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "FLUSH_GATHER_STREAMS", 1)

    async def story(office: ColdOffice) -> None:
        failures: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        await office.start(office.flusher)
        for number in range(5):
            stream = await office.create(b"%d" % number, data=b"x", count=1)
        flushing = asyncio.ensure_future(office.flusher.flush_floor(1))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(office.flusher.flush_stream(stream, 100))
        await office.close()
        await flushing
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(ShuttingDown):
            await office.flusher.flush_stream(stream, 100)
        assert (failures, office.stored(), office.flusher.error) == ([], [], None)

    run(tmp_path, story)


def test_closing_waits_until_what_was_uploaded_is_published(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a", data=b"x", count=1)
        gate, put = threading.Event(), office.objects.put

        def slow_put(name: str, data: bytes) -> None:
            gate.wait(10)
            put(name, data)

        office.objects.put = slow_put  # type: ignore[method-assign]
        flushing = asyncio.ensure_future(office.flusher.flush_floor(1))
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(office.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.set()
        await closing
        assert stream.log.cold_byte == 1
        await flushing

    run(tmp_path, story)


def test_a_vanished_store_costs_nothing_but_time(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        await office.create(b"a", data=b"x", count=1)
        await office.flush()
        shutil.rmtree(tmp_path / "cold")
        await office.append(b"a", b"y")
        stream = office.machine.find(b"a")
        assert stream is not None
        assert b"".join(stream.log.slices(0, 2)) == b"xy"

    run(tmp_path, story)


def test_what_failed_is_tried_again_after_the_pause_and_not_before(tmp_path: Path) -> None:
    """However little it is, and however often the flusher is woken meanwhile."""

    async def story(office: ColdOffice) -> None:
        await office.start(office.flusher)
        stream = await office.create(b"a", data=b"x", count=1)
        office.journal.is_full = True
        await office.flush()
        office.journal.is_full = False
        for _ in range(20):
            office.flusher._due.set()
            await office.flush()
            await asyncio.sleep(0.002)
        assert len(office.stored()) == 1
        await until(lambda: stream.log.cold_byte == 1)
        assert len(office.stored()) == 2

    run(tmp_path, story, timings=Timings(flush_retry=Backoff(1.5, 1.5), flush_look=3600.0))


def test_as_many_shards_are_flushed_at_once_as_there_are_threads(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        gate, put, under_way = threading.Event(), office.objects.put, set[str]()

        def slow_put(name: str, data: bytes) -> None:
            under_way.add(name)
            gate.wait(10)
            put(name, data)

        office.objects.put = slow_put  # type: ignore[method-assign]
        await office.start(office.flusher)
        for number in range(20):
            await office.create(b"%d" % number, data=b"x", count=1)
        await until(lambda: len(under_way) == FLUSH_THREADS)
        assert len(office.flusher._begun) == FLUSH_THREADS
        gate.set()
        await until(lambda: office.machine.changes.hot_bytes == [0] * 4)

    run(tmp_path, story, NEVER._replace(shard_bytes=1), shards=4)
