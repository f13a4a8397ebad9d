"""Gives freed memory back when it has piled up.

Flushes and windows take and free pieces of up to a megabyte, from several threads and between
small ones that stay. To map each such piece alone would give it back at once, but the page faults
double what decoding costs (measured). So it is given back now and then, when it is worth it.
What is decoded lies elsewhere, in the memory of Arrow (cli/memory.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.faults import Faults
from millstream.heap import resident_bytes, return_unused
from millstream.limits import MIB, UNUSED_MEMORY_BYTES

LOOK_SECONDS = 0.25
REST_SECONDS_MIN, REST_SECONDS_MAX = 2.0, 60.0  # until it is tried again without such growth
WORTH_BYTES = 8 * MIB  # less than this was not worth it: the rest doubles


class MemoryKeeper:
    def __init__(self, faults: Faults | None = None) -> None:
        self._thread = OffLoop("memory", 1)
        self._upkeep = Upkeep(
            faults or Faults(), "memory", Backoff(REST_SECONDS_MIN, REST_SECONDS_MAX)
        )
        self._is_closing = False
        self._floor_bytes = 0  # what was left after the last time
        self._rest_seconds = REST_SECONDS_MIN
        self._rested_from = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.returns = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._floor_bytes = resident_bytes()
        self._rested_from = loop.time()
        self._look_in(LOOK_SECONDS)

    def _look_in(self, seconds: float) -> None:
        if not self._is_closing:
            self._timer = self._loop.call_later(seconds, self._guard, self._look)

    def _guard(self, step: Callable[[], None]) -> None:
        """Every step runs in here: whatever it raises, somebody looks again."""
        try:
            step()
        except Exception as error:
            self._look_in(self._upkeep.failed(error, "cannot give memory back"))

    def _look(self) -> None:
        now_bytes = resident_bytes()
        self._floor_bytes = min(self._floor_bytes, now_bytes)
        has_grown = now_bytes - self._floor_bytes >= UNUSED_MEMORY_BYTES
        if has_grown or self._loop.time() - self._rested_from >= self._rest_seconds:
            self._thread.run(
                return_unused,
                lambda result: self._guard(lambda: self._returned(now_bytes, result)),
            )
        else:
            self._look_in(LOOK_SECONDS)

    def _returned(self, before_bytes: int, result: object) -> None:
        """What is left was in use a moment ago; some of it may be free the next time."""
        if isinstance(result, Exception):
            raise result
        self.returns += 1
        self._upkeep.worked()
        self._floor_bytes = resident_bytes()
        was_worth_it = before_bytes - self._floor_bytes >= WORTH_BYTES
        self._rest_seconds = (
            REST_SECONDS_MIN if was_worth_it else min(2 * self._rest_seconds, REST_SECONDS_MAX)
        )
        self._rested_from = self._loop.time()
        self._look_in(LOOK_SECONDS)

    async def close(self) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._thread.wait_idle()
        self._thread.close()
