"""The highest numbers seen, and when; seen is what a report was made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.protocol.durations import encode_timestamp

Numbers = Mapping[str, Any]


class HighWater:
    def __init__(self) -> None:
        self._marks: dict[str, dict[str, Any]] = {}

    def observe(self, now_ms: int, groups: Mapping[str, Numbers]) -> dict[str, Any]:
        """All marks there are now: by group and name `{"value", "at"}`. Groups may have groups in
        them; what is no number is passed over."""
        for name, numbers in groups.items():
            _raise_marks(self._marks.setdefault(name, {}), numbers, encode_timestamp(now_ms))
        return self._marks


def _raise_marks(marks: dict[str, Any], numbers: Numbers, at: str) -> None:
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            _raise_marks(marks.setdefault(name, {}), value, at)
        elif type(value) is int and value > marks.get(name, {"value": -1})["value"]:
            marks[name] = {"value": value, "at": at}
