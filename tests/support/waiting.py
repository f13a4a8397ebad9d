"""Waiting for what a server does in its own time, with a deadline that only a fault reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.03


def wait_until(
    condition: Callable[[], object], what: str = "", seconds: float = SECONDS_MAX
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time: {what or condition}"
        time.sleep(PAUSE_SECONDS)
