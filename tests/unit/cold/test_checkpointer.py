"""Checkpoints beside a running engine, with a real catalog."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from millstream.cold import checkpointer as checkpointer_module
from millstream.cold.checkpointer import CLOSING_WAL_BYTES
from millstream.engine.timings import Backoff, Timings
from millstream.errors import ShuttingDown
from millstream.formats.changes import Changes
from millstream.formats.layout import StreamId
from millstream.journal.checkpoints import Checkpoint, load_checkpoint
from millstream.limits import CHECKPOINT_FLUSH_BYTES
from millstream.state.commands import DeleteStream, NoOp, PublishRuns
from millstream.state.images import restore_hot, restore_stream
from tests.unit.cold.cold_office import FOLDER, STORE_ID, ColdOffice, run, until

WAL_BYTES = 1000
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as found:
        yield found


def loaded(office: ColdOffice) -> Checkpoint:
    found = load_checkpoint(office.disk.crash(), FOLDER, STORE_ID, 0)
    assert found is not None
    return found


async def write(office: ColdOffice, log_bytes: int) -> None:
    """One committed batch that made the log grow by so much."""
    office.journal.stats.bytes_written += log_bytes
    await office.append(b"a", b"x")


def _wait(gate: threading.Event) -> None:
    gate.wait(10)


async def rest(office: ColdOffice) -> None:
    """Whatever was due has been done."""
    await asyncio.sleep(0.02)
    await until(lambda: not office.checkpointer._is_running)


async def start(office: ColdOffice) -> None:
    await office.start(office.checkpointer, office.flusher)


# When


def test_a_checkpoint_is_written_once_the_log_has_grown_enough_and_again_after_that(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        await write(office, WAL_BYTES - 1)
        await rest(office)
        assert office.journal.retired == []
        await write(office, 1)
        await until(lambda: office.journal.retired == [3])
        assert loaded(office).lsn == office.engine.applied_lsn == office.catalog.lsn == 3
        await write(office, WAL_BYTES - 1)
        await rest(office)
        assert office.journal.retired == [3]
        await write(office, 1)
        await until(lambda: office.journal.retired == [3, 5])

    run(tmp_path, story, wal_bytes=WAL_BYTES)


def test_a_checkpoint_is_written_once_many_streams_have_changed(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        for path in (b"a", b"b"):
            await office.create(path)
        await office.append(b"a", b"x")
        await rest(office)
        assert office.journal.retired == []
        await office.create(b"c")
        await until(lambda: office.journal.retired == [4])

    run(tmp_path, story, dirty_streams=3)


def test_what_was_left_in_the_log_of_an_earlier_run_counts(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        office.journal.stats.bytes_written += 10
        await office.create(b"a")
        await until(lambda: office.journal.retired == [1])

    run(tmp_path, story, wal_bytes=WAL_BYTES, recovered=WAL_BYTES - 10)


def test_however_little_changed_a_checkpoint_is_written_after_a_while(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.submit(NoOp(office.clock.now_ms()))
        await until(lambda: office.journal.retired == [1])
        await asyncio.sleep(0.1)
        assert office.checkpointer.count == 1  # nothing happened since

    run(tmp_path, story, timings=Timings(checkpoint_interval=0.02))


def test_the_log_is_retired_only_once_the_checkpoint_is_stored_and_one_runs_at_a_time(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        gate = threading.Event()
        office.disk.before_step = lambda _: _wait(gate)
        await write(office, WAL_BYTES)
        await until(lambda: office.checkpointer._is_running)
        await asyncio.sleep(0.01)
        await write(office, 10 * WAL_BYTES)
        await write(office, 10 * WAL_BYTES)
        assert office.journal.retired == []
        gate.set()  # the next one is due, and begins as soon as the first has ended
        await until(lambda: office.journal.retired == [2, 4])
        await rest(office)
        assert office.checkpointer.count == 2

    run(tmp_path, story, wal_bytes=WAL_BYTES)


def test_the_stored_state_is_the_one_of_its_lsn_whatever_comes_meanwhile(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        stream = await office.create(b"a")
        gate = threading.Event()
        office.disk.before_step = lambda _: _wait(gate)
        await write(office, WAL_BYTES)
        await asyncio.sleep(0.01)
        await office.append(b"a", b"y")
        await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        gate.set()
        await until(lambda: office.journal.retired == [2])
        found = loaded(office)
        assert (found.lsn, [row.path for row in found.changes.streams]) == (2, [b"a"])
        assert [block[0] for content in found.hot for block in content.blocks] == [b"x"]

    run(tmp_path, story, wal_bytes=WAL_BYTES)


# With a catalog and a flusher


def test_catalog_and_file_together_are_the_state(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        stream = await office.create(b"a", ttl_ms=5000)
        await office.append(b"a", b"one", b"two")
        await office.flush_stream(stream, 3)
        await office.checkpoint()
        image = office.catalog.find(b"a")
        assert image is not None
        again, missing_bytes = restore_stream(image)
        [hot] = loaded(office).hot
        restore_hot(again.log, hot)
        assert missing_bytes == 3
        assert again.tail == stream.tail
        assert b"".join(again.log.slices(3, 6)) == b"two"
        runs = office.catalog.runs_from(stream.stream_id, ordinal=0, limit=10)
        assert office.content_of(runs) == b"one"
        assert stream.log.runs is None  # the catalog has them now
        assert office.catalog.lsn == loaded(office).lsn == office.engine.applied_lsn

    run(tmp_path, story)


def test_much_hot_content_is_flushed_first_and_little_goes_into_the_file(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"large", data=bytes(CHECKPOINT_FLUSH_BYTES), count=1)
        await office.checkpoint()
        assert loaded(office).hot == []
        assert len(office.stored()) == 1
        await office.create(b"small", data=b"x", count=1)
        await office.checkpoint()
        assert len(loaded(office).hot) == 1
        assert len(office.stored()) == 1

    run(tmp_path, story)


def test_a_state_is_taken_in_pieces_while_appends_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer_module, "CAPTURE_STREAMS", 1)

    async def story(office: ColdOffice) -> None:
        await start(office)
        paths = [b"%02d" % number for number in range(20)]
        for path in paths:
            await office.create(path, data=b"before", count=1)
        lsn = office.engine.applied_lsn
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.machine.changes.epoch == 2, seconds=0)
        for path in reversed(paths):
            await office.append(path, b"after")
        await checkpoint
        found = loaded(office)
        assert found.lsn == lsn
        assert [content.blocks[0][0] for content in found.hot] == [b"before"] * 20
        await office.checkpoint()
        joined = [b"".join(block[0] for block in content.blocks) for content in loaded(office).hot]
        assert joined == [b"beforeafter"] * 20

    run(tmp_path, story, shards=3)


def test_what_failed_is_tried_again_until_it_is_stored(
    tmp_path: Path, logs: list[structlog.typing.EventDict]
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a", data=b"x", count=1)
        office.disk.failing["create"] = FULL
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.checkpointer._upkeep.failures >= 3)
        assert office.journal.retired == []
        await office.create(b"b")  # is not in the checkpoint that is being tried
        office.disk.failing.clear()
        await checkpoint
        assert office.journal.retired == [1]
        assert office.catalog.find(b"b") is None
        await office.checkpoint()
        assert office.catalog.find(b"b") is not None
        assert "checkpoint failed; the log is kept" in {entry["event"] for entry in logs}

    run(tmp_path, story)


def test_a_merge_that_fails_keeps_the_log_and_is_tried_again(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a", data=b"x", count=1)
        merge, failures = office.catalog.merge, [FULL, FULL]

        def failing(changes: Changes) -> None:
            if failures:
                raise failures.pop()
            merge(changes)

        office.catalog.merge = failing  # type: ignore[method-assign]
        await office.checkpoint()
        assert failures == []
        assert office.journal.retired == [1]
        assert office.catalog.lsn == 1

    run(tmp_path, story)


def test_those_who_are_told_hear_of_it_when_it_is_on_the_store(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        told: list[tuple[int, bool]] = []
        office.checkpointer.after.append(
            lambda capture: told.append((capture.lsn, office.catalog.find(b"a") is not None))
        )
        stream = await office.create(b"a")
        await office.checkpoint()
        await office.submit(DeleteStream(office.clock.now_ms(), stream.stream_id))
        await office.checkpoint()
        assert told == [(1, True), (2, False)]

    run(tmp_path, story)


def test_who_asks_during_a_checkpoint_gets_one_of_all_that_is_applied_by_then(
    tmp_path: Path,
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        first = asyncio.ensure_future(office.checkpoint())
        await asyncio.sleep(0)
        await office.create(b"b")
        await office.checkpoint()
        assert first.done()
        assert office.catalog.find(b"b") is not None
        assert office.checkpointer.count == 2

    run(tmp_path, story)


# The end


def grow_log(office: ColdOffice, log_bytes: int) -> None:
    office.journal.stats.bytes_written += log_bytes


@pytest.mark.parametrize(
    ("log_bytes", "expected"), [(CLOSING_WAL_BYTES - 1, [1]), (CLOSING_WAL_BYTES, [1, 2])]
)
def test_a_stop_with_much_to_replay_writes_a_last_checkpoint(
    tmp_path: Path, log_bytes: int, expected: list[int]
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        await office.checkpoint()
        grow_log(office, log_bytes)
        await office.submit(NoOp(office.clock.now_ms()))
        await office.close()
        assert office.journal.retired == expected

    run(tmp_path, story)


def test_a_stop_tells_the_catalog_what_it_does_not_know(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        await office.close()
        assert office.journal.retired == [1]

    run(tmp_path, story)


def test_closing_waits_for_the_running_checkpoint(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.checkpointer._is_running, seconds=0)
        await office.close()
        assert office.journal.retired == [1]
        await checkpoint
        grow_log(office, 10**9)
        await office.create(b"b")
        await asyncio.sleep(0.01)
        assert office.journal.retired == [1]

    run(tmp_path, story)


def test_a_server_whose_disk_is_full_can_be_stopped(tmp_path: Path) -> None:
    """What cannot be stored is in the log; a later checkpoint without it would not be whole."""

    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        office.disk.failing["create"] = FULL
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await asyncio.sleep(0.05)
        grow_log(office, 10 * CLOSING_WAL_BYTES)
        async with asyncio.timeout(10):
            await office.close()
            await checkpoint  # the log has it
        assert office.journal.retired == []
        assert load_checkpoint(office.disk.crash(), FOLDER, STORE_ID, 0) is None

    run(tmp_path, story)


def test_a_stop_gives_up_after_one_failure(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        grow_log(office, CLOSING_WAL_BYTES)
        office.disk.failing["rename"] = FULL
        async with asyncio.timeout(10):
            await office.close()
        assert office.journal.retired == []

    run(tmp_path, story)


def test_a_checkpoint_leaves_the_loop_alone_while_it_is_written(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        gate = threading.Event()
        office.disk.before_step = lambda _: _wait(gate)
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await asyncio.sleep(0.01)
        await office.append(b"a", b"x")
        await office.flush()
        assert office.journal.count(PublishRuns) == 1
        assert not checkpoint.done()
        gate.set()
        await checkpoint
        assert office.catalog.runs_from(StreamId(1), ordinal=0, limit=1) == []
        await office.checkpoint()
        assert len(office.catalog.runs_from(StreamId(1), ordinal=0, limit=1)) == 1

    run(tmp_path, story)


def fail_to_apply(office: ColdOffice) -> None:
    """What the engine does when a command cannot be applied."""
    office.engine._fail(ZeroDivisionError("injected"), NoOp(0), office.engine.applied_lsn + 1)


def test_nothing_is_taken_from_a_state_that_a_command_was_not_applied_to(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a", data=b"x", count=1)
        await office.checkpoint()
        before = loaded(office).lsn
        await office.append(b"a", b"y")
        grow_log(office, 10**9)
        fail_to_apply(office)
        office.checkpointer.check()
        office.checkpointer.hurry(is_wanted=True)
        with pytest.raises(ShuttingDown):
            await office.checkpoint()
        await asyncio.sleep(0.02)
        await office.close()
        with pytest.raises(ShuttingDown):
            await office.checkpoint()
        assert (loaded(office).lsn, office.catalog.lsn) == (before, before)

    run(tmp_path, story)


def test_a_checkpoint_that_is_being_taken_when_that_happens_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer_module, "CAPTURE_STREAMS", 1)

    async def story(office: ColdOffice) -> None:
        await start(office)
        for number in range(3):
            await office.create(b"%d" % number, data=b"x", count=1)
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.machine.changes.epoch == 2, seconds=0)
        fail_to_apply(office)
        async with asyncio.timeout(10):
            with pytest.raises(ShuttingDown):
                await checkpoint
            await office.close()
        assert (office.checkpointer.count, office.catalog.lsn) == (0, 0)

    run(tmp_path, story)


def test_who_waits_for_one_is_told_when_another_service_has_ended_them_all(tmp_path: Path) -> None:
    """Nothing is stored after that: a later checkpoint would build on what was captured."""

    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        office.disk.failing["create"] = FULL
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.checkpointer._upkeep.failures)
        [task] = [each for each in asyncio.all_tasks() if each.get_name() == "checkpointer"]
        task.cancel()
        with pytest.raises(ShuttingDown):
            await checkpoint
        with pytest.raises(ShuttingDown):
            await office.checkpoint()
        office.disk.failing.clear()
        await office.close()
        assert office.checkpointer.count == 0

    run(tmp_path, story)


def test_hurrying_ends_the_pause_after_a_failure(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        office.disk.failing["create"] = FULL
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: office.checkpointer.error is FULL)
        office.disk.failing.clear()
        while not checkpoint.done():
            office.checkpointer.hurry(is_wanted=False)
            await asyncio.sleep(0.002)
        assert (office.checkpointer.count, office.checkpointer.error) == (1, None)

    run(tmp_path, story, timings=Timings(checkpoint_retry=Backoff(3600.0, 3600.0)))


@pytest.mark.parametrize("is_wanted", [False, True])
def test_hurrying_takes_one_when_there_is_news_or_one_is_wanted(
    tmp_path: Path, *, is_wanted: bool
) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        office.checkpointer.hurry(is_wanted=is_wanted)
        await rest(office)
        assert office.checkpointer.count == 0
        await office.create(b"a")
        office.checkpointer.hurry(is_wanted=is_wanted)
        await until(lambda: office.checkpointer.count == 1)
        await office.submit(NoOp(office.clock.now_ms()))
        office.checkpointer.hurry(is_wanted=is_wanted)
        await rest(office)
        assert office.checkpointer.count == 1 + is_wanted

    run(tmp_path, story)


def test_work_in_the_thread_runs_beside_no_merge(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        await start(office)
        await office.create(b"a")
        merge, steps = office.catalog.merge, list[str]()

        def slow_merge(changes: Changes) -> None:
            steps.append("merging")
            merge(changes)
            time.sleep(0.02)
            steps.append("merged")

        office.catalog.merge = slow_merge  # type: ignore[method-assign]
        checkpoint = asyncio.ensure_future(office.checkpoint())
        await until(lambda: steps)
        await office.checkpointer.in_thread(lambda: steps.append("work"))
        assert steps == ["merging", "merged", "work"]
        await checkpoint
        with pytest.raises(KeyError):
            await office.checkpointer.in_thread({}.popitem)

    run(tmp_path, story)
