"""Threads for slow work, awaited from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Threads:
    """A few threads of one name."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`; what it raises is raised here.

        Cancelled: work that has begun goes on to its end, and its result is lost.
        """

        def guarded() -> tuple[Result] | BaseException:
            try:
                return (work(),)
            except BaseException as error:  # some cannot travel in a future: see PEP 479
                return error

        result = await asyncio.get_running_loop().run_in_executor(self._pool, guarded)
        if isinstance(result, tuple):
            return result[0]
        if isinstance(result, Exception) and not isinstance(result, StopIteration):
            raise result
        raise RuntimeError(f"a thread was ended by {type(result).__name__}") from result

    async def close(self) -> None:
        """All work that had begun has ended."""
        await asyncio.to_thread(self._pool.shutdown)
