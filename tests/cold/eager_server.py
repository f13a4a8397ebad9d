"""`millstream serve`, but nothing stays in memory: for tests that want everything cold.

What is appended is flushed at once and dropped as soon as it is published, and every request but an
append waits until that has happened, or for a moment while others go on writing. So what a reader
is told comes from segments; only who waits at a tail is still served from memory. Run as
`python -m tests.cold.eager_server serve …`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.api.app import App
from millstream.cli.main import main
from millstream.cold.flusher import Flusher
from millstream.http.message import Request

WAIT_SECONDS, WAITS_MAX = 0.002, 100

_flushers: list[Flusher] = []
_running, _handle = Flusher.running, App.handle


@asynccontextmanager
async def running(self: Flusher, group: asyncio.TaskGroup) -> AsyncIterator[None]:
    self._limits = self._limits._replace(shard_bytes=1)
    _flushers.append(self)
    async with _running(self, group):
        yield


async def drop_published(self: Flusher) -> None:
    """Whenever the flusher looks, as it does after every flush."""
    while not self._published.shrink(0):
        await asyncio.sleep(0)


def is_cold() -> bool:
    return not any(
        sum(flusher._changes.hot_bytes) or flusher._begun or flusher.held_bytes
        for flusher in _flushers
    )


def handle(self: App, request: Request, waited: int = 0) -> None:
    if request.method == b"POST" or is_cold() or waited == WAITS_MAX:
        _handle(self, request)
    else:
        asyncio.get_running_loop().call_later(WAIT_SECONDS, handle, self, request, waited + 1)


Flusher.running = running  # type: ignore[method-assign]
Flusher._drop_published = drop_published  # type: ignore[method-assign]
App.handle = handle  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
