"""The pipeline beside the server: a process of its own, started when there is work for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

log = structlog.get_logger("millstream.pipeline")

LOOK_SECONDS = 20.0  # between two looks for work
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 30.0, 900.0
STOP_SECONDS_MAX = 10.0
EXIT_CANNOT_RUN = 2  # it said what is missing


class WorkFinder(Protocol):
    def has_work(self, done: Callable[[bool], None]) -> None:
        """Calls `done` later with whether a job would be given to who asks."""
        ...


class PipelineProcess:
    """`command` runs all jobs there are and ends."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], work: WorkFinder
    ) -> None:
        self._command = command
        self._environment = environment
        self._work = work
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._task = tasks.create_task(self._look_after())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _look_after(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not await self._has_work():
                continue
            exit_code = await self._run()
            if exit_code == EXIT_CANNOT_RUN:
                log.warning(
                    "the pipeline cannot run here, see its message; the server goes on without it, "
                    "segments stay small (--pipeline off says that this is meant)"
                )
                return
            failures = failures + 1 if exit_code else 0
            if failures:
                delay = min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** (failures - 1))
                log.warning("the pipeline ended", exit_code=exit_code, again_in_seconds=delay)
                await asyncio.sleep(delay)

    async def _has_work(self) -> bool:
        answer = asyncio.get_running_loop().create_future()

        def done(found: bool) -> None:
            if not answer.done():
                answer.set_result(found)

        self._work.has_work(done)
        return bool(await answer)

    async def _run(self) -> int:
        log.info("starting the pipeline")
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=dict(self._environment)
        )
        return await self._process.wait()
