"""Expiry. A renewal counts at once; the journal hears of it four times per window at most.

A stream that is alive only thanks to a renewal the journal does not know yet gets a TouchStream
before anything else is submitted for it, so that apply, replay and readers agree.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Protocol

from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.errors import StreamError
from millstream.formats.layout import StreamId
from millstream.limits import DUE_STREAMS_AT_ONCE, EXPIRIES_AT_ONCE
from millstream.state.commands import ExpireStream, TouchStream
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import Stream

if TYPE_CHECKING:
    from millstream.engine.engine import Engine

TOUCHES_PER_WINDOW = 4
PAUSE_SECONDS = 0.01  # between rounds when more have to end than in one
AGAIN_SECONDS = 0.05  # when more streams at rest than are looked at in one go have to end
COMPLAINT = "cannot end streams whose time has come"
SLEEP_SECONDS_MAX = 3600.0  # the wall clock may be set; look again now and then


class Deadlines(Protocol):
    """The streams that rest outside memory. Answers at once."""

    def due(self, now_ms: int, limit: int) -> list[StreamId]:
        """Ids of streams whose deadline has come, the oldest deadlines first."""
        ...

    def next_deadline(self) -> int | None: ...


class Lifetimes:
    """Follows the streams in memory; those at rest end when a look at the store finds them."""

    def __init__(self, engine: Engine, retry: Backoff) -> None:
        self._engine = engine
        self._retry_seconds = retry.seconds_min
        self._at_rest: Deadlines | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._due: list[tuple[int, StreamId]] = []  # (deadline_ms, stream_id), earliest first
        self._followed: set[StreamId] = set()  # streams that stand in `_due`
        self._touching: set[StreamId] = set()  # streams whose renewal is on its way to the journal
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._upkeep = Upkeep(engine.faults, "lifetimes", retry)
        # Streams that met an error and have not been got over since: is another look set?
        self._failed: dict[int, bool] = {}

    def start(self, loop: asyncio.AbstractEventLoop, at_rest: Deadlines | None = None) -> None:
        self._loop = loop
        for stream in self._engine.machine.by_id.values():
            self.follow(stream)
        self._at_rest = at_rest
        self.sweep()

    def follow(self, stream: Stream) -> None:
        """From now on the stream ends when its lifetime does."""
        if not stream.is_mortal or stream.deleted or stream.stream_id in self._followed:
            return
        deadline = stream.deadline_ms(max(stream.touched_ms, stream.accessed_ms))
        assert deadline is not None
        self._followed.add(stream.stream_id)
        heapq.heappush(self._due, (deadline, stream.stream_id))
        if self._due[0][0] == deadline:
            self._set_timer()
        if len(self._due) > 2 * len(self._engine.machine.by_id) + 1000:
            self._forget_absent()

    def _forget_absent(self) -> None:
        """Streams that left memory are found by `sweep` when their time comes."""
        by_id = self._engine.machine.by_id
        self._due = [entry for entry in self._due if entry[1] in by_id]
        heapq.heapify(self._due)
        self._followed = {stream_id for _, stream_id in self._due}

    def sweep(self) -> None:
        """Ends streams at rest whose time has come, and sees to it that this is done again."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._at_rest is None:
            return
        delay: float | None
        try:
            delay = self._sweep(self._at_rest)
        except Exception as error:
            delay = self._upkeep.failed(error, COMPLAINT)
        else:
            self._note_worked()
        if delay is not None:
            self._sweep_timer = self._loop.call_later(delay, self.sweep)

    def _sweep(self, at_rest: Deadlines) -> float | None:
        """Seconds until it is worth doing again; None: nothing at rest has a deadline."""
        machine, now_ms, limit = self._engine.machine, self._engine.clock.now_ms(), 0
        ended = 0
        while not ended:  # those in memory are seen to elsewhere: look behind them
            limit += DUE_STREAMS_AT_ONCE
            due = at_rest.due(now_ms, limit)
            for stream_id in due:
                if stream_id not in machine.by_id and self._try_end_at_rest(stream_id, now_ms):
                    ended += 1
            if len(due) < limit:
                break
        if ended >= DUE_STREAMS_AT_ONCE:
            return AGAIN_SECONDS
        next_ms = at_rest.next_deadline()
        if next_ms is None:
            return None
        return min(max((next_ms - now_ms) / 1000, self._retry_seconds), SLEEP_SECONDS_MAX)

    def _try_end_at_rest(self, stream_id: StreamId, now_ms: int) -> bool:
        """One that makes trouble must not keep those behind it alive."""
        try:
            is_ended = self._end_at_rest(stream_id, now_ms)
        except Exception as error:
            self._look_again(stream_id, error)
            return False
        self._failed.pop(stream_id, None)
        return is_ended

    def _look_again(self, stream_id: StreamId, error: Exception) -> None:
        delay = self._upkeep.failed(error, COMPLAINT)
        if not self._failed.get(stream_id):
            self._failed[stream_id] = True
            self._loop.call_later(delay, self._follow_again, stream_id)

    def _follow_again(self, stream_id: StreamId) -> None:
        """In memory by now or not: one of the two ways finds it."""
        self._failed[stream_id] = False
        try:
            stream = self._engine.machine.by_id.get(stream_id)
            if stream is not None:
                self.follow(stream)
        except Exception as error:
            self._look_again(stream_id, error)
            return
        if stream_id not in self._followed and not self._failed[stream_id]:
            del self._failed[stream_id]  # it rests, or is gone
            self.sweep()

    def _note_worked(self) -> None:
        if not self._failed:
            self._upkeep.worked()

    def _end_at_rest(self, stream_id: StreamId, now_ms: int) -> bool:
        stream = self._engine.machine.find_by_id(stream_id)
        if stream is None or stream.deleted or self.confirm_alive(stream, now_ms):
            return False
        self._engine.submit(ExpireStream(now_ms, stream_id), self._expired, stream_id)
        return True

    def renew(self, stream: Stream, now_ms: int) -> None:
        """A read reached the stream."""
        if stream.ttl_ms is None:
            return
        stream.accessed_ms = now_ms
        if (
            now_ms - stream.touched_ms >= stream.ttl_ms // TOUCHES_PER_WINDOW
            and stream.stream_id not in self._touching
        ):
            touch = TouchStream(now_ms, stream.stream_id)
            self._engine.submit(touch, self._touched, stream.stream_id)
            self._touching.add(stream.stream_id)

    def _touched(self, stream_id: StreamId, outcome: Outcome) -> None:
        self._touching.discard(stream_id)

    @staticmethod
    def is_over(stream: Stream, now_ms: int) -> bool:
        deadline = stream.deadline_ms(max(stream.touched_ms, stream.accessed_ms))
        return deadline is not None and now_ms >= deadline

    def confirm_alive(self, stream: Stream, now_ms: int) -> bool:
        """Not over; and the journal knows or will know why before anything else of this stream."""
        if self.is_over(stream, now_ms):
            return False
        if stream.is_expired(now_ms):
            self._engine.submit_and_forget(TouchStream(stream.accessed_ms, stream.stream_id))
        return True

    def _set_timer(self) -> None:
        deadline_ms = self._due[0][0]
        if self._timer is not None:
            if self._timer_ms == deadline_ms:
                return
            self._timer.cancel()
        delay = (deadline_ms - self._engine.clock.now_ms()) / 1000 + 0.001
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(
            min(max(delay, 0.0), SLEEP_SECONDS_MAX), self._expire_due
        )

    def _expire_due(self) -> None:
        self._timer = None
        now_ms = self._engine.clock.now_ms()
        for _ in range(EXPIRIES_AT_ONCE):  # the timer comes back for the others
            if not self._due or self._due[0][0] > now_ms:
                break
            _, stream_id = heapq.heappop(self._due)
            self._followed.discard(stream_id)
            try:
                is_seen_to = self._expire(stream_id, now_ms)
            except Exception as error:
                self._look_again(stream_id, error)
                continue
            if is_seen_to:
                self._failed.pop(stream_id, None)
            elif self._failed.get(stream_id) is False:  # it went to rest before this second try
                del self._failed[stream_id]
                self._loop.call_soon(self.sweep)
        else:  # with a pause: they are applied in one go that reach the journal together
            if self._due and self._timer is None:
                self._timer_ms = self._due[0][0]
                self._timer = self._loop.call_later(PAUSE_SECONDS, self._expire_due)
        self._note_worked()
        if self._due and self._timer is None:
            self._set_timer()

    def _expire(self, stream_id: StreamId, now_ms: int) -> bool:
        """False: it is not in memory, and this says nothing of it."""
        stream = self._engine.machine.by_id.get(stream_id)
        if stream is None:
            return False
        if stream.deleted:
            return True
        if self.confirm_alive(stream, now_ms):
            self.follow(stream)
        else:
            expire = ExpireStream(now_ms, stream_id)
            self._engine.submit(expire, self._expired, stream_id)
        return True

    def _expired(self, stream_id: StreamId, outcome: Outcome) -> None:
        """A renewal that came before it in the journal wins: then the stream is followed again."""
        if outcome is Done.DELETED:
            return
        try:
            stream = self._engine.machine.find_by_id(stream_id)
        except Exception as error:
            self._look_again(stream_id, error)
            return
        if stream is None:
            return
        if isinstance(outcome, StreamError):  # the journal has no room: try again, not at once
            self._loop.call_later(self._retry_seconds, self.follow, stream)
        else:
            self.follow(stream)

    def stop(self) -> None:
        """Tells the journal every renewal it has not heard of, so that a restart knows."""
        for timer in (self._timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for stream in self._engine.machine.by_id.values():
            if stream.ttl_ms is not None and stream.accessed_ms > stream.touched_ms:
                touch = TouchStream(stream.accessed_ms, stream.stream_id)
                self._engine.submit_and_forget(touch)
