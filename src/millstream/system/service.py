"""Keeps the server's own streams as the settings say, and writes to `__stream_metrics__`.

Nothing waits for this and nothing fails with it. While the disk is full or the log refuses, it is
tried again later, ever more rarely; what was measured meanwhile goes into one longer window.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import structlog

from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, in_background
from millstream.errors import StreamError, StreamExists
from millstream.limits import (
    SYSTEM_LOOK_SECONDS,
    SYSTEM_MARK_BYTES,
    SYSTEM_MARK_MS,
    SYSTEM_MEMORY_BYTES,
)
from millstream.protocol.offsets import Position
from millstream.protocol.patterns import text_of
from millstream.schemas.profiles.metrics import metrics_rules
from millstream.state.commands import KeepSystemStream, TrimStream, WriteSystemStream
from millstream.state.system_streams import AGES_MS, REGISTRY, STREAM_METRICS
from millstream.system.interval_records import Measured, Series, Window, encode_record
from millstream.system.measurements import Measurements

logger = structlog.get_logger("millstream.system")

COMPLAINT = "cannot write the server's own streams now"
METRICS_RULES = metrics_rules(lean=True)  # a search over itself is not worth its indexes


class SystemSettings(NamedTuple):
    registry: bool
    metrics_seconds: float  # 0: none are written
    is_memory_only: bool  # no sweep of the cold tier gives old records up

    def wants(self, path: bytes) -> bool:
        return self.registry if path == REGISTRY else self.metrics_seconds > 0


class SystemStreamService:
    def __init__(
        self,
        engine: Engine,
        measurements: Measurements,
        settings: SystemSettings,
        timings: Timings,
    ) -> None:
        self._engine = engine
        self._measurements = measurements
        self._settings = settings
        self._upkeep = Upkeep(engine.faults, "system", timings.system_retry)
        self._instance = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._window_start_ms = engine.clock.now_ms()
        self._taken: set[bytes] = set()  # names that streams of clients have from before
        self._marks = {path: _Marks(age_ms) for path, age_ms in AGES_MS.items()}

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """From here on; what clients do from now on is in the registry, if it can be written at
        all. Afterwards nothing is written any more."""
        async with in_background(group, self._upkeep.repeat(self._step, COMPLAINT)):
            await asyncio.sleep(0)  # the first command is on its way before the doors open
            yield

    async def _step(self) -> float:
        """Seconds until the next one. Raises StreamError when the log takes nothing."""
        for path in (REGISTRY, STREAM_METRICS):
            await self._keep(path)
        if self._settings.metrics_seconds:
            await self._write_metrics()
        if self._settings.is_memory_only:
            self._trim()
        self._upkeep.worked()
        return self._settings.metrics_seconds or SYSTEM_LOOK_SECONDS

    async def _keep(self, path: bytes) -> None:
        """Writes only when the state is not as the settings want it."""
        is_wanted = self._settings.wants(path)
        if self._engine.machine.system.is_kept(path) is is_wanted or path in self._taken:
            return
        rules = METRICS_RULES if path == STREAM_METRICS else None
        now_ms = self._engine.clock.now_ms()
        outcome = await self._engine.perform(KeepSystemStream(now_ms, path, is_wanted, rules))
        if isinstance(outcome, StreamExists):
            self._taken.add(path)
            logger.warning("a stream from before has a reserved name", stream=text_of(path))
        elif isinstance(outcome, StreamError):
            raise outcome

    async def _write_metrics(self) -> None:
        now_ms = self._engine.clock.now_ms()
        if now_ms - self._window_start_ms < 900 * self._settings.metrics_seconds:
            return  # the first look comes with the start, and others after a failure
        measured = self._measurements.take()
        if not measured:
            self._window_start_ms = now_ms
            return
        if not self._engine.machine.system.is_kept(STREAM_METRICS):
            return
        window = Window(self._window_start_ms, now_ms, self._instance)
        outcome = await self._engine.perform(_write_command(window, measured))
        if isinstance(outcome, StreamError):
            raise outcome
        self._measurements.settle()
        self._window_start_ms = now_ms

    def _trim(self) -> None:
        machine, now_ms = self._engine.machine, self._engine.clock.now_ms()
        for path, marks in self._marks.items():
            stream = machine.find(path) if machine.system.owns(path) else None
            if stream is None:
                continue
            place = marks.take_due(now_ms, stream.log.tail)
            if place is not None:
                self._engine.submit_and_forget(TrimStream(now_ms, stream.stream_id, *place))


def _write_command(
    window: Window, measured: Sequence[tuple[Series, Measured]]
) -> WriteSystemStream:
    records = [encode_record(window, series, values) for series, values in measured]
    messages = [record + b"," for _, record in records]
    ends = array("I", accumulate(map(len, messages))) if len(messages) > 1 else array("I")
    return WriteSystemStream(
        window.end_ms,
        STREAM_METRICS,
        b"".join(messages),
        ends.tobytes(),
        len(messages),
        tuple(key for key, _ in records),
    )


class _Mark(NamedTuple):
    at_ms: int
    place: Position


class _Marks:
    """Where a stream was at some moments, to know where to cut it later."""

    def __init__(self, age_ms: int) -> None:
        self._age_ms = age_ms
        self._marks: deque[_Mark] = deque()

    def take_due(self, now_ms: int, tail: Position) -> Position | None:
        """Up to where it has to be given up, if it has."""
        marks, due = self._marks, None
        last = marks[-1] if marks else _Mark(0, Position(0, 0))
        is_later = now_ms - last.at_ms >= SYSTEM_MARK_MS and tail != last.place
        if is_later or tail.byte - last.place.byte >= SYSTEM_MARK_BYTES:
            marks.append(_Mark(now_ms, tail))
        while marks and (
            now_ms - marks[0].at_ms >= self._age_ms
            or tail.byte - marks[0].place.byte >= SYSTEM_MEMORY_BYTES
        ):
            due = marks.popleft().place
        return due
