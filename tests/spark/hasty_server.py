"""`millstream serve` without its patience, as a program of its own for the tests.

Garbage goes and a pipeline is started as soon as there is reason to, the jobs' requests are written
to the file that JOB_REQUESTS names, and SIGUSR1 ends every lease. Run as
`python -m tests.spark.hasty_server serve …`.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from millstream import cold_tier
from millstream.api.jobs import JobRoutes
from millstream.cli.main import main
from millstream.clock import Clock
from millstream.http.message import Request
from millstream.jobs.table import JobTable
from tests.cold.impatient import IMPATIENT

MODULE = "tests.spark.hasty_server"
REQUESTS_FILE = "JOB_REQUESTS"  # a variable of the environment
LOOK_SECONDS = 0.5

_tables: list[JobTable] = []
_handle = JobRoutes.handle


class WatchedTable(JobTable):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        _tables.append(self)


def make_hasty() -> None:
    patched: Any = cold_tier
    patched.JobTable = WatchedTable
    JobRoutes.handle = handle  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, end_leases)


def handle(self: JobRoutes, request: Request) -> None:
    """As they arrive, before they are answered."""
    name = os.environ.get(REQUESTS_FILE)
    if name is not None:
        with Path(name).open("ab") as file:
            file.write(request.method + b" " + request.path + b"\n")
    _handle(self, request)


def end_leases(number: int, frame: FrameType | None) -> None:
    for table in _tables:
        for job in table._jobs.values():
            job.seen_ms = 0


if __name__ == "__main__":
    make_hasty()
    sys.exit(main(timings=replace(IMPATIENT, pipeline_look=LOOK_SECONDS)))
