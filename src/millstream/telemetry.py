"""Logs: one line per event on stderr, for people or for machines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

ACCESS_EVENT = "request"  # what the lines of the access log say
LINE_SECONDS = 1.0  # between two lines of one kind, where lines are spared
KINDS_MAX = 1000  # remembered; the kinds are words of ours, so there are far fewer


class Sparing:
    """One line of a kind in a second: no client may fill the disk by what it makes us say.

    A kind is what the line says, whatever the fields beside it. The next line of the kind tells
    how many were left out. Lines about single requests are meant to be as many as the requests.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said_at: dict[Any, float] = {}
        self._unsaid: dict[Any, int] = {}

    def __call__(
        self, logger: Any, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if line["event"] == ACCESS_EVENT:
            return line
        kind = (line["event"], line.get("where"))
        now = self._monotonic()
        if now - self._said_at.get(kind, -LINE_SECONDS) < LINE_SECONDS:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            raise structlog.DropEvent
        if len(self._said_at) >= KINDS_MAX:
            self._said_at.clear()
            self._unsaid.clear()
        self._said_at[kind] = now
        if unsaid := self._unsaid.pop(kind, 0):
            line["not_shown"] = unsaid
        return line


def configure_logs(log_format: str, level: str, *, sparing: bool = False) -> None:
    """Once, at start-up. `log_format` is console or json; `sparing` is for servers."""
    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    structlog.configure(
        processors=[
            *([Sparing()] if sparing else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
