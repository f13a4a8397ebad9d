from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.clock import ManualClock
from millstream.engine.checkpointer import Checkpointer
from millstream.engine.engine import Engine
from millstream.journal.checkpoints import load_checkpoint
from millstream.state.commands import CreateStream
from millstream.state.machine import StateMachine
from tests.unit.engine.world import ListeningJournal, World
from tests.unit.journal.fake_disk import FakeDisk
from tests.unit.state.store import describe

FOLDER, STORE_ID = "/data/checkpoints", "0123456789abcdef0123456789abcdef"
WAL_BYTES = 1000


class Office:
    """A world with a checkpointer, and a log that grows as told."""

    def __init__(self, wal_bytes: int = WAL_BYTES, recovered: int = 0) -> None:
        self.world = World()
        self.disk = FakeDisk()
        self.checkpointer = Checkpointer(
            self.world.engine,
            self.disk,
            FOLDER,
            STORE_ID,
            wal_bytes,
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
        return load_checkpoint(self.disk.crash(), FOLDER, STORE_ID)[1]


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
    assert office.stored == office.world.engine.applied_lsn == 2


def test_what_was_left_in_the_log_of_an_earlier_run_counts() -> None:
    office = Office(recovered=WAL_BYTES - 10)
    office.write(10)
    office.finish()
    assert office.stored == 1


def test_the_stored_state_is_the_one_of_its_lsn_whatever_comes_meanwhile() -> None:
    office = Office()
    office.write(WAL_BYTES)
    expected = describe(office.world.machine)
    office.write(1)
    office.world.delete()
    office.world.commit()
    office.finish()
    machine, lsn = load_checkpoint(office.disk.crash(), FOLDER, STORE_ID)
    assert (describe(machine), lsn) == (expected, 1)


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
    office.write(1)
    office.finish()
    assert office.world.journal.retired == [1, 4]


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


def test_a_large_state_waits_for_a_log_of_its_own_size() -> None:
    office = Office()
    office.write(1)
    office.write(WAL_BYTES, data=bytes(50 * WAL_BYTES))
    office.finish()
    assert office.world.journal.retired == [2]
    office.write(49 * WAL_BYTES)
    office.finish()
    assert office.world.journal.retired == [2]
    office.write(2 * WAL_BYTES)
    office.finish()
    assert office.world.journal.retired == [2, 4]


def test_a_checkpoint_that_fails_is_logged_and_the_log_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    office = Office()
    office.write(WAL_BYTES)
    office.finish()
    office.disk.failing["create"] = OSError(errno.ENOSPC, "No space left on device")
    office.write(WAL_BYTES)
    office.finish()
    assert office.world.journal.retired == [1]
    assert office.stored == 1
    assert "checkpoint failed" in "".join(capsys.readouterr())


def test_after_a_failure_another_checkpoint_is_tried() -> None:
    office = Office()
    office.disk.failing["create"] = OSError(errno.ENOSPC, "No space left on device")
    office.write(WAL_BYTES)
    office.finish()
    office.disk.failing.clear()
    office.write(WAL_BYTES)
    office.finish()
    assert office.stored == 2


def test_closing_waits_for_the_running_checkpoint_and_starts_no_other() -> None:
    async def story() -> None:
        clock, journal, disk = ManualClock(), ListeningJournal(), FakeDisk()
        engine = Engine(StateMachine(), journal, clock, 0)
        loop = asyncio.get_running_loop()
        engine.start(loop)
        checkpointer = Checkpointer(engine, disk, FOLDER, STORE_ID, 1, wal_bytes_recovered=0)
        checkpointer.start(loop)
        journal.stats.bytes_written = 1
        engine.submit_and_forget(CreateStream(clock.now_ms(), b"a", b"text/plain"))
        await journal.close()
        await checkpointer.close()
        assert journal.retired == [1]
        journal.stats.bytes_written += 10**9
        engine.submit_and_forget(CreateStream(clock.now_ms(), b"b", b"text/plain"))
        await journal.close()
        await checkpointer.close()
        assert journal.retired == [1]
        assert load_checkpoint(disk.crash(), FOLDER, STORE_ID)[1] == 1

    asyncio.run(story())
