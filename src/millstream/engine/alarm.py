"""An alarm clock for a service that sleeps until there is something to do."""

from __future__ import annotations

import asyncio
import contextlib
import math


class Alarm:
    """Rings once when the earliest time has come that it was set to. Belongs to the event loop."""

    def __init__(self) -> None:
        self._at = math.inf  # on the loop's clock
        self._brought_forward = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._at < math.inf

    def ring_in(self, seconds: float) -> None:
        """Or sooner, when it is set to an earlier time already."""
        at = asyncio.get_running_loop().time() + seconds
        if at < self._at:
            self._at = at
            self._brought_forward.set()

    async def wait(self) -> None:
        """It has rung, and is not set any more. Cancelled, it stays as it is."""
        loop = asyncio.get_running_loop()
        while (seconds := self._at - loop.time()) > 0:
            self._brought_forward.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds if self.is_set else None):
                    await self._brought_forward.wait()
        self._at = math.inf
