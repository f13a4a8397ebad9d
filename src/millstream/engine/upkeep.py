"""One policy for everything that goes wrong in the background.

What the world does is expected: a store that is away, a full disk, a journal without room. It is
told once, when it begins, and the work is tried again after a back-off that grows. Everything else
is a fault of the program: Faults hears of it every time, /metrics counts it and /readyz shows it
until the work has succeeded; it is tried again after the same back-off.

A service asks one question of each of its lines: if this raises, who runs me again? So its steps
run in a guard that knows the answer, and those who wait for it are told, each on their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NoReturn, ParamSpec

import structlog

from millstream.engine.timings import DOUBLINGS_MAX, Backoff
from millstream.errors import StreamError
from millstream.faults import Faults, Service

logger = structlog.get_logger("millstream.upkeep")

Arguments = ParamSpec("Arguments")


def is_expected(error: BaseException) -> bool:
    """Not the program's doing, and over some day without a change of the program."""
    return isinstance(error, OSError) or (isinstance(error, StreamError) and error.retriable)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, but not longer than this; whether it is set then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Upkeep:
    """What one service knows of its failures. Belongs to the event loop, and raises nothing."""

    def __init__(self, faults: Faults, service: Service, backoff: Backoff) -> None:
        self.failures = 0  # in a row
        self.error: BaseException | None = None  # the last of them
        self._faults = faults
        self._service = service
        self._backoff = backoff
        self._is_told = False  # the log says already that the world is in the way

    def failed(self, error: BaseException, complaint: str) -> float:
        """Seconds until the next try. `complaint` says what is not done now, for people."""
        self.error = error
        if not is_expected(error):
            self._faults.report(self._service, error)
        elif not self._is_told:
            self._is_told = True
            logger.warning(complaint, service=self._service, error=str(error))
        self.failures = min(self.failures + 1, DOUBLINGS_MAX)
        return self._backoff.seconds(self.failures)

    def worked(self) -> bool:
        """The service did what it is there for; whether it had failed before."""
        if not self.failures:
            return False
        self.failures, self.error, self._is_told = 0, None, False
        self._faults.works(self._service)
        return True

    async def repeat(self, work: Callable[[], Awaitable[float]], complaint: str) -> NoReturn:
        """Again after as many seconds as `work` returns, or as the back-off says when it raised.

        Ends by being cancelled only, wherever `work` is.
        """
        while True:
            try:
                seconds = await work()
            except Exception as error:
                seconds = self.failed(error, complaint)
            await asyncio.sleep(seconds)

    def tell(self, call: Callable[..., object], *args: Any) -> None:
        """One who waited. What they do with it must not harm us or the others."""
        try:
            call(*args)
        except Exception as error:
            self._faults.report("watcher", error)

    def guarded(
        self, call: Callable[Arguments, object], complaint: str
    ) -> Callable[Arguments, None]:
        """For what is called again and again anyway: what it raises is told, and that is it.

        A failure counts until the service says that it has worked.
        """

        def run(*args: Arguments.args, **named: Arguments.kwargs) -> None:
            try:
                call(*args, **named)
            except Exception as error:
                self.failed(error, complaint)

        return run


@contextlib.asynccontextmanager
async def in_background(
    group: asyncio.TaskGroup, work: Coroutine[Any, Any, object]
) -> AsyncIterator[None]:
    """`work` goes on beside the block. Afterwards it is over: cancelled, wherever it was.

    An error that ends it before that is for the group, which ends everything.
    """
    task = group.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
