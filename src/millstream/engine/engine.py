"""Where committed commands become state, answers and wake-ups. Runs on the event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Protocol

import structlog

from millstream.clock import Clock
from millstream.engine.hot_budget import HotBudget
from millstream.engine.journal_queue import JournalQueue
from millstream.engine.lifetimes import Deadlines, Lifetimes
from millstream.engine.timings import Backoff, Timings
from millstream.errors import (
    AppendOutcomeUnknown,
    CatalogUnavailable,
    ShuttingDown,
    StreamError,
    StreamNotFound,
)
from millstream.faults import Faults
from millstream.formats.layout import StreamId
from millstream.journal.contract import Entry, Journal, Reply
from millstream.limits import PREPARE_STEPS_PER_TURN
from millstream.state.commands import AnyCommand, Append, CreateStream
from millstream.state.decisions import gone
from millstream.state.machine import StateMachine
from millstream.state.outbox import Outbox
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream")


class Watcher(Protocol):
    """A reader waiting at a stream's tail."""

    def stream_changed(self) -> None:
        """The stream grew, was closed, deleted or expired; its whole batch is applied."""
        ...

    def shut_down(self) -> None:
        """The server stops: give the client its last answer now."""
        ...


class Engine:
    def __init__(
        self,
        machine: StateMachine,
        journal: Journal,
        clock: Clock,
        lsn: int,
        faults: Faults | None = None,
        lifetimes_retry: Backoff = Timings.lifetimes_retry,
    ) -> None:
        """`faults` hears what goes wrong unexpectedly, here and in all that the engine runs."""
        self.machine = machine
        self.faults = faults or Faults()
        self.journal = journal
        self.clock = clock
        self.applied_lsn = lsn
        self.appends = 0
        self.watchers: dict[StreamId, set[Watcher]] = {}
        self.watcher_count = 0
        self.observers: dict[StreamId, set[Watcher]] = {}  # those of the watchers that `observe`
        self.queue = JournalQueue(journal, machine.horizon, self.faults)
        self.hot_budget = HotBudget(self.submit_entry, self.queue, self.faults)
        self.lifetimes = Lifetimes(self, lifetimes_retry)
        self.failure: Exception | None = None  # apply failed: memory is not what the log says
        self.failed: Callable[[], None] = _nothing  # told of it, once
        self.abandon: Callable[[Any], None] = _nothing  # answers who waits behind a context, badly
        # Called when a batch is applied, answered and its waiting readers are woken; in the order
        # in which assemble.py starts them. They only note what there is to do.
        self.listeners: list[Callable[[Outbox], None]] = []

    def start(self, loop: asyncio.AbstractEventLoop, at_rest: Deadlines | None = None) -> None:
        """`at_rest` knows the deadlines of streams that are not in memory."""
        self._loop = loop
        self.machine.horizon.follow(lambda: self.journal.depth)
        self.journal.start(loop, self._committed, self._returned)
        self.hot_budget.start(loop)
        self.lifetimes.start(loop, at_rest)

    # Finding and submitting

    def find(self, path: bytes, now_ms: int) -> Stream:
        """The live stream of this name. Raises StreamNotFound or StreamGone."""
        stream = self.machine.find(path)
        if stream is None:
            raise StreamNotFound("stream does not exist")
        if stream.deleted:
            raise gone(stream)
        if stream.is_mortal and not self.lifetimes.confirm_alive(stream, now_ms):
            raise StreamNotFound("stream does not exist")
        return stream

    def submit(self, command: AnyCommand, reply: Reply, context: Any) -> None:
        """Brings into memory what the command will need, then hands it to the journal.

        A handler that has the stream at hand may submit an Append to the journal directly.
        """
        self.submit_entry((command, reply, context))

    def submit_and_forget(self, command: AnyCommand) -> None:
        self.submit_entry((command, _ignore, None))

    async def perform(self, command: AnyCommand) -> Outcome:
        """What became of the command, once it is applied or refused; StreamErrors are returned.

        Cancelled: it may be applied all the same.
        """
        told: asyncio.Future[Outcome] = self._loop.create_future()
        self.submit(command, _tell, told)
        return await told

    def submit_entry(self, entry: Entry) -> None:
        steps = self.machine.prepare(entry[0])
        is_prepared = self._prepare(steps, entry)
        if is_prepared:
            self._hand_over(entry)
        elif is_prepared is False:
            self.machine.horizon.pause()
            self._loop.call_soon(self._prepare_more, steps, entry)

    def _hand_over(self, entry: Entry) -> None:
        command = entry[0]
        if isinstance(command, Append | CreateStream) and command.pieces:
            self.journal.submit_large(entry)
        else:
            self.journal.submit(entry)

    def _prepare_more(self, steps: Iterator[None], entry: Entry) -> None:
        is_prepared = self._prepare(steps, entry)
        if is_prepared is False:
            self._loop.call_soon(self._prepare_more, steps, entry)
            return
        self.machine.horizon.resume()
        if is_prepared:
            self._hand_over(entry)

    def _prepare(self, steps: Iterator[None], entry: Entry) -> bool | None:
        """Whether all is in memory now. None: it cannot be, and the waiting client will hear so."""
        try:
            last = PREPARE_STEPS_PER_TURN - 1
            return not any(True for _ in islice(steps, last, last + 1))
        except Exception as error:
            if not isinstance(error, OSError):
                self.faults.report("read", error)
            refusal = CatalogUnavailable(f"the catalog cannot be read: {error}")
            self._loop.call_soon(self._refused, [entry], refusal)  # never before `submit` returns
            return None

    # From the journal

    def _committed(self, batch: list[Entry], last_lsn: int) -> None:
        if self.failure is not None:
            self._refused(batch, _outcome_unknown())
            return
        horizon = self.machine.horizon
        horizon.begin(len(batch))
        apply, apply_append = self.machine.apply, self.machine.apply_append
        watchers, appended, appends = self.watchers, Done.APPENDED, 0
        woken: set[StreamId] = set()
        entries, is_whole = iter(batch), False
        while not is_whole:  # once, and once more behind every reply that fails
            outcome: Outcome | None = None
            try:
                for command, reply, context in entries:
                    outcome = None
                    outcome = apply_append(command) if type(command) is Append else apply(command)
                    if outcome is appended:
                        appends += 1
                        if watchers:
                            woken.add(command.stream_id)  # type: ignore[union-attr]
                    reply(context, outcome)
                is_whole = True
            except Exception as error:
                if outcome is None:
                    self._fail(error, command, last_lsn - length_hint(entries))
                    self._refused([(command, reply, context), *entries], _outcome_unknown())
                    return
                self._reply_failed(error, context)
        horizon.end()
        self.applied_lsn = last_lsn
        self.appends += appends
        outbox = self.machine.take_outbox()
        if outbox:
            woken.update(outbox.ended)
            woken.update(outbox.grown)
            if self.observers:
                self._wake_observers(outbox)
        for stream_id in woken:
            self._wake(self.watchers.get(stream_id))
        for listener in tuple(self.listeners):
            try:
                listener(outbox)
            except Exception as error:
                self.faults.report("watcher", error)

    def _fail(self, error: Exception, command: AnyCommand, lsn: int) -> None:
        """The log has a command that memory has not, or half of it: only a restart mends that.

        Nothing is applied any more and nothing of this state may be written to disk.
        """
        self.failure = error
        self.faults.report("apply", error)
        logger.error(
            "a committed command could not be applied; stopping, the log decides at the next start",
            lsn=lsn,
            command=type(command).__name__,
            error=f"{type(error).__name__}: {error}",
        )
        self.journal.refuse(ShuttingDown("the server stops after an error; try again later"))
        self.failed()

    def _reply_failed(self, error: Exception, context: Any) -> None:
        """Everybody but the one who waits for this very reply is served as if nothing were."""
        self.faults.report("reply", error)
        try:
            self.abandon(context)
        except Exception as second:
            self.faults.report("reply", second)

    def _returned(self, batch: list[Entry], error: StreamError) -> None:
        """The journal kept nothing of these."""
        self.machine.horizon.begin(len(batch))
        self._refused(batch, error)
        self.machine.horizon.end()

    def _refused(self, batch: list[Entry], error: StreamError) -> None:
        for _, reply, context in batch:
            try:
                reply(context, error)
            except Exception as unexpected:
                self._reply_failed(unexpected, context)

    # Waiting readers

    def watch(self, stream: Stream, watcher: Watcher) -> None:
        self.watchers.setdefault(stream.stream_id, set()).add(watcher)
        self.watcher_count += 1

    def unwatch(self, stream: Stream, watcher: Watcher) -> None:
        watching = self.watchers.get(stream.stream_id)
        if watching is not None and watcher in watching:
            watching.remove(watcher)
            self.watcher_count -= 1
            if not watching:
                del self.watchers[stream.stream_id]

    def observe(self, stream: Stream, watcher: Watcher) -> None:
        """Like `watch`, for those who look at more than content: it is woken too when the stream
        is flushed, trimmed, gets a snapshot or other rules."""
        self.watch(stream, watcher)
        self.observers.setdefault(stream.stream_id, set()).add(watcher)

    def unobserve(self, stream: Stream, watcher: Watcher) -> None:
        self.unwatch(stream, watcher)
        observing = self.observers.get(stream.stream_id)
        if observing is not None:
            observing.discard(watcher)
            if not observing:
                del self.observers[stream.stream_id]

    def _wake_observers(self, outbox: Outbox) -> None:
        for stream_id in self.observers.keys() & outbox.altered.union(outbox.changed_rules):
            self._wake(self.observers.get(stream_id))

    def _wake(self, watching: set[Watcher] | None) -> None:
        if watching is not None:
            for watcher in list(watching):
                try:
                    watcher.stream_changed()
                except Exception as error:
                    self.faults.report("watcher", error)

    def end_watchers(self) -> None:
        for watching in list(self.watchers.values()):
            for watcher in list(watching):
                try:
                    watcher.shut_down()
                except Exception as error:
                    self.faults.report("watcher", error)


def _ignore(context: object, outcome: Outcome) -> None:
    pass


def _tell(told: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not told.done():
        told.set_result(outcome)


def _nothing(*_: object) -> None:
    pass


def _outcome_unknown() -> StreamError:
    return AppendOutcomeUnknown(
        "the server failed after this was logged: it may be there once the server is back"
    )
