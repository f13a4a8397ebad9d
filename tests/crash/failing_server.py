"""`millstream serve`, but some commands cannot be applied and some answers cannot be given.

An append that says so in its content fails in apply, before or after it did its work, or in its
reply. Only while the server runs: a start applies everything, as it would after a fault that comes
and goes. Run as `python -m tests.crash.failing_server serve …`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from millstream.api.writes import Writes
from millstream.cli.main import main
from millstream.engine.engine import Engine
from millstream.engine.lifetimes import Deadlines
from millstream.state.commands import Append
from millstream.state.outcomes import Outcome

FAILS_BEFORE, FAILS_AFTER, FAILS_IN_REPLY = b"[before]", b"[after]", b"[reply]"

_start = Engine.start
_appended = Writes._appended


class InjectedFault(Exception):
    pass


def start(self: Engine, loop: asyncio.AbstractEventLoop, at_rest: Deadlines | None = None) -> None:
    _start(self, loop, at_rest)
    apply = self.machine.apply_append

    def apply_append(command: Append, *entry: Any) -> Outcome:
        if FAILS_BEFORE in command.data:
            raise InjectedFault("before it was applied")
        outcome = apply(command, *entry)
        if FAILS_AFTER in command.data:
            raise InjectedFault("when it was half done")
        return outcome

    self.machine.apply_append = apply_append  # type: ignore[method-assign,assignment]


def appended(waiting: Any, outcome: Outcome) -> None:
    if FAILS_IN_REPLY in waiting[2].data:
        raise InjectedFault("in the reply")
    _appended(waiting, outcome)


if __name__ == "__main__":
    Engine.start = start  # type: ignore[method-assign]
    Writes._appended = staticmethod(appended)  # type: ignore[method-assign]
    sys.exit(main())
