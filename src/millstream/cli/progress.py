"""How far a long command is: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

LINE_EVERY = 0.25  # of the whole


class ProgressBar:
    """Call it with what is being done, how much of that is done, and how much there is."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._said: dict[str, float] = {}
        if sys.stderr.isatty():
            self._bars = _rich_bars()

    def __enter__(self) -> ProgressBar:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._say(what, done, total)
            return
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)

    def _say(self, what: str, done: int, total: int) -> None:
        share = done / total if total else 1.0
        if done and (share >= self._said.get(what, 0.0) + LINE_EVERY or done == total):
            if self._said.get(what) == 1.0:
                return  # it is of a kind whose total is not known before
            self._said[what] = share
            print(f"{what}: {done} of {total}", file=sys.stderr)


def _rich_bars() -> Any:
    """None when rich is not installed: it comes with the pipeline."""
    try:
        from rich.progress import Progress
    except ImportError:
        return None
    from rich.console import Console

    return Progress(console=Console(stderr=True))
