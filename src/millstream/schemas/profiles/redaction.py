"""Secrets are taken out of a record before it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.errors import SchemaViolation
from millstream.limits import EVLOG_DEPTH_MAX, EVLOG_REDACTED_CHARACTERS_MAX

REDACTED = "[REDACTED]"


def redact(context: dict[str, Any], secret_keys: frozenset[str]) -> list[str]:
    """Replaces, in place, the value of every key that is one of these in lower case.

    Gives the paths of what was replaced, in the order of the document. Their text is bounded: all
    values are replaced, but paths beyond `EVLOG_REDACTED_CHARACTERS_MAX` are not listed.
    """
    paths = _Paths()
    open_parts: list[tuple[Any, Iterator[tuple[Any, Any]]]] = [(context, iter(context.items()))]
    trail: list[Any] = []  # keys that lead to the last open part
    while open_parts:
        part, entries = open_parts[-1]
        is_object = isinstance(part, dict)
        for key, value in entries:
            if is_object and key.lower() in secret_keys:
                part[key] = REDACTED
                paths.add(trail, key)
            elif isinstance(value, dict | list):
                if len(open_parts) >= EVLOG_DEPTH_MAX:
                    raise SchemaViolation("evlog record is nested too deeply")
                open_parts.append((value, _entries(value)))
                trail.append(key)
                break
        else:
            open_parts.pop()
            if trail:
                trail.pop()
    return paths.listed


def _entries(part: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(part.items()) if isinstance(part, dict) else iter(enumerate(part))


class _Paths:
    def __init__(self) -> None:
        self.listed: list[str] = []
        self._room = EVLOG_REDACTED_CHARACTERS_MAX

    def add(self, trail: list[Any], key: str) -> None:
        """Once a path does not fit, none is listed any more."""
        if self._room <= 0:
            return
        path = ".".join(map(str, (*trail, key)))
        self._room -= len(path) + 1
        if self._room >= 0:
            self.listed.append(path)
