from __future__ import annotations

import time

import pytest

from millstream.clock import ManualClock, SystemClock


def test_the_system_clock_counts_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_750_000_000_123_999_999)
    assert SystemClock().now_ms() == 1_750_000_000_123


def test_the_system_clock_stands_while_somebody_sets_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([5000, 7000, 3000, 6999, 7001])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings) * 1_000_000)
    clock = SystemClock()
    assert [clock.now_ms() for _ in range(5)] == [5000, 7000, 7000, 7000, 7001]


def test_the_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(100)
    assert (clock.now_ms(), clock.now_ms()) == (100, 100)
    clock.advance(25)
    assert clock.now_ms() == 125
