"""Gives freed memory back when it has piled up.

Flushes and windows take and free pieces of up to a megabyte, from several threads and between
small ones that stay. To map each such piece alone would give it back at once, but the page faults
double what decoding costs (measured). So it is given back now and then, when it is worth it.
What is decoded lies elsewhere, in the memory of Arrow (cli/memory.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from millstream.engine.threads import Threads
from millstream.engine.timings import DOUBLINGS_MAX, Timings
from millstream.engine.upkeep import Upkeep, in_background
from millstream.faults import Faults
from millstream.heap import resident_bytes, return_unused
from millstream.limits import MIB, UNUSED_MEMORY_BYTES

WORTH_BYTES = 8 * MIB  # less than this was not worth it: the rest until the next time doubles
COMPLAINT = "cannot give memory back"


class MemoryKeeper:
    def __init__(self, faults: Faults, timings: Timings) -> None:
        self._look_seconds = timings.memory_look
        self._rest = timings.memory_rest  # until it is tried again without such growth
        self._thread = Threads("memory", 1)
        self._upkeep = Upkeep(faults, "memory", timings.memory_rest)
        self._floor_bytes = 0  # what was left after the last time
        self._vain = 0  # times in a row that were not worth it
        self._rested_from = 0.0
        self.returns = 0

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Looks several times a second. Afterwards it does not, and its thread has ended."""
        self._floor_bytes = resident_bytes()
        self._rested_from = asyncio.get_running_loop().time()
        try:
            async with in_background(group, self._run()):
                yield
        finally:
            await self._thread.close()

    async def _run(self) -> None:
        await asyncio.sleep(self._look_seconds)
        await self._upkeep.repeat(self._look, COMPLAINT)

    async def _look(self) -> float:
        """Memory is given back, if that may be worth it; seconds until the next look."""
        now_bytes = resident_bytes()
        self._floor_bytes = min(self._floor_bytes, now_bytes)
        has_grown = now_bytes - self._floor_bytes >= UNUSED_MEMORY_BYTES
        rested_seconds = asyncio.get_running_loop().time() - self._rested_from
        if has_grown or rested_seconds >= self._rest.seconds(self._vain + 1):
            await self._thread.run(return_unused)
            self._note_return(now_bytes)
        return self._look_seconds

    def _note_return(self, before_bytes: int) -> None:
        """What is left was in use a moment ago; some of it may be free the next time."""
        self.returns += 1
        self._upkeep.worked()
        self._floor_bytes = resident_bytes()
        was_worth_it = before_bytes - self._floor_bytes >= WORTH_BYTES
        self._vain = 0 if was_worth_it else min(self._vain + 1, DOUBLINGS_MAX)
        self._rested_from = asyncio.get_running_loop().time()
