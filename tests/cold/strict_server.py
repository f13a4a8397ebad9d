"""`millstream serve`, but the catalog does not answer while a command is being applied.

What a command needs is in memory before it is submitted; if it is not, this server stops with exit
code 1 and a traceback that says what was asked for. Run as
`python -m tests.cold.strict_server serve …`.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

from millstream.cli.main import main
from millstream.engine.engine import Engine
from millstream.engine.lifetimes import Deadlines
from millstream.tier.catalog import Catalog

_start = Engine.start


class _Watch:
    is_applying = False


def start(self: Engine, loop: asyncio.AbstractEventLoop, at_rest: Deadlines | None = None) -> None:
    """From here on: a start may ask the catalog while it replays the log."""
    machine: Any = self.machine
    machine.apply, machine.apply_append = _watched(machine.apply), _watched(machine.apply_append)
    _start(self, loop, at_rest)


def _watched(apply: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any) -> Any:
        is_inner, _Watch.is_applying = _Watch.is_applying, True
        try:
            return apply(*args)
        finally:
            _Watch.is_applying = is_inner

    return watched


def _refusing(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def refusing(*args: Any, **named: Any) -> Any:
        if _Watch.is_applying:
            raise OSError(f"the catalog is asked in the middle of an apply: {read.__name__}{args}")
        return read(*args, **named)

    return refusing


def make_strict() -> None:
    Engine.start = start  # type: ignore[method-assign]
    for name in ("find", "find_by_id", "names", "runs_from", "records"):
        setattr(Catalog, name, _refusing(getattr(Catalog, name)))


if __name__ == "__main__":
    make_strict()
    sys.exit(main())
