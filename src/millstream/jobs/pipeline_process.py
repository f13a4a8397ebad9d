"""The pipeline beside the server: a process of its own, started when there is work for it and all
that it needs is there. That may come later: `make serve` installs it while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from millstream.config import Config, java_home, pipeline_environment
from millstream.engine.timings import Timings
from millstream.faults import Faults
from millstream.jobs.pipeline_requirements import find_missing
from millstream.jobs.rewrites import COMPACT
from millstream.jobs.service import Jobs

logger = structlog.get_logger("millstream.pipeline")


def pipeline_beside(
    config: Config, jobs: Jobs, faults: Faults, timings: Timings, key: str | None = None
) -> PipelineProcess:
    """Does the jobs that `millstream pipeline run` asks for, on Spark."""
    requirements = Requirements()

    async def is_wanted() -> bool:
        return await requirements.are_met() and await jobs.has_work(COMPACT)

    action = ("run", "--once")
    return PipelineProcess(config, action, is_wanted, timings.pipeline_look, faults, timings, key)


class Requirements:
    """What a pipeline on Spark needs. The log says what is missing, once, and when it has come."""

    def __init__(self) -> None:
        self._missing: str | None = None  # as it was last said

    async def are_met(self) -> bool:
        missing = await asyncio.to_thread(find_missing, java_home())
        if missing != self._missing:
            self._missing = missing
            if missing is None:
                logger.info("the pipeline has all that it needs now")
            else:
                logger.warning(
                    f"{missing}. The server goes on without it and starts it by itself once that "
                    "is there; segments stay small until then (--pipeline off: this is meant)"
                )
        return missing is None


class PipelineProcess:
    """`millstream pipeline {action}`, begun whenever a look finds that it is wanted, one at a time.

    It runs all the jobs there are and ends. Its process group is its own, with its JVM in it.
    """

    program = (sys.executable, "-m", "millstream")

    def __init__(
        self,
        config: Config,
        action: tuple[str, ...],
        is_wanted: Callable[[], Awaitable[bool]],
        look_seconds: float,
        faults: Faults,
        timings: Timings,
        key: str | None = None,
    ) -> None:
        """`key` is what the process shows when it talks to the server."""
        self._action = ("pipeline", *action, "--until-input-ends")
        self._is_wanted = is_wanted
        self._look_seconds = look_seconds
        self._faults = faults
        self._timings = timings
        self._environment = pipeline_environment(config, key)

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup, url: str) -> AsyncIterator[None]:
        """`url` is where the server is reached from this machine. Afterwards the process has ended
        and no other one begins."""
        task = group.create_task(self._look_after((*self.program, *self._action, "--server", url)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _look_after(self, command: tuple[str, ...]) -> None:
        """For as long as the server runs: errors of ours and of the pipeline do not end it.
        Cancelled, it has ended the process."""
        failures = 0
        while True:
            exit_code = 0
            try:
                if await self._is_wanted():
                    exit_code = await self._run(command)
            except Exception as error:
                self._faults.report("pipeline", error)
                exit_code = 1
            else:
                self._faults.works("pipeline")
            failures = failures + 1 if exit_code else 0
            delay = self._look_seconds
            if failures:
                delay = self._timings.pipeline_retry.seconds(failures)
                logger.warning("the pipeline ended", exit_code=exit_code, again_in_seconds=delay)
            await asyncio.sleep(delay)

    async def _run(self, command: tuple[str, ...]) -> int:
        """The exit code. Cancelled, the process has ended all the same."""
        logger.info("starting the pipeline")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,  # ends with us, however we end
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("the pipeline cannot be started", error=str(error))
            return 1
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """It is asked to end, and made to when it does not."""
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            # Not asyncio.timeout: in a task that is cancelled already, Python 3.11 lets that raise
            # CancelledError instead of TimeoutError, and the process would be left alone.
            await asyncio.wait_for(process.wait(), self._timings.pipeline_stop)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
