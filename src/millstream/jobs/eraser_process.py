"""Keeps the promise of --erase-within where no pipeline does: a small process rewrites segments.

It needs neither Spark nor Java. A pipeline gets dead content to rewrite when half of the time has
passed; what is still there at five eighths is done here, so that the rest is left for copies of the
catalog and for garbage collection.
"""

from __future__ import annotations

import structlog

from millstream.config import Config
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.faults import Faults
from millstream.jobs.erasure import DeadBytes, Erasure
from millstream.jobs.pipeline_process import PipelineProcess
from millstream.jobs.rewrites import being_rewritten
from millstream.jobs.service import Jobs

logger = structlog.get_logger("millstream.erasure")

LOOKS = 32  # in the time that is promised
LOOKS_BETWEEN_WARNINGS = 60


class EraserProcess:
    def __init__(
        self,
        config: Config,
        jobs: Jobs,
        erasure: Erasure,
        threads: Threads,
        faults: Faults,
        timings: Timings,
        key: str | None = None,
    ) -> None:
        self._jobs = jobs
        self._erasure = erasure
        self._threads = threads
        self._looks_until_told = 0
        self.dead = DeadBytes(0, 0)  # as of the last look
        wanted = config.erase_within / LOOKS or timings.eraser_look_max
        look_seconds = min(max(wanted, timings.eraser_look_min), timings.eraser_look_max)
        process = PipelineProcess(
            config, ("erase",), self._is_wanted, look_seconds, faults, timings, key
        )
        self.running = process.running

    async def _is_wanted(self) -> bool:
        await self._count()
        return await self._jobs.finds(lambda held: self._erasure.is_late(being_rewritten(held)))

    async def _count(self) -> None:
        """How much is dead by now; says what is overdue."""
        try:
            self.dead = await self._threads.run(self._erasure.dead_bytes)
        except OSError:
            pass  # the catalog cannot be read: others say so loudly
        if self.dead.overdue == 0:
            self._looks_until_told = 0
        elif self._looks_until_told == 0:
            self._looks_until_told = LOOKS_BETWEEN_WARNINGS
            logger.warning(
                "content that was given up is in the cold store longer than --erase-within says",
                bytes=self.dead.overdue,
            )
        else:
            self._looks_until_told -= 1
