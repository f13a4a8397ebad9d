"""What the engine relies on, asked of every journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from millstream.errors import ShuttingDown, UnusableRecord
from millstream.formats.layout import StreamId
from millstream.journal.contract import Entry, Journal
from millstream.journal.memory import MemoryJournal
from millstream.journal.wal import LogPlace, WalJournal
from millstream.limits import COMMIT_COMMANDS_MAX
from millstream.state.commands import Append, decode_command
from tests.unit.journal.fake_disk import FakeDisk
from tests.unit.journal.listeners import PATIENCE_SECONDS, Listener, entry, ignore
from tests.unit.journal.log_files import FOLDER, STORE_ID, journal_on, recover

Story = Callable[[Journal, Listener], Awaitable[None]]


def fail(error: OSError) -> None:
    raise AssertionError(error)


def wal_journal() -> Journal:
    return journal_on(FakeDisk(), fail, segment_bytes=1024)


@pytest.fixture(params=[MemoryJournal, wal_journal], ids=["memory", "wal"])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Runs a story on a started journal, and closes it."""

    async def run(story: Story) -> None:
        journal: Journal = request.param()
        listener = Listener()
        listener.start(journal)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story(journal, listener)
            await journal.close()
            listener.numbers_at_close = listener.numbers

    return lambda story: asyncio.run(run(story))


Tell = Callable[[Story], None]


