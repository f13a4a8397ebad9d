"""Work off the event loop: a callable runs in a thread, its result comes back as a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class OffLoop:
    """A few threads of one name. `done` is called on the loop with the result or the error."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._under_way: set[asyncio.Future[Any]] = set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Callable[[], Result], done: Callable[[Result | Exception], None]) -> None:
        future = self._loop.run_in_executor(self._pool, work)

        def finished(future: asyncio.Future[Result]) -> None:
            self._under_way.discard(future)
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, Exception):
                done(error)
            elif error is not None:
                raise error
            else:
                done(future.result())

        self._under_way.add(future)
        future.add_done_callback(finished)

    async def wait_idle(self) -> None:
        """Everything that was begun has ended and its callback was called."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def close(self) -> None:
        self._pool.shutdown()
