"""Fields of records as clients send them: text or nothing, numbers however they are written."""

from __future__ import annotations

from typing import Any

from millstream.schemas.values import parse_number


def text_of(value: Any) -> str | None:
    """Without the white space around it; None when nothing is left, or when it is no text."""
    return value.strip() or None if isinstance(value, str) else None


def whole_number_of(value: Any) -> int | None:
    """None when it is no number, or has a fraction."""
    number = parse_number(value)
    return int(number) if number is not None and number == int(number) else None


def text_at(record: dict[str, Any], path: tuple[str, ...]) -> str | None:
    """The text at a path of keys."""
    value: Any = record
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return text_of(value)
