"""How far a job is: a bar in a terminal, structured lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from millstream.formats.jobs import JobOffer
from millstream.limits import MIB

LINE_SECONDS = 10.0  # between two lines about one job

logger = structlog.get_logger("millstream.pipeline")


class JobProgress(Protocol):
    def __enter__(self) -> JobProgress: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, tasks_done: int) -> None: ...


def job_progress(offer: JobOffer) -> JobProgress:
    return _Bar(offer) if sys.stderr.isatty() else _Lines(offer)


class _Bar:
    def __init__(self, offer: JobOffer) -> None:
        self._progress = Progress(
            TextColumn("compact shard {task.fields[shard]}, {task.fields[mib]} MiB"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} tasks"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar = self._progress.add_task(
            "", total=offer.tasks, shard=offer.shard, mib=offer.live_bytes // MIB
        )

    def __enter__(self) -> JobProgress:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, tasks_done: int) -> None:
        self._progress.update(self._bar, completed=tasks_done)


class _Lines:
    def __init__(self, offer: JobOffer) -> None:
        self._offer = offer
        self._told_at = time.monotonic()

    def __enter__(self) -> JobProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, tasks_done: int) -> None:
        now = time.monotonic()
        if now >= self._told_at + LINE_SECONDS:
            self._told_at = now
            logger.info(
                "job under way",
                job=self._offer.job,
                shard=self._offer.shard,
                tasks_done=tasks_done,
                tasks=self._offer.tasks,
            )
