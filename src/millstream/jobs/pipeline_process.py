"""The pipeline beside the server: a process of its own, started when there is work for it and all
that it needs is there. That may come later: `make serve` installs it while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import ClassVar, Protocol

import structlog

from millstream.config import Config, java_home, pipeline_environment
from millstream.faults import Faults
from millstream.jobs.pipeline_requirements import find_missing

logger = structlog.get_logger("millstream.pipeline")

LOOK_SECONDS = 20.0  # between two looks for work
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 30.0, 900.0
STOP_SECONDS_MAX = 10.0


class WorkFinder(Protocol):
    async def has_work(self) -> bool:
        """Whether a job would be given to who asks; raises nothing."""
        ...


class PipelineProcess:
    """It runs all the jobs there are and ends. Its process group is its own, with its JVM in it."""

    action: ClassVar[tuple[str, ...]] = ("pipeline", "run", "--once", "--until-input-ends")

    def __init__(
        self,
        config: Config,
        work: WorkFinder,
        faults: Faults | None = None,
        *,
        key: str | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._faults = faults or Faults()
        self._environment = pipeline_environment(config, key)
        self._work = work
        self._look_seconds = look_seconds
        self._missing: str | None = None  # as it was last said
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, url: str) -> None:
        """`url` is where the server is reached from this machine."""
        self._command = (sys.executable, "-m", "millstream", *self.action, "--server", url)
        self._task = loop.create_task(self._look_after())

    async def close(self) -> None:
        """The process has ended when this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _look_after(self) -> None:
        """For as long as the server runs: errors of ours and of the pipeline do not end it."""
        failures = 0
        while True:
            try:
                exit_code = await self._look()
            except Exception as error:
                self._faults.report("pipeline", error)
                exit_code = 1
            else:
                self._faults.works("pipeline")
            failures = failures + 1 if exit_code else 0
            delay = self._look_seconds
            if failures:
                delay = min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** (failures - 1))
                logger.warning("the pipeline ended", exit_code=exit_code, again_in_seconds=delay)
            await asyncio.sleep(delay)

    async def _look(self) -> int:
        """The exit code of a run, if there was reason for one and it was possible."""
        if not await self._can_run() or not await self._work.has_work():
            return 0
        return await self._run()

    async def _can_run(self) -> bool:
        """Says what is missing, once, and when it has come."""
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

    async def _run(self) -> int:
        logger.info("starting the pipeline")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,  # ends with us, however we end
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("the pipeline cannot be started", error=str(error))
            return 1
        return await self._process.wait()
