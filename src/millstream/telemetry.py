"""Logs: one line per event on stderr, for people or for machines.

For machines means to the last line: what Python, libraries and other processes print comes out as
an object per line as well.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from types import TracebackType
from typing import Any, TextIO

import structlog

logger = structlog.get_logger("millstream")

WRAP_SECONDS_MAX = 2.0  # at the end, for lines that are still on their way
_END = b"\x00 end of output\n"
ACCESS_EVENT = "request"  # what the lines of the access log say
LINE_SECONDS = 1.0  # between two lines of one kind, where lines are spared
KINDS_MAX = 1000  # remembered; the kinds are words of ours, so there are far fewer


class StderrLines:
    """Where the lines go: to stderr as it is now, and nowhere when it is gone.

    Their reader may have left (`2>&1 | head`), and its disk may be full: what the server
    does must not depend on whether its lines are read.
    """

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # broken, full; closed
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    msg = log = debug = info = warning = warn = error = critical = exception = fatal = write


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
    lines = StderrLines()
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
        _log_what_python_prints()
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
        logger_factory=lambda *names: lines,
        cache_logger_on_first_use=False,
    )


def is_json() -> bool:
    """Whether the reader of stderr expects an object in each line."""
    return any(
        isinstance(each, structlog.processors.JSONRenderer)
        for each in structlog.get_config()["processors"]
    )


def last_words(message: str) -> None:
    """Why the command ends, for the person who started it."""
    if is_json():
        logger.error(message)
    else:
        StderrLines().write(f"millstream: {message}")


def _log_what_python_prints() -> None:
    """Tracebacks, warnings, and the lines of libraries that use Python's own log."""
    sys.excepthook = _log_uncaught
    warnings.showwarning = _log_warning
    logging.basicConfig(handlers=[_Forwarding()], level=logging.WARNING, force=True)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logger.error("an uncaught error", exc_info=(kind, error, traceback))


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logger.warning(str(message), category=category.__name__, at=f"{filename}:{lineno}")


class _Forwarding(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        logger.log(record.levelno, record.getMessage(), logger=record.name, **fields)


@contextlib.contextmanager
def all_output_as_json(source: str) -> Iterator[None]:
    """Within the block, whatever this process or one that it starts writes to stdout or stderr
    comes out on stderr, one object per line: what is one already as it is, the rest wrapped."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    stdout, stderr = os.dup(1), os.dup(2)
    wrapping = threading.Thread(target=_wrap_lines, args=(read_end, stderr, source), daemon=True)
    wrapping.start()
    for number in (1, 2):
        os.dup2(write_end, number)
    os.close(write_end)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, _END)  # a process that outlives us may still hold the other end
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        wrapping.join(WRAP_SECONDS_MAX)


def _wrap_lines(read_end: int, stderr: int, source: str) -> None:
    with open(read_end, "rb") as lines:
        for line in lines:
            if line.endswith(_END):
                return
            if text := line.strip():
                os.write(stderr, _as_object(text, source) + b"\n")


def _as_object(text: bytes, source: str) -> bytes:
    if text.startswith(b"{"):
        with contextlib.suppress(ValueError):
            json.loads(text)
            return text
    said = text.decode(errors="replace")
    stamp = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    line = {"event": said, "source": source, "level": "warning", "timestamp": stamp}
    return json.dumps(line).encode()
