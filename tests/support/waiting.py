"""Waiting for what a server does in its own time, with a deadline that only a fault reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.03
WORK_SECONDS_MAX = 30.0


def wait_until(
    condition: Callable[[], object], what: str = "", seconds: float = SECONDS_MAX
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time: {what or condition}"
        time.sleep(PAUSE_SECONDS)


def let_work(seconds: float, is_enough: Callable[[], bool]) -> None:
    """Lets clients work for a while, and on a slow machine longer: until they have done enough.

    Says nothing when they never do: whoever counts what was done complains with better words.
    """
    time.sleep(seconds)
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while not is_enough() and time.monotonic() < deadline:
        time.sleep(0.001)
