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
        """Raises nothing: `done` also hears when no thread can be had."""
        try:
            future = self._loop.run_in_executor(self._pool, work)
        except Exception as error:
            self._loop.call_soon(done, error)
            return

        def finished(future: asyncio.Future[Result]) -> None:
            self._under_way.discard(future)
            if not future.cancelled():
                error = future.exception()
                done(future.result() if error is None else _as_exception(error))

        self._under_way.add(future)
        future.add_done_callback(finished)

    async def wait_idle(self) -> None:
        """Everything that was begun has ended and its callback was called."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def close(self) -> None:
        self._pool.shutdown()


def _as_exception(error: BaseException) -> Exception:
    """What ends a program elsewhere (SystemExit) ends no service here."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"a thread was ended by {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
