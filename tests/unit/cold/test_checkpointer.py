"""Checkpoints beside a running engine, with a real catalog."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from millstream.cold import checkpointer as checkpointer_module
from millstream.cold.checkpointer import CLOSING_WAL_BYTES, Checkpointer
from millstream.formats.changes import Changes
from millstream.formats.layout import StreamId
from millstream.journal.checkpoints import Checkpoint, load_checkpoint
from millstream.limits import CHECKPOINT_FLUSH_BYTES
from millstream.state.commands import DeleteStream, NoOp, PublishRuns
from millstream.state.images import restore_hot, restore_stream
from tests.support.memory_store import MemoryStore
from tests.unit.cold.cold_office import FOLDER, STORE_ID, ColdOffice, run, until
from tests.unit.engine.world import World
from tests.unit.journal.fake_disk import FakeDisk

WAL_BYTES = 1000
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[structlog.typing.EventDict]]:
    monkeypatch.setattr(checkpointer_module, "RETRY_SECONDS_MIN", 0.01)
    with structlog.testing.capture_logs() as found:
        yield found


class NoFlusher:
    def flush_floor(self, floor_bytes: int, done: Callable[[], None]) -> None:
        done()


class Office:
    """A world with a checkpointer, and a log that grows as told."""

    def __init__(self, wal_bytes: int = WAL_BYTES, recovered: int = 0, dirty: int = 1000) -> None:
        self.world = World()
        self.disk = FakeDisk()
        self.store = MemoryStore()
        self.checkpointer = Checkpointer(
            self.world.engine,
            self.disk,
            FOLDER,
            STORE_ID,
            self.store,
            NoFlusher(),
            wal_bytes,
            dirty,
            wal_bytes_recovered=recovered,
        )
        self.checkpointer.start(self.world.loop.asyncio_loop)

    def write(self, log_bytes: int, data: bytes = b"x") -> None:
        """One committed batch that made the log grow by so much."""
        self.world.journal.stats.bytes_written += log_bytes
        if not self.world.exists():
            self.world.create()
        else:
            self.world.append(data=data)
            self.world.commit()

    def finish(self) -> None:
        self.world.loop.run_jobs()

    @property
    def stored(self) -> int:
        """The lsn a restart would go on from; 0 when there is no checkpoint."""
        loaded = load_checkpoint(self.disk.crash(), FOLDER, STORE_ID, 0)
        return 0 if loaded is None else loaded.lsn


# When


def test_no_checkpoint_is_written_before_the_log_has_grown_enough() -> None:
    office = Office()
    office.write(WAL_BYTES - 1)
    office.finish()
    assert office.stored == 0


def test_a_checkpoint_is_written_once_the_log_has_grown_enough() -> None:
    office = Office()
    office.write(WAL_BYTES - 1)
    office.write(1)
    office.finish()
    assert office.stored == office.world.engine.applied_lsn == office.store.lsn == 2


def test_a_checkpoint_is_written_once_many_streams_have_changed() -> None:
    office = Office(dirty=3)
    for path in (b"a", b"b"):
        office.world.create(path)
    office.world.append(b"a")
    office.world.commit()
    office.finish()
    assert office.stored == 0
    office.world.create(b"c")
    office.finish()
    assert office.stored == 4


def test_what_was_left_in_the_log_of_an_earlier_run_counts() -> None:
    office = Office(recovered=WAL_BYTES - 10)
    office.write(10)
    office.finish()
    assert office.stored == 1


def test_the_stored_state_is_the_one_of_its_lsn_whatever_comes_meanwhile() -> None:
    office = Office()
    office.write(1)
    office.write(WAL_BYTES)
    office.write(1)
    office.world.delete()
    office.world.commit()
    office.finish()
    loaded = load_checkpoint(office.disk.crash(), FOLDER, STORE_ID, 0)
    assert loaded is not None
    assert (loaded.lsn, [row.path for row in loaded.changes.streams]) == (2, [b"a"])
    assert [block[0] for content in loaded.hot for block in content.blocks] == [b"x"]


def test_the_log_is_retired_up_to_the_checkpoint_and_only_once_it_is_stored() -> None:
    office = Office()
    office.write(WAL_BYTES)
    office.write(1)
    assert office.world.journal.retired == []
    office.finish()
    assert office.world.journal.retired == [1]


def test_one_checkpoint_runs_at_a_time() -> None:
    office = Office()
    office.write(WAL_BYTES)
    office.write(10 * WAL_BYTES)
    office.write(10 * WAL_BYTES)
    office.finish()
    assert office.world.journal.retired == [1]
    office.finish()  # it is due again, and begins as soon as the first has ended
    assert office.world.journal.retired == [1, 3]


def test_the_log_has_to_grow_again_before_the_next_checkpoint() -> None:
    office = Office()
    office.write(WAL_BYTES)
    office.finish()
    office.write(WAL_BYTES - 1)
    office.finish()
    assert office.world.journal.retired == [1]
    office.write(1)
    office.finish()
    assert office.world.journal.retired == [1, 3]


# With a catalog and a flusher


def loaded(office: ColdOffice) -> Checkpoint:
    found = load_checkpoint(office.disk.crash(), FOLDER, STORE_ID, 0)
    assert found is not None
    return found


def start(office: ColdOffice) -> None:
    loop = asyncio.get_running_loop()
    office.flusher.start(loop)
    office.checkpointer.start(loop)


def test_catalog_and_file_together_are_the_state(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        start(office)
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
        start(office)
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
        start(office)
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
        start(office)
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
        start(office)
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
        start(office)
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
        start(office)
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
    ("log_bytes", "expected"), [(CLOSING_WAL_BYTES - 1, []), (CLOSING_WAL_BYTES, [1])]
)
def test_a_stop_with_much_to_replay_writes_a_last_checkpoint(
    tmp_path: Path, log_bytes: int, expected: list[int]
) -> None:
    async def story(office: ColdOffice) -> None:
        start(office)
        await office.create(b"a")
        grow_log(office, log_bytes)
        await office.close()
        assert office.journal.retired == expected

    run(tmp_path, story)


def test_closing_waits_for_the_running_checkpoint(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        start(office)
        await office.create(b"a")
        office.checkpointer.run(lambda: None)
        await office.close()
        assert office.journal.retired == [1]
        grow_log(office, 10**9)
        await office.create(b"b")
        await asyncio.sleep(0.01)
        assert office.journal.retired == [1]

    run(tmp_path, story)


def test_a_server_whose_disk_is_full_can_be_stopped(tmp_path: Path) -> None:
    """What cannot be stored is in the log; a later checkpoint without it would not be whole."""

    async def story(office: ColdOffice) -> None:
        start(office)
        await office.create(b"a")
        office.disk.failing["create"] = FULL
        office.checkpointer.run(lambda: None)
        await asyncio.sleep(0.05)
        grow_log(office, 10 * CLOSING_WAL_BYTES)
        async with asyncio.timeout(10):
            await office.close()
        assert office.journal.retired == []
        assert load_checkpoint(office.disk.crash(), FOLDER, STORE_ID, 0) is None

    run(tmp_path, story)


def test_a_stop_gives_up_after_one_failure(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        start(office)
        await office.create(b"a")
        grow_log(office, CLOSING_WAL_BYTES)
        office.disk.failing["rename"] = FULL
        async with asyncio.timeout(10):
            await office.close()
        assert office.journal.retired == []

    run(tmp_path, story)


def test_a_checkpoint_leaves_the_loop_alone_while_it_is_written(tmp_path: Path) -> None:
    async def story(office: ColdOffice) -> None:
        start(office)
        await office.create(b"a")
        gate = threading.Event()

        def wait(_: str) -> None:
            gate.wait(10)

        office.disk.before_step = wait
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
        start(office)
        await office.create(b"a", data=b"x", count=1)
        await office.checkpoint()
        before = loaded(office).lsn
        await office.append(b"a", b"y")
        grow_log(office, 10**9)
        fail_to_apply(office)
        office.checkpointer.check()
        office.checkpointer._on_time()
        told: list[int] = []
        office.checkpointer.run(lambda: told.append(1))
        await office.checkpointer.finish(is_wanted=True)
        await office.checkpointer.close()
        assert (loaded(office).lsn, office.catalog.lsn, told) == (before, before, [])

    run(tmp_path, story)


def test_a_checkpoint_that_is_being_taken_when_that_happens_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer_module, "CAPTURE_STREAMS", 1)

    async def story(office: ColdOffice) -> None:
        start(office)
        for number in range(3):
            await office.create(b"%d" % number, data=b"x", count=1)
        office.checkpointer.run(lambda: None)
        await until(lambda: office.machine.changes.epoch == 2, seconds=0)
        fail_to_apply(office)
        await office.checkpointer.finish(is_wanted=True)
        await office.checkpointer.close()
        assert (office.checkpointer.count, office.catalog.lsn) == (0, 0)

    run(tmp_path, story)
