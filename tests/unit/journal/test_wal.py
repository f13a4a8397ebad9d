"""Group commit, durability and failure of the durable journal."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.errors import (
    AppendOutcomeUnknown,
    InvalidRequest,
    Overloaded,
    ShuttingDown,
    StorageFull,
    StreamError,
)
from millstream.journal.contract import COMMIT_SECONDS_BUCKETS, Entry
from millstream.journal.reserve import Reserve
from millstream.state.commands import NoOp, decode_command
from tests.unit.journal.fake_disk import FakeDisk
from tests.unit.journal.listeners import PATIENCE_SECONDS, Listener, entry, ignore
from tests.unit.journal.log_files import FOLDER, journal_on, recover

BROKEN = OSError(errno.EIO, "Input/output error")
FULL = OSError(errno.ENOSPC, "No space left on device")


class Desk:
    """A journal on a fake disk and everything it tells."""

    def __init__(self, segment_bytes: int = 4096) -> None:
        self.disk = FakeDisk()
        self.failures: list[OSError] = []
        self.listener = Listener()
        self.journal = journal_on(self.disk, self.failures.append, segment_bytes=segment_bytes)

    def submit(self, *numbers: int) -> None:
        for number in numbers:
            self.journal.submit(entry(number))

    async def committed(self, *numbers: int) -> None:
        """Submits one by one and waits for each."""
        for number in numbers:
            self.submit(number)
            await self.listener.wait_for(number)

    def durable(self) -> list[int]:
        """The commands another process would find after a power cut right now."""
        _, replayed = recover(self.disk.crash())
        return [decode_command(payload).now_ms for payload in replayed.values()]


def tell(story: Callable[[Desk], Awaitable[None]], segment_bytes: int = 4096) -> Desk:
    async def run() -> Desk:
        desk = Desk(segment_bytes)
        desk.listener.start(desk.journal)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story(desk)
            await desk.journal.close()
        return desk

    return asyncio.run(run())


def test_a_batch_is_durable_before_it_is_told() -> None:
    async def story(desk: Desk) -> None:
        def look(batch: list[Entry], last_lsn: int) -> None:
            assert desk.durable()[: len(desk.listener.numbers)] == desk.listener.numbers
            assert len(desk.durable()) >= last_lsn
            checked.append(last_lsn)

        checked: list[int] = []
        desk.listener.on_committed = look
        for number in range(30):
            desk.submit(number)
            if number % 3:
                await desk.listener.wait_for(number)
        await desk.listener.wait_until(lambda: len(desk.listener.numbers) == 30)
        assert checked == desk.listener.lsns

    tell(story, segment_bytes=256)


def test_everything_committed_is_read_back_after_a_restart() -> None:
    async def story(desk: Desk) -> None:
        desk.submit(*range(40))

    desk = tell(story)
    assert desk.durable() == list(range(40))


def test_commands_that_arrive_during_a_sync_form_the_next_batch() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)
        loop, syncing, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hold(operation: str) -> None:
            if operation == "datasync":
                loop.call_soon_threadsafe(syncing.set)
                go_on.wait(PATIENCE_SECONDS)

        desk.disk.before_step = hold
        desk.submit(1)
        await syncing.wait()
        desk.submit(2)
        await asyncio.sleep(0)
        desk.submit(3, 4)
        assert desk.journal.depth == 4
        assert desk.listener.batches == [[0]]
        go_on.set()
        await desk.listener.wait_until(lambda: len(desk.listener.numbers) == 5)
        assert desk.listener.batches == [[0], [1], [2, 3, 4]]

    tell(story)


def test_a_batch_is_one_write_and_one_sync() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)
        before = len(desk.disk.steps)
        desk.submit(*range(1, 20))
        await desk.listener.wait_until(lambda: len(desk.listener.numbers) == 20)
        steps = [operation for operation, name in desk.disk.steps[before:] if "spare" not in name]
        assert steps == ["pwrite", "datasync"]

    tell(story)


def test_the_statistics_add_up() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0, 1)

    stats = tell(story).journal.stats
    assert (stats.batches, stats.commands) == (2, 2)
    assert sum(stats.commit_seconds) == 2
    assert len(stats.commit_seconds) == len(COMMIT_SECONDS_BUCKETS) + 1
    assert stats.commit_seconds_sum > 0


def test_bytes_written_is_what_the_log_grew_by() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)
        before = desk.journal.log_bytes
        written = desk.journal.stats.bytes_written
        await desk.committed(1, 2)
        grown = desk.journal.log_bytes - before
        assert desk.journal.stats.bytes_written - written == grown > 0

    tell(story)


def test_a_spare_is_ready_ahead_of_every_roll() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(*range(20))

    desk = tell(story, segment_bytes=256)
    assert [name for name in desk.disk.names(FOLDER) if name.startswith("spare-")]


def test_a_spare_is_ready_before_the_first_command() -> None:
    async def story(desk: Desk) -> None:
        assert desk.journal.depth == 0

    assert tell(story).disk.names(FOLDER) == ["spare-0000000000000001"]


def test_retired_segments_are_gone_after_close() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(*range(20))
        desk.journal.retire(desk.listener.lsns[-1])

    desk = tell(story, segment_bytes=256)
    assert len([name for name in desk.disk.names(FOLDER) if name.endswith(".wal")]) == 1


def test_close_lets_go_of_the_file() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)

    assert tell(story).disk.steps[-1] == ("close", "0000000000000001.wal")


def test_failing_housekeeping_is_logged_and_the_journal_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(*range(10))
        desk.disk.failing["remove"] = desk.disk.failing["rename"] = BROKEN
        desk.journal.retire(5)

    desk = tell(story, segment_bytes=256)
    assert desk.failures == []
    printed = capsys.readouterr()
    assert "log housekeeping failed" in printed.out + printed.err


# A full disk


def test_on_a_full_disk_a_batch_is_refused_and_nothing_of_it_is_kept() -> None:
    async def story(desk: Desk) -> None:
        desk.disk.failing["create_zeroed"] = FULL
        desk.submit(0, 1)
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        ((numbers, error),) = desk.listener.refusals
        assert numbers == [0, 1]
        assert isinstance(error, StorageFull)
        assert desk.durable() == []
        assert desk.journal.depth == 0

    desk = tell(story)
    assert desk.failures == []
    assert desk.listener.batches == []
    assert desk.journal.stats.commands == 0


def test_after_a_full_disk_got_room_commands_commit_without_a_gap() -> None:
    async def story(desk: Desk) -> None:
        desk.disk.failing["create_zeroed"] = FULL
        desk.submit(0)
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        desk.disk.failing.clear()
        await desk.committed(1, 2)
        assert desk.listener.lsns == [1, 2]

    assert tell(story).durable() == [1, 2]


# A broken disk


@pytest.mark.parametrize("operation", ["datasync", "pwrite"])
def test_a_disk_error_stops_the_journal_and_nothing_counts_as_committed(operation: str) -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)
        desk.disk.failing[operation] = BROKEN
        desk.submit(1, 2)
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        desk.disk.failing.clear()  # the disk is fine again; what we know about it is not
        desk.submit(3)
        await desk.listener.wait_until(lambda: len(desk.listener.refusals) == 2)
        desk.submit(4)
        await desk.listener.wait_until(lambda: len(desk.listener.refusals) == 3)

    desk = tell(story)
    assert desk.failures == [BROKEN]
    assert desk.listener.batches == [[0]]
    assert [numbers for numbers, _ in desk.listener.refusals] == [[1, 2], [3], [4]]
    assert all(isinstance(error, AppendOutcomeUnknown) for _, error in desk.listener.refusals)


def test_commands_that_waited_behind_a_failing_batch_are_refused_with_it() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(0)
        loop, syncing, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hold(operation: str) -> None:
            if operation == "datasync":
                loop.call_soon_threadsafe(syncing.set)
                go_on.wait(PATIENCE_SECONDS)

        desk.disk.before_step = hold
        desk.disk.failing["datasync"] = BROKEN
        desk.submit(1)
        await syncing.wait()
        desk.submit(2, 3)
        go_on.set()
        await desk.listener.wait_until(lambda: len(desk.listener.refusals) == 2)
        assert desk.journal.depth == 0

    desk = tell(story)
    assert sorted(numbers for numbers, _ in desk.listener.refusals) == [[1], [2, 3]]
    assert desk.failures == [BROKEN]
    assert desk.listener.batches == [[0]]


def test_close_returns_though_a_command_came_after_the_failure() -> None:
    """What a stop does: the last NoOp is submitted and the journal closed at once."""

    async def story() -> None:
        desk = Desk()
        desk.listener.start(desk.journal)
        desk.disk.failing["datasync"] = BROKEN
        desk.submit(0)
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        desk.submit(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await desk.journal.close()

    asyncio.run(story())


@pytest.mark.parametrize("numbers", [[2**64], [1, 2**64, 2], [2**64, -(2**63) - 1]])
def test_a_command_that_cannot_be_written_down_is_refused_and_holds_up_nobody(
    numbers: list[int],
) -> None:
    async def story(desk: Desk) -> None:
        desk.submit(*numbers)
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        await desk.committed(3)
        refused = [numbers for numbers, _ in desk.listener.refusals]
        assert refused == [[n] for n in numbers if n not in (1, 2)]
        assert all(type(error) is InvalidRequest for _, error in desk.listener.refusals)
        assert desk.listener.numbers == [*(n for n in numbers if n in (1, 2)), 3]

    desk = tell(story)
    assert desk.durable() == desk.listener.numbers


def test_a_journal_that_shall_take_nothing_more_still_tells_of_what_is_being_written() -> None:
    async def story(desk: Desk) -> None:
        desk.submit(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the writer has it
        desk.submit(1)
        desk.journal.refuse(ShuttingDown("enough"))
        await desk.listener.wait_until(lambda: bool(desk.listener.refusals))
        assert desk.listener.numbers == [0]
        assert [numbers for numbers, _ in desk.listener.refusals] == [[1]]

    assert tell(story).durable() == [0]


def refusals(desk: Desk) -> dict[int, StreamError]:
    return {number: error for numbers, error in desk.listener.refusals for number in numbers}


def test_an_error_that_nobody_expected_stops_the_log_and_everybody_is_told() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(1)

        def fail(batch: bytes, records: int) -> None:
            raise MemoryError("while writing")

        desk.journal._writer.write_encoded = fail  # type: ignore[method-assign]
        desk.submit(2, 3)
        await desk.listener.wait_until(lambda: 3 in refusals(desk))
        desk.submit(4)
        await desk.listener.wait_until(lambda: 4 in refusals(desk))

    desk = tell(story)
    told = [type(refusals(desk)[number]) for number in (2, 3, 4)]
    assert told == [AppendOutcomeUnknown] * 3
    assert [str(failure) for failure in desk.failures] == [
        "an unexpected MemoryError: while writing"
    ]
    assert desk.journal._faults.counts["journal"] == 1


def test_a_batch_that_cannot_be_encoded_is_given_back_and_the_next_one_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError("while encoding")

    async def story(desk: Desk) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("millstream.journal.wal.encode_batch", fail)
            desk.submit(1)
            await desk.listener.wait_until(lambda: 1 in refusals(desk))
        await desk.committed(2)

    desk = tell(story)
    assert isinstance(refusals(desk)[1], Overloaded)
    assert desk.durable() == [2]


def test_a_chore_that_fails_does_not_end_the_chores() -> None:
    async def story(desk: Desk) -> None:
        await desk.committed(1)
        desk.journal._chores.put(lambda: [].pop())
        done = threading.Event()
        desk.journal._chores.put(done.set)
        assert await asyncio.to_thread(done.wait, PATIENCE_SECONDS)

    assert tell(story).journal._faults.counts["journal"] == 1


def test_only_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    """Too many open files refuse the batch too, but deletions would not help."""

    async def story(desk: Desk) -> None:
        for failure, is_full in (
            (OSError(errno.EMFILE, "Too many open files"), False),
            (FULL, True),
        ):
            desk.disk.failing["create_zeroed"] = failure
            desk.submit(int(is_full))
            await desk.listener.wait_until(lambda: int(is_full) in refusals(desk))  # noqa: B023
            assert desk.journal.is_full is is_full
        desk.disk.failing.clear()
        while desk.journal.is_full:
            await asyncio.sleep(0.02)

    async def run() -> None:
        desk = Desk()
        desk.journal = journal_on(
            desk.disk, desk.failures.append, Reserve(str(tmp_path), 4096), segment_bytes=4096
        )
        desk.disk.failing["create_zeroed"] = FULL  # no spare is made ahead
        desk.listener.start(desk.journal)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story(desk)
            await desk.journal.close()

    asyncio.run(run())


def test_on_a_full_disk_what_makes_room_is_taken_in_its_order(tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk()
        desk.journal = journal_on(
            desk.disk, desk.failures.append, Reserve(str(tmp_path), 4096), segment_bytes=4096
        )
        desk.listener.start(desk.journal)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await desk.committed(1)
            desk.journal.declare_full()
            assert not (tmp_path / "reserve").exists()
            for number in range(2, 8):
                mark: Entry = (NoOp(number), ignore, number)
                desk.journal.submit(mark if number % 2 else entry(number))
            await desk.listener.wait_for(7)
            assert desk.listener.numbers == [1, 3, 5, 7]
            assert sorted(refusals(desk)) == [2, 4, 6]
            assert all(isinstance(error, StorageFull) for error in refusals(desk).values())
            while desk.journal.is_full:  # there is room: it ends by itself
                await asyncio.sleep(0.02)
            await desk.committed(8)
            await desk.journal.close()
        assert desk.durable() == [1, 3, 5, 7, 8]

    asyncio.run(run())
