"""`millstream serve`, but nothing stays in memory: for tests that want everything cold.

What is appended is flushed at once and dropped as soon as it is published, and every request but an
append waits until that has happened, or for a moment while others go on writing. So what a reader
is told comes from segments; only who waits at a tail is still served from memory. Run as
`python -m tests.cold.eager_server serve …`.
"""

from __future__ import annotations

import asyncio
import sys

from millstream.api.app import App
from millstream.cli.main import main
from millstream.cold.flusher import Flusher
from millstream.http.message import Request

WAIT_SECONDS, WAITS_MAX = 0.002, 100

_flushers: list[Flusher] = []
_check, _start, _call = Flusher.check, Flusher.start, App.__call__


def start(self: Flusher, loop: asyncio.AbstractEventLoop) -> None:
    self._limits = self._limits._replace(shard_bytes=1)
    _flushers.append(self)
    _start(self, loop)


def check(self: Flusher) -> None:
    _check(self)
    self._drop_held(0)


def is_cold() -> bool:
    return not any(sum(flusher._changes.hot_bytes) for flusher in _flushers)


def call(self: App, request: Request, waited: int = 0) -> None:
    if request.method == b"POST" or is_cold() or waited == WAITS_MAX:
        _call(self, request)
    else:
        asyncio.get_running_loop().call_later(WAIT_SECONDS, call, self, request, waited + 1)


Flusher.start, Flusher.check = start, check  # type: ignore[method-assign]
App.__call__ = call  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
