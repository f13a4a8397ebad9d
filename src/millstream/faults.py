"""Errors that no code foresaw: heard, counted, and shown until the service that met them works.

What can be foreseen (a store that is away, a full disk) is a value that its owner deals with and
never comes here. Everything else does, from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

import structlog

logger = structlog.get_logger("millstream.faults")

Service = Literal[  # runs again and again: counts as failing until it has succeeded
    "flush",
    "checkpoint",
    "uploads",
    "garbage",
    "retention",
    "lifetimes",
    "eviction",
    "memory",
    "blobs",
    "subscriptions",
    "webhooks",
    "touch",
    "jobs",
    "pipeline",
    "queue",
    "system",
]
Event = Literal[  # happens once: no later success belongs to it
    "apply",
    "reply",
    "request",
    "read",
    "watcher",
    "journal",
    "loop",
    "thread",
    "unraisable",
]
Place = Literal[Service, Event]

SERVICES: Final[frozenset[str]] = frozenset(get_args(Service))
PLACES: Final[tuple[Place, ...]] = get_args(Place)
LINE_SECONDS: Final = 1.0  # a place writes one line in this time, however much goes wrong there


class Fault(NamedTuple):
    where: Place
    error: str  # what kind and what it says, in one line
    at: float  # on the monotonic clock


class Faults:
    """One per process. Every method may be called from any thread and raises nothing."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self.last: Fault | None = None
        self._monotonic = monotonic
        self._failing: dict[Place, Fault] = {}
        self._said_at: dict[Place, float] = {}
        self._unsaid: dict[Place, int] = {}
        # Taken again by the same thread when the collector finds something while it is held.
        self._lock = threading.RLock()

    def report(self, where: Place, error: BaseException) -> None:
        """Something happened that its code did not foresee."""
        now = self._monotonic()
        with self._lock:
            self.counts[where] = self.counts.get(where, 0) + 1
            self.last = fault = Fault(where, _in_one_line(error), now)
            if where in SERVICES:
                self._failing[where] = fault
            if now - self._said_at.get(where, -LINE_SECONDS) < LINE_SECONDS:
                self._unsaid[where] = self._unsaid.get(where, 0) + 1
                return
            self._said_at[where] = now
            unsaid = self._unsaid.pop(where, 0)
        more = {"not_shown": unsaid} if unsaid else {}
        with contextlib.suppress(Exception):  # a log that cannot be written must not harm its user
            logger.error("an unexpected error", where=where, exc_info=error, **more)

    def works(self, where: Service) -> None:
        """The service did what it is there for. Costs next to nothing while all is well."""
        if where in self._failing:
            with self._lock:
                self._failing.pop(where, None)
            with contextlib.suppress(Exception):
                logger.info("works again", where=where)

    def failing(self) -> dict[Place, Fault]:
        """The services that have not succeeded since their last unexpected error."""
        with self._lock:
            return dict(self._failing)

    def seconds_since(self, fault: Fault) -> float:
        return self._monotonic() - fault.at

    @contextlib.contextmanager
    def hearing_all(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Within the block every error that no code catches comes here: from callbacks, timers and
        tasks of the loop, from threads, and from where Python itself can only print."""
        handler_before = loop.get_exception_handler()
        thread_before, unraisable_before = threading.excepthook, sys.unraisablehook
        loop.set_exception_handler(self._heard_by_loop)
        threading.excepthook = self._heard_in_thread
        sys.unraisablehook = self._heard_unraisable
        try:
            yield
        finally:
            loop.set_exception_handler(handler_before)
            threading.excepthook, sys.unraisablehook = thread_before, unraisable_before

    def _heard_by_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            error = RuntimeError(context.get("message", "the event loop does not say what"))
        self.report("loop", error)

    def _heard_in_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            self.report("thread", args.exc_value or args.exc_type())

    def _heard_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        self.report("unraisable", unraisable.exc_value or unraisable.exc_type())


def _in_one_line(error: BaseException) -> str:
    try:
        said = " ".join(str(error).split())
    except Exception:  # whatever its __str__ does
        said = ""
    kind = type(error).__name__
    return f"{kind}: {said}"[:500] if said else kind
