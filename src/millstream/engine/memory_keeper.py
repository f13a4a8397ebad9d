"""Gives freed memory back when it has piled up.

Cold reads and flushes take and free pieces of about a megabyte, from several threads and between
small ones that stay. To map each such piece alone would give it back at once, but the page faults
double what decoding costs (measured). So it is given back now and then, when it is worth it.
"""

from __future__ import annotations

import asyncio

from millstream.engine.off_loop import OffLoop
from millstream.heap import resident_bytes, return_unused
from millstream.limits import UNUSED_MEMORY_BYTES

LOOK_SECONDS = 0.25


class MemoryKeeper:
    def __init__(self) -> None:
        self._thread = OffLoop("memory", 1)
        self._floor_bytes = 0  # what was left after the last time
        self._timer: asyncio.TimerHandle | None = None
        self.returns = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._floor_bytes = resident_bytes()
        self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        now_bytes = resident_bytes()
        self._floor_bytes = min(self._floor_bytes, now_bytes)
        if now_bytes - self._floor_bytes < UNUSED_MEMORY_BYTES:
            self._look_later()
        else:
            self._thread.run(return_unused, self._returned)

    def _returned(self, _: object) -> None:
        """What is left now is in use: only what comes on top of it may be unused again."""
        self.returns += 1
        self._floor_bytes = resident_bytes()
        self._look_later()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._thread.wait_idle()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.close()
