"""Keeps the touches of all streams: one coroutine that looks at new records, flushes and answers.

A stream costs nothing until a client asks for its touches, and little work while nothing happens.
Nothing here is durable: what is lost with the process makes cursors stale, and clients ask their
database again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

import structlog

from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, in_background
from millstream.errors import StreamError, TouchNotEnabled
from millstream.formats.layout import StreamId
from millstream.limits import (
    TOUCH_ANSWERS_PER_TURN,
    TOUCH_IDLE_SECONDS,
    TOUCH_TIMERS_PER_TURN,
    TOUCH_WORK_PER_TURN,
)
from millstream.schemas.touch_settings import TouchSettings, touch_settings_of
from millstream.state.outbox import Outbox
from millstream.state.stream import Stream
from millstream.touch.filter import FilterBudget
from millstream.touch.journal import Cursor, Told, Wait
from millstream.touch.stream import StreamTouches
from millstream.touch.templates import Activation, Declared
from millstream.touch.timers import Timer, Timers

logger = structlog.get_logger("millstream.touch")

SLEEP_SECONDS_MAX = 60.0
SWEEP_SECONDS_MIN = 0.1


def not_enabled() -> TouchNotEnabled:
    return TouchNotEnabled("touch not enabled")


class TouchService:
    def __init__(self, engine: Engine, timings: Timings) -> None:
        self._engine = engine
        self._streams: dict[StreamId, StreamTouches] = {}
        self._behind: OrderedDict[StreamId, None] = OrderedDict()  # have records to be looked at
        self._timers = Timers()
        self._flushes: dict[StreamId, tuple[float, Timer]] = {}
        self._answers: deque[tuple[StreamTouches, Wait, Told | StreamError, float]] = deque()
        self._budget = FilterBudget()
        self._stirred = asyncio.Event()
        self._is_stopping = False
        self._has_failed = False  # in this turn
        self._upkeep = Upkeep(engine.faults, "touch", timings.touch_retry)

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Afterwards no wait is answered any more; `end_waits` has answered all of them before."""
        self._loop = asyncio.get_running_loop()
        self._engine.listeners.append(self._heard)
        try:
            async with in_background(group, self._drive()):
                yield
        finally:
            self._engine.listeners.remove(self._heard)

    def end_waits(self) -> None:
        """The server stops: every wait is answered now, and those that still come at once."""
        self._is_stopping = True
        for touches in self._streams.values():
            told = Told(False, touches.journal.moment())
            for wait in [*touches.journal.waits, *touches.settling]:
                self._end(touches, wait, told)
        self._answer(len(self._answers))

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def waits(self) -> int:
        return sum(len(touches.journal.waits) for touches in self._streams.values())

    # What clients ask

    def touches_of(self, stream: Stream) -> StreamTouches:
        """Those of this stream, from now on if no client asked before. Raises TouchNotEnabled."""
        settings = None if stream.rules is None else touch_settings_of(stream.rules)
        if settings is None:
            raise not_enabled()
        now = self._loop.time()
        touches = self._streams.get(stream.stream_id)
        if touches is None:
            touches = self._begin(stream, settings, now)
        touches.asked_at = now
        return touches

    def activate(
        self, stream: Stream, declared: Iterable[Declared], ttl_ms: float | None
    ) -> list[Activation]:
        """`ttl_ms` None: as the settings say."""
        touches, now_ms = self.touches_of(stream), self._engine.clock.now_ms()
        if ttl_ms is None:
            ttl_ms = int(touches.settings.templates.default_inactivity_ttl_ms)
        tail = stream.log.tail_ordinal
        activations, told = touches.activate(declared, tail, now_ms, ttl_ms)
        for wait in told:
            self._end(touches, wait, Told(True, touches.journal.moment()))
        self._plan_flush(stream.stream_id, touches)
        return activations

    def current_cursor(self, stream_id: StreamId, touches: StreamTouches) -> Cursor:
        """Names what is known now. What is pending is flushed: it is not told to this client."""
        if touches.journal.is_dirty:
            self._flush(stream_id, touches)
        return Cursor(touches.journal.epoch, touches.journal.generation)

    def wait(
        self, stream_id: StreamId, touches: StreamTouches, wait: Wait, since: int, seconds: float
    ) -> None:
        """`wait.tell` is called once: now, or when a key of it is touched after the generation
        `since`, the time is up, the stream ends or the server stops."""
        journal = touches.journal
        if wait.is_over:
            return
        if touches.was_touched(wait, since):
            if journal.is_dirty:
                self._flush(stream_id, touches)  # what is pending is told by the same answer
            self._tell_now(touches, wait, Told(True, journal.moment()))
        elif seconds <= 0 or self._is_stopping:
            self._tell_now(touches, wait, Told(False, journal.moment()))
        else:
            journal.join(wait)
            self._set_end(touches, wait, seconds)
            self._plan_flush(stream_id, touches)

    def settle(
        self, stream_id: StreamId, touches: StreamTouches, wait: Wait, seconds: float
    ) -> None:
        """`wait.tell` is called once: when nothing is pending, or the time is up."""
        if wait.is_over:
            return
        if touches.is_settled or seconds <= 0 or self._is_stopping:
            wait.tell(Told(False, touches.journal.moment()))
            return
        touches.settling.add(wait)
        self._set_end(touches, wait, seconds)
        self._plan_flush(stream_id, touches)

    def leave(self, touches: StreamTouches, wait: Wait) -> None:
        """The client is gone: it is not told."""
        self._forget(touches, wait)

    def end(self, touches: StreamTouches, wait: Wait) -> None:
        """The client wants its answer now."""
        if not wait.is_over:
            self._forget(touches, wait)
            wait.tell(Told(False, touches.journal.moment()))

    def _tell_now(self, touches: StreamTouches, wait: Wait, told: Told) -> None:
        wait.is_over = True
        self._count(touches, told)
        wait.tell(told)

    # Ends of waits

    def _set_end(self, touches: StreamTouches, wait: Wait, seconds: float) -> None:
        end = partial(self._time_is_up, touches, wait)
        wait.timer = self._set_timer(self._loop.time() + seconds, end)

    def _time_is_up(self, touches: StreamTouches, wait: Wait) -> None:
        self._end(touches, wait, Told(False, touches.journal.moment()))

    def _end(self, touches: StreamTouches, wait: Wait, outcome: Told | StreamError) -> None:
        """It will be told in its turn, and leaves then: this may be about thousands at once."""
        if not wait.is_over:
            wait.is_over = True
            self._answers.append((touches, wait, outcome, self._loop.time()))
            self._stirred.set()

    def _forget(self, touches: StreamTouches, wait: Wait) -> None:
        wait.is_over = True
        touches.journal.leave(wait)
        touches.settling.discard(wait)
        if wait.timer is not None:
            self._timers.cancel(wait.timer)
            wait.timer = None

    def _answer(self, most: int) -> None:
        now = self._loop.time()
        for _ in range(min(most, len(self._answers))):
            touches, wait, outcome, ended = self._answers.popleft()
            self._forget(touches, wait)
            touches.asked_at = now
            if isinstance(outcome, Told):
                self._count(touches, outcome)
                if outcome.touched:
                    took_ms = (now - ended) * 1000
                    touches.totals.wake_ms += took_ms
                    touches.totals.wake_ms_max = max(touches.totals.wake_ms_max, took_ms)
            self._upkeep.tell(wait.tell, outcome)

    @staticmethod
    def _count(touches: StreamTouches, told: Told) -> None:
        if told.touched:
            touches.totals.touched_waits += 1
        else:
            touches.totals.timed_out_waits += 1

    # What the engine tells

    def _heard(self, outbox: Outbox) -> None:
        streams = self._streams
        if not streams or not (outbox.touched or outbox.ended or outbox.changed_rules):
            return
        now_ms = self._engine.clock.now_ms()
        for stream_id, (first, end) in outbox.touched.items():
            touches = streams.get(stream_id)
            if touches is not None:
                touches.heard(first, end, now_ms)
                self._behind[stream_id] = None
        for stream_id in outbox.changed_rules:
            self._rules_changed(stream_id, now_ms)
        for stream_id in outbox.ended:
            self._drop(stream_id)
        self._stirred.set()

    def _rules_changed(self, stream_id: StreamId, now_ms: int) -> None:
        stream, touches = self._engine.machine.by_id.get(stream_id), self._streams.get(stream_id)
        if touches is None:
            return
        rules = None if stream is None else stream.rules
        settings = None if rules is None else touch_settings_of(rules)
        if stream is None or settings is None:
            self._drop(stream_id)
            return
        touches.change_settings(settings)
        if stream.log.tail_ordinal > touches.target:  # what came while touch was off
            touches.give_up(stream.log.tail_ordinal, now_ms)
            self._behind[stream_id] = None

    # The life of a stream here

    def _begin(self, stream: Stream, settings: TouchSettings, now: float) -> StreamTouches:
        now_ms = self._engine.clock.now_ms()
        touches = StreamTouches(settings, stream.log.tail_ordinal, self._budget, now, now_ms)
        self._streams[stream.stream_id] = touches
        self._sweep_later(stream.stream_id, touches)
        return touches

    def _drop(self, stream_id: StreamId) -> None:
        """Touches are no more: those who wait are told so."""
        touches = self._streams.pop(stream_id, None)
        if touches is None:
            return
        for wait in [*touches.journal.waits, *touches.settling]:
            self._end(touches, wait, not_enabled())
        touches.journal.close()
        self._behind.pop(stream_id, None)
        flush = self._flushes.pop(stream_id, None)
        if flush is not None:
            self._timers.cancel(flush[1])

    def _sweep_later(self, stream_id: StreamId, touches: StreamTouches) -> None:
        seconds = max(touches.settings.templates.gc_interval_ms / 1000, SWEEP_SECONDS_MIN)
        at = self._loop.time() + min(seconds, SLEEP_SECONDS_MAX)
        self._set_timer(at, partial(self._sweep, stream_id, touches))

    def _sweep(self, stream_id: StreamId, touches: StreamTouches) -> None:
        if self._streams.get(stream_id) is not touches:
            return
        now = self._loop.time()
        touches.retire_unseen(self._engine.clock.now_ms())
        touches.journal.tidy(now)
        is_needed = touches.journal.waits or touches.settling or len(touches.templates)
        if not is_needed and now - touches.asked_at >= TOUCH_IDLE_SECONDS:
            self._drop(stream_id)
            return
        self._plan_flush(stream_id, touches)
        self._sweep_later(stream_id, touches)

    # One loop for all of them

    async def _drive(self) -> None:
        while True:
            try:
                await self._wait_until_due()
                self._has_failed = False
                self._ring_some()
                self._look_at_some()
                self._answer(TOUCH_ANSWERS_PER_TURN)
                if not self._has_failed:
                    self._upkeep.worked()
            except Exception as error:
                await asyncio.sleep(self._upkeep.failed(error, "touches wait"))
            if self._behind or self._answers:
                self._stirred.set()
            await asyncio.sleep(0)  # others have their turn, however much is to do

    async def _wait_until_due(self) -> None:
        """Until there are records or answers, or a time has come."""
        at = self._timers.next_at()
        if not self._stirred.is_set():
            ring = None if at is None else self._loop.call_at(at, self._stirred.set)
            try:
                await self._stirred.wait()
            finally:
                if ring is not None:
                    ring.cancel()
        self._stirred.clear()

    def _set_timer(self, at: float, call: Callable[[], None]) -> Timer:
        first = self._timers.next_at()
        if first is None or at < first:
            self._stirred.set()  # the loop sleeps for too long
        return self._timers.set(at, call)

    def _ring_some(self) -> None:
        now = self._loop.time()
        for _ in range(TOUCH_TIMERS_PER_TURN):
            call = self._timers.take(now)
            if call is None:
                return
            call()
        self._stirred.set()  # there may be more

    def _look_at_some(self) -> None:
        """New records of some streams, in turn."""
        work = 0
        while self._behind and work < TOUCH_WORK_PER_TURN:
            stream_id, _ = self._behind.popitem(last=False)
            touches = self._streams.get(stream_id)
            if touches is None:
                continue
            work += 1 + self._look_at(stream_id, touches)
            if touches.lag:
                self._behind[stream_id] = None  # behind all others
            self._plan_flush(stream_id, touches)

    def _look_at(self, stream_id: StreamId, touches: StreamTouches) -> int:
        now_ms = self._engine.clock.now_ms()
        stream = self._engine.machine.by_id.get(stream_id)
        log = None if stream is None else stream.log
        try:
            return touches.look_at_some(log, self._loop.time(), now_ms)
        except Exception as error:
            # One record must not hold up all that follow it.
            self._has_failed = True
            self._upkeep.failed(error, "a record could not be looked at")
            touches.give_up(touches.scanned + 1, now_ms)
            return 1

    # Flushes

    def _plan_flush(self, stream_id: StreamId, touches: StreamTouches) -> None:
        """What is pending is flushed when its time has come, which may be now."""
        if not touches.journal.is_dirty:
            self._tell_settled(touches)
            return
        now = self._loop.time()
        at = touches.flush_at(now)
        planned = self._flushes.get(stream_id)
        if at <= now:
            self._flush(stream_id, touches)
        elif planned is None or at < planned[0]:
            if planned is not None:
                self._timers.cancel(planned[1])
            flush = partial(self._flush, stream_id, touches)
            self._flushes[stream_id] = (at, self._set_timer(at, flush))

    def _flush(self, stream_id: StreamId, touches: StreamTouches) -> None:
        planned = self._flushes.pop(stream_id, None)
        if planned is not None:
            self._timers.cancel(planned[1])
        if not touches.journal.is_dirty:
            return
        ended = touches.journal.flush(self._loop.time(), self._engine.clock.now_ms())
        touches.totals.flushes += 1
        touches.totals.wakes += len(ended)
        told, now = Told(True, touches.journal.moment()), self._loop.time()
        for wait in ended:  # not `_end`: they may be ten thousand
            if not wait.is_over:
                wait.is_over = True
                self._answers.append((touches, wait, told, now))
        self._stirred.set()
        self._tell_settled(touches)

    def _tell_settled(self, touches: StreamTouches) -> None:
        if touches.settling and touches.is_settled:
            told = Told(False, touches.journal.moment())
            for wait in list(touches.settling):
                self._end(touches, wait, told)
