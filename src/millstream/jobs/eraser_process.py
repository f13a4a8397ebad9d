"""Keeps the promise of --erase-within where no pipeline does: a small process rewrites segments.

It needs neither Spark nor Java. A pipeline gets dead content to rewrite when half of the time has
passed; what is still there at five eighths is done here, so that the rest is left for copies of the
catalog and for garbage collection.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from millstream.config import Config
from millstream.faults import Faults
from millstream.jobs.pipeline_process import PipelineProcess

logger = structlog.get_logger("millstream.erasure")

LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.5, 60.0
LOOKS = 32  # in the time that is promised
TELL_LOOKS = 60  # between two warnings


class DeadContent(Protocol):
    async def has_late_work(self) -> bool: ...

    async def dead_bytes(self) -> tuple[int, int] | None:
        """All of it, and what should be gone by now; None when nobody can tell."""
        ...


class _LateWork:
    def __init__(self, content: DeadContent) -> None:
        self.has_work = content.has_late_work


class EraserProcess(PipelineProcess):
    action = ("pipeline", "erase", "--until-input-ends")

    def __init__(
        self, config: Config, content: DeadContent, faults: Faults, *, key: str | None = None
    ) -> None:
        wanted = config.erase_within / LOOKS or LOOK_SECONDS_MAX
        look_seconds = min(max(wanted, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
        super().__init__(config, _LateWork(content), faults, key=key, look_seconds=look_seconds)
        self._content = content
        self._looks_until_told = 0
        self.dead_bytes = self.dead_bytes_overdue = 0

    async def _can_run(self) -> bool:
        """Looks how much is dead, says what is overdue, and always can."""
        counted = await self._content.dead_bytes()
        if counted is not None:
            self.dead_bytes, self.dead_bytes_overdue = counted
        if self.dead_bytes_overdue == 0:
            self._looks_until_told = 0
        elif self._looks_until_told == 0:
            self._looks_until_told = TELL_LOOKS
            logger.warning(
                "content that was given up is in the cold store longer than --erase-within says",
                bytes=self.dead_bytes_overdue,
            )
        else:
            self._looks_until_told -= 1
        return True
