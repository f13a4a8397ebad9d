"""The service behind the server's own streams: tries again when the log takes nothing, writes
nothing without need, and keeps memory bounded where nothing goes cold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.clock import ManualClock
from millstream.engine.engine import Engine
from millstream.engine.timings import Backoff, Timings
from millstream.errors import StorageFull, StreamError
from millstream.journal.contract import Entry
from millstream.journal.memory import MemoryJournal
from millstream.limits import SYSTEM_MARK_MS
from millstream.protocol.offsets import Position
from millstream.state.commands import AnyCommand, CreateStream, KeepSystemStream, WriteSystemStream
from millstream.state.machine import StateMachine
from millstream.state.system_streams import AGES_MS, REGISTRY, STREAM_METRICS
from millstream.system import service
from millstream.system.interval_records import Measured, Series, single
from millstream.system.service import SystemSettings, SystemStreamService

HASTY = Timings(system_retry=Backoff(0.01, 0.01))
SECONDS = 0.02


class FullDisk(MemoryJournal):
    """Refuses everything while it is full, and remembers what came."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[AnyCommand] = []
        self.tries = 0

    def submit(self, entry: Entry) -> None:
        self.tries += 1
        if self.is_full:
            _, reply, context = entry
            self._loop.call_soon(reply, context, StorageFull("the disk is full"))
        else:
            self.taken.append(entry[0])
            super().submit(entry)


class Numbers:
    """In place of Measurements."""

    def __init__(self) -> None:
        self.value = self.told = 0

    def take(self) -> list[tuple[Series, Measured]]:
        more = self.value - self.told
        return [(Series("m", "count"), single(more)), (Series("n", "count"), single(1))] * bool(
            more
        )

    def settle(self) -> None:
        self.told = self.value


class World:
    def __init__(self, settings: SystemSettings, machine: StateMachine | None = None) -> None:
        self.journal, self.clock, self.numbers = FullDisk(), ManualClock(), Numbers()
        self.machine = machine or StateMachine()
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.service = SystemStreamService(self.engine, self.numbers, settings, HASTY)  # type: ignore[arg-type]

    def kinds(self) -> list[type]:
        return [type(command) for command in self.journal.taken]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.clock.advance(100)
                await asyncio.sleep(0.005)


def play(world: World, story: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world.engine.start(asyncio.get_running_loop())
        async with asyncio.TaskGroup() as group, world.service.running(group):
            await story(world)

    asyncio.run(whole())


def test_the_first_command_is_on_its_way_before_the_doors_open() -> None:
    world = World(SystemSettings(True, 0.0, False))

    async def story(world: World) -> None:
        world.engine.submit_and_forget(CreateStream(0, b"x/a", b"text/plain"))
        await world.until(lambda: world.engine.applied_lsn == 2)
        assert world.kinds() == [KeepSystemStream, CreateStream]
        stream = world.machine.find(REGISTRY)
        assert stream is not None
        assert stream.log.tail_ordinal == 1

    play(world, story)


def test_on_a_full_disk_it_is_tried_later_and_nothing_fails() -> None:
    world = World(SystemSettings(True, SECONDS, False))
    world.journal.is_full = True

    async def story(world: World) -> None:
        await world.until(lambda: world.journal.tries >= 3)
        assert world.journal.taken == []
        world.journal.is_full = False
        await world.until(lambda: world.machine.system.is_kept(STREAM_METRICS))
        assert world.machine.system.is_kept(REGISTRY)
        assert not world.engine.faults.failing()

    play(world, story)


def test_what_could_not_be_written_goes_into_a_longer_window() -> None:
    world = World(SystemSettings(False, SECONDS, False))

    async def story(world: World) -> None:
        await world.until(lambda: world.machine.system.is_kept(STREAM_METRICS))
        world.journal.is_full, world.numbers.value = True, 5
        tries = world.journal.tries
        await world.until(lambda: world.journal.tries >= tries + 2)
        world.numbers.value = 7
        world.journal.is_full = False
        await world.until(lambda: WriteSystemStream in world.kinds())
        [write] = [c for c in world.journal.taken if isinstance(c, WriteSystemStream)]
        assert b'"sum":7' in write.data
        assert (write.count, len(write.keys or ())) == (2, 2)

    play(world, story)


def test_nothing_is_written_when_all_is_as_the_settings_want_it() -> None:
    machine = StateMachine()
    for path in (REGISTRY, STREAM_METRICS):
        machine.apply(KeepSystemStream(0, path))
    world = World(SystemSettings(True, SECONDS, True), machine)

    async def story(world: World) -> None:
        for _ in range(20):
            world.clock.advance(100)
            await asyncio.sleep(0.005)
        assert world.journal.tries == 0

    play(world, story)


def test_a_stream_from_before_is_left_alone_and_not_asked_for_again() -> None:
    machine = StateMachine()
    machine.apply(CreateStream(0, REGISTRY, b"text/plain"))
    world = World(SystemSettings(True, 0.0, False), machine)

    async def story(world: World) -> None:
        await world.until(lambda: world.journal.tries == 1)
        await asyncio.sleep(0.1)
        assert world.journal.tries == 1
        assert not machine.system.owns(REGISTRY)

    play(world, story)


def test_turned_off_it_is_not_kept_any_more() -> None:
    machine = StateMachine()
    machine.apply(KeepSystemStream(0, REGISTRY))
    world = World(SystemSettings(False, 0.0, False), machine)

    async def story(world: World) -> None:
        await world.until(lambda: not machine.system.is_kept(REGISTRY))
        assert machine.find(REGISTRY) is not None

    play(world, story)


def test_in_memory_only_so_much_of_them_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SYSTEM_MARK_BYTES", 100)
    monkeypatch.setattr(service, "SYSTEM_MEMORY_BYTES", 1000)
    world = World(SystemSettings(True, SECONDS, True))

    async def story(world: World) -> None:
        for number in range(300):
            command = CreateStream(0, b"x/%d" % number, b"text/plain")
            outcome = await world.engine.perform(command)
            assert not isinstance(outcome, StreamError)
            if number % 10 == 0:
                await asyncio.sleep(0.03)
        stream = world.machine.find(REGISTRY)
        assert stream is not None
        await world.until(lambda: stream.log.first_ordinal > 0)
        kept_bytes = stream.log.tail_byte - stream.log.first_byte
        assert kept_bytes < 1000 + 25 * 200
        assert stream.log.tail_ordinal == 300

    play(world, story)


def test_old_records_go_by_their_age() -> None:
    marks = service._Marks(AGES_MS[REGISTRY])
    hour = SYSTEM_MARK_MS
    assert marks.take_due(hour, Position(1, 10)) is None
    assert marks.take_due(2 * hour, Position(2, 20)) is None
    assert marks.take_due(hour + AGES_MS[REGISTRY], Position(2, 20)) == Position(1, 10)
    assert marks.take_due(hour + AGES_MS[REGISTRY], Position(2, 20)) is None
