"""The only place that reads the wall clock. Everything else is given a reading."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; never goes backwards within a process."""
        ...


class SystemClock:
    """The machine's clock, held still while an operator sets it back."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        reading = time.time_ns() // 1_000_000
        if reading < self._latest_ms:
            return self._latest_ms
        self._latest_ms = reading
        return reading


class ManualClock:
    """For tests: stands until it is moved."""

    def __init__(self, start_ms: int = 1_750_000_000_000) -> None:
        self.reading_ms = start_ms

    def now_ms(self) -> int:
        return self.reading_ms

    def advance(self, milliseconds: int) -> None:
        self.reading_ms += milliseconds
