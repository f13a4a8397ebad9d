"""`millstream serve` that is killed once a receiver has answered, before the log hears of it."""

from __future__ import annotations

import os
import signal
import sys

from millstream.cli.main import main
from millstream.state.commands import ReportDelivery
from millstream.subscriptions.driver import Driver

MODULE = "tests.crash.dies_before_report"


async def _die(self: Driver, report: ReportDelivery) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Driver._report = _die  # type: ignore[method-assign]
    sys.exit(main())