def test_commands_commit_in_the_order_they_were_submitted(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        for number in range(200):
            journal.submit(entry(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await listener.wait_until(lambda: len(listener.numbers) == 200)
        assert listener.numbers == list(range(200))

    tell(story)


def test_a_batch_comes_with_the_lsn_of_its_last_entry(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        async def submit(count: int) -> None:
            expected = len(listener.numbers) + count
            for _ in range(count):
                journal.submit(entry(0))
            await listener.wait_until(lambda: len(listener.numbers) == expected)

        await submit(1)
        await submit(3)
        await submit(2)
        assert listener.lsns[-1] == 6
        sizes = [len(batch) for batch in listener.batches]
        assert listener.lsns == [sum(sizes[: i + 1]) for i in range(len(sizes))]

    tell(story)


def test_commands_of_one_round_share_a_batch(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        for number in range(5):
            journal.submit(entry(number))
        await listener.wait_until(lambda: bool(listener.batches))
        assert listener.batches == [[0, 1, 2, 3, 4]]

    tell(story)


def test_a_batch_has_a_bounded_number_of_commands(tell: Tell) -> None:
    """They are applied in one go, and nobody shall wait long for that."""

    async def story(journal: Journal, listener: Listener) -> None:
        count = 2 * COMMIT_COMMANDS_MAX + 500
        for number in range(count):
            journal.submit(entry(number))
        await listener.wait_until(lambda: len(listener.numbers) == count)
        assert listener.numbers == list(range(count))
        assert max(map(len, listener.batches)) <= COMMIT_COMMANDS_MAX
        assert len(listener.batches) == 3
        assert listener.lsns[-1] == count

    tell(story)


def test_large_commands_keep_their_place(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        for number in range(40):
            if number % 3:
                journal.submit(entry(number))
            else:
                journal.submit_large(large_entry(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await listener.wait_until(lambda: len(listener.numbers) == 40)
        assert listener.numbers == list(range(40))

    tell(story)


def large_entry(number: int) -> Entry:
    pieces = (b"%d" % number, b"x" * (number % 5) * 1000 + b"y")
    return Append(number, StreamId(1), b"", b"ends", 2, pieces=pieces), ignore, number


def test_large_commands_are_recovered_as_they_were() -> None:
    disk = FakeDisk()

    async def story() -> None:
        journal, listener = journal_on(disk, fail, segment_bytes=2048), Listener()
        listener.start(journal)
        for number in range(40):
            if number % 3:
                journal.submit(entry(number))
            else:
                journal.submit_large(large_entry(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await journal.close()

    asyncio.run(story())
    _, replayed = recover(disk)
    assert [decode_command(payload) for _, payload in sorted(replayed.items())] == [
        (entry(number) if number % 3 else large_entry(number))[0] for number in range(40)
    ]


def test_an_entry_comes_back_as_the_very_objects_that_were_submitted(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        given = entry(7)
        journal.submit(given)
        await listener.wait_until(lambda: bool(listener.entries))
        (came_back,) = listener.entries
        assert all(a is b for a, b in zip(came_back, given, strict=True))

    tell(story)


def test_submitting_never_commits_before_it_returns(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        journal.submit(entry(0))
        assert listener.batches == []
        assert journal.depth == 1
        await listener.wait_until(lambda: bool(listener.batches))

    tell(story)


def test_depth_counts_what_is_not_committed_yet(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        assert journal.depth == 0
        for number in range(3):
            journal.submit(entry(number))
        assert journal.depth == 3
        await listener.wait_until(lambda: len(listener.numbers) == 3)
        assert journal.depth == 0

    tell(story)


def test_a_command_submitted_by_an_answer_commits_after_it(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        def chain(batch: object, last_lsn: int) -> None:
            if len(listener.numbers) < 5:
                journal.submit(entry(len(listener.numbers)))

        listener.on_committed = chain
        journal.submit(entry(0))
        await listener.wait_until(lambda: len(listener.numbers) == 5)
        assert listener.numbers == [0, 1, 2, 3, 4]

    tell(story)


def test_committed_is_called_on_the_loops_thread(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        journal.submit(entry(0))
        await listener.wait_until(lambda: bool(listener.batches))
        assert listener.threads == {threading.get_ident()}

    tell(story)


def test_nothing_is_refused_while_nothing_is_wrong(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        for number in range(50):
            journal.submit(entry(number))
        await listener.wait_until(lambda: len(listener.numbers) == 50)
        assert listener.refusals == []

    tell(story)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_close_returns_when_everything_submitted_is_committed(tell: Tell, count: int) -> None:
    listeners: list[Listener] = []

    async def story(journal: Journal, listener: Listener) -> None:
        listeners.append(listener)
        for number in range(count):
            journal.submit(entry(number))

    tell(story)
    assert listeners[0].numbers_at_close == list(range(count))


@pytest.mark.parametrize(
    "tell",
    [
        pytest.param(MemoryJournal, id="memory"),
        pytest.param(wal_journal, id="wal"),
    ],
    indirect=True,
)
def test_close_also_waits_for_what_answers_submit_meanwhile(tell: Tell) -> None:
    listeners: list[Listener] = []

    async def story(journal: Journal, listener: Listener) -> None:
        listeners.append(listener)

        def once_more(batch: object, last_lsn: int) -> None:
            if len(listener.numbers) == 1:
                journal.submit(entry(1))

        listener.on_committed = once_more
        journal.submit(entry(0))

    tell(story)
    assert listeners[0].numbers_at_close == [0, 1]


def test_retiring_is_allowed_at_any_time_and_commits_go_on(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        journal.retire(0)
        for number in range(100):
            journal.submit(entry(number))
            await listener.wait_for(number)
            journal.retire(listener.lsns[-1])
        assert listener.numbers == list(range(100))

    tell(story)


def test_the_statistics_count_batches_and_commands(tell: Tell) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        for number in range(10):
            journal.submit(entry(number))
        await listener.wait_until(lambda: len(listener.numbers) == 10)
        assert journal.stats.commands == 10
        assert journal.stats.batches == len(listener.batches)

    tell(story)


def test_a_journal_that_shall_take_nothing_more_refuses_what_is_not_being_written(
    tell: Tell,
) -> None:
    async def story(journal: Journal, listener: Listener) -> None:
        journal.submit(entry(0))
        await listener.wait_until(lambda: bool(listener.batches))
        refusal = ShuttingDown("enough")
        journal.submit(entry(1))
        journal.refuse(refusal)
        journal.submit(entry(2))
        await listener.wait_until(lambda: bool(listener.refusals))
        assert listener.refusals == [([1, 2], refusal)]
        assert listener.numbers == [0]
        assert journal.depth == 0

    tell(story)


# What outlives the process: asked of every journal that keeps anything


class Kept:
    """A durable journal, again and again on the same disk."""

    def __init__(self) -> None:
        self.disk = FakeDisk()

    def open(self) -> Journal:
        place = LogPlace(self.disk, FOLDER, STORE_ID, 1024)
        return WalJournal(place, fail)

    async def write(self, *numbers: int, after_lsn: int = 0) -> None:
        """One run of a server that commits these and stops."""
        journal, listener = self.open(), Listener()
        journal.replay(after_lsn, lambda lsn, payload: None)
        listener.start(journal)
        for number in numbers:
            journal.submit(entry(number))
            await listener.wait_for(number)
        await journal.close()

    def replayed(self, after_lsn: int = 0) -> tuple[dict[int, int], int]:
        found: dict[int, int] = {}

        def apply(lsn: int, payload: bytes) -> None:
            assert lsn == max(found, default=after_lsn) + 1, "in order, and none left out"
            found[lsn] = decode_command(payload).now_ms

        return found, self.open().replay(after_lsn, apply)


@pytest.mark.parametrize("kept", [Kept])
def test_all_that_was_committed_is_replayed_in_order(kept: type[Kept]) -> None:
    log = kept()
    assert log.replayed() == ({}, 0)
    asyncio.run(log.write(*range(100)))
    assert log.replayed() == ({n + 1: n for n in range(100)}, 100)


@pytest.mark.parametrize("kept", [Kept])
def test_a_replay_begins_behind_the_position_it_is_given(kept: type[Kept]) -> None:
    log = kept()
    asyncio.run(log.write(*range(50)))
    assert log.replayed(47) == ({48: 47, 49: 48, 50: 49}, 50)
    assert log.replayed(50) == ({}, 50)


@pytest.mark.parametrize("kept", [Kept])
def test_positions_go_on_where_the_run_before_ended(kept: type[Kept]) -> None:
    log = kept()
    for run in range(5):
        asyncio.run(log.write(10 * run, 10 * run + 1))
    assert log.replayed() == ({i + 1: 10 * (i // 2) + i % 2 for i in range(10)}, 10)


@pytest.mark.parametrize("kept", [Kept])
def test_a_command_that_cannot_be_applied_stops_the_replay_and_changes_nothing(
    kept: type[Kept],
) -> None:
    log = kept()
    asyncio.run(log.write(*range(9)))

    def apply(lsn: int, payload: bytes) -> None:
        if lsn == 4:
            raise KeyError("no such stream")

    journal = log.open()
    before = {path: bytes(inode.content) for path, inode in log.disk.files.items()}
    with pytest.raises(UnusableRecord):
        journal.replay(0, apply)
    assert before == {path: bytes(inode.content) for path, inode in log.disk.files.items()}
    assert journal.replay(4, lambda lsn, payload: None) == 9, "it may be called again"


@pytest.mark.parametrize("make", [MemoryJournal, lambda: Kept().open()], ids=["memory", "wal"])
def test_a_journal_goes_on_behind_the_position_it_was_given(make: Callable[[], Journal]) -> None:
    """The checkpoint may know more than a log that was lost."""

    async def story() -> None:
        journal, listener = make(), Listener()
        assert journal.replay(41, lambda lsn, payload: None) == 41
        listener.start(journal)
        journal.submit(entry(0))
        await listener.wait_for(0)
        assert listener.lsns == [42]
        await journal.close()

    asyncio.run(story())
