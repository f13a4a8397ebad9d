"""An engine on a journal in memory, in a world where time moves only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

from millstream.clock import ManualClock
from millstream.engine.engine import Engine
from millstream.engine.lifetimes import Deadlines
from millstream.errors import StorageFull, StreamError
from millstream.journal.contract import Entry
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import AnyCommand, Append, CreateStream, DeleteStream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream

ROUNDS_MAX = 5000


class FakeLoop:
    """Callbacks run in `run_ready`, timers when the clock is advanced, jobs in `run_jobs`.

    As much of an event loop as the engine uses; `asyncio_loop` is the same under its proper type.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._began_ms = clock.reading_ms
        self._ready: list[asyncio.Handle] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._jobs: list[Callable[[], None]] = []

    @property
    def asyncio_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return (self.clock.reading_ms - self._began_ms) / 1000

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.asyncio_loop, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.time() + delay, callback, args, self.asyncio_loop)
        self._timers.append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle in self._timers:
            self._timers.remove(handle)

    def run_in_executor(
        self, executor: None, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.Future(loop=self.asyncio_loop)

        def job() -> None:
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

        self._jobs.append(job)
        return future

    @property
    def timers(self) -> int:
        return len(self._timers)

    def run_ready(self) -> None:
        while self._ready:
            self._ready.pop(0)._run()

    def run_jobs(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()
        self.run_ready()

    def fire_due_timers(self) -> None:
        """Only the timers: what they submit stays under way."""
        for timer in list(self._timers):
            if self._due_ms(timer) <= self.clock.reading_ms and timer in self._timers:
                self._timers.remove(timer)
                timer._run()

    def _due_ms(self, timer: asyncio.TimerHandle) -> int:
        return self._began_ms + round(timer.when() * 1000)

    def advance(self, milliseconds: int) -> None:
        """Every timer runs at its time, not at the end of the leap."""
        until_ms, rounds = self.clock.reading_ms + milliseconds, 0
        self.run_ready()
        while self._timers and (next_ms := min(map(self._due_ms, self._timers))) <= until_ms:
            rounds += 1
            assert rounds < ROUNDS_MAX, "a timer sets itself again and again"
            self.clock.reading_ms = max(self.clock.reading_ms, next_ms)
            self.fire_due_timers()
            self.run_ready()
        self.clock.reading_ms = until_ms


class ListeningJournal(MemoryJournal):
    """Writes down what it is asked for, and refuses everything while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.submitted: list[AnyCommand] = []
        self.retired: list[int] = []

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[list[Entry], int], None],
        refused: Callable[[list[Entry], StreamError], None],
    ) -> None:
        def decide(batch: list[Entry], last_lsn: int) -> None:
            if self.is_full:
                refused(batch, StorageFull("full"))
            else:
                committed(batch, last_lsn)

        super().start(loop, decide, refused)

    def submit(self, entry: Entry) -> None:
        self.submitted.append(entry[0])
        super().submit(entry)

    def retire(self, lsn: int) -> None:
        self.retired.append(lsn)

    def count(self, kind: type[AnyCommand]) -> int:
        return sum(isinstance(command, kind) for command in self.submitted)


class World:
    def __init__(
        self,
        machine: StateMachine | None = None,
        at_rest: Deadlines | None = None,
        start_ms: int | None = None,
    ) -> None:
        self.clock = ManualClock() if start_ms is None else ManualClock(start_ms)
        self.loop = FakeLoop(self.clock)
        self.journal = ListeningJournal()
        self.machine = machine or StateMachine()
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.engine.start(self.loop.asyncio_loop, at_rest)
        self.outcomes: list[tuple[Any, Outcome]] = []

    @property
    def now_ms(self) -> int:
        return self.clock.reading_ms

    def reply(self, context: Any, outcome: Outcome) -> None:
        self.outcomes.append((context, outcome))

    def submit(self, command: AnyCommand, context: Any = None) -> None:
        self.engine.submit(command, self.reply, context)

    def commit(self) -> None:
        self.loop.run_ready()

    def create(
        self, path: bytes = b"a", content_type: bytes = b"text/plain", **fields: Any
    ) -> Stream:
        """As the handler does it: committed, then followed."""
        self.submit(CreateStream(self.now_ms, path, content_type, **fields))
        self.commit()
        stream = self.machine.residents.by_path[path]
        self.engine.lifetimes.follow(stream)
        return stream

    def read(self, path: bytes = b"a") -> None:
        """As every read mode does it. What it submits is not committed yet."""
        stream = self.engine.find(path, self.now_ms)
        self.engine.lifetimes.renew(stream, self.now_ms)

    def append(self, path: bytes = b"a", data: bytes = b"x") -> None:
        stream = self.engine.find(path, self.now_ms)
        command = Append(self.now_ms, stream.stream_id, data, b"", 1, stream.essence)
        self.submit(command, "append")

    def delete(self, path: bytes = b"a") -> None:
        stream = self.engine.find(path, self.now_ms)
        self.submit(DeleteStream(self.now_ms, stream.stream_id), "delete")

    def exists(self, path: bytes = b"a") -> bool:
        return path in self.machine.residents.by_path


class FakeWatcher:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tails: list[int] = []  # the tail at each wake-up
        self.ended = False
        self.shut_downs = 0
        self.when_told: Callable[[FakeWatcher], None] | None = None

    def stream_changed(self) -> None:
        self.tails.append(self.stream.log.tail_ordinal)
        self.ended = self.stream.deleted
        self._tell()

    def shut_down(self) -> None:
        self.shut_downs += 1
        self._tell()

    def _tell(self) -> None:
        if self.when_told is not None:
            self.when_told(self)
