"""What memory may forget, and when.

What a command needs is brought into memory before it is submitted, so that applying it reads no
file (preparation.py). Until it is applied, what memory knows must stay known: a stream that leaves,
a name that does not exist, what a checkpoint has put on the store. So everything that is let go of
waits here until every command that was submitted by then is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Horizon:
    """Without an engine that submits commands nothing is ever under way: then nothing waits."""

    def __init__(self) -> None:
        self.returned = 0  # commands that came back from the journal
        self._depth: Callable[[], int] = _none  # commands submitted that did not come back yet
        self._is_applying = False
        self._pauses = 0
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def follow(self, depth: Callable[[], int]) -> None:
        self._depth = depth

    @property
    def under_way(self) -> int:
        """Commands that are submitted and may not be applied yet."""
        return self._depth() + self._is_applying

    @property
    def submitted(self) -> int:
        """Commands ever submitted."""
        return self.returned + self._depth()

    def later(self, forget: Callable[[], object], *, behind: int = 0) -> None:
        """Calls it once everything submitted until now is applied, and `behind` more commands."""
        if behind or self._pauses or self._waiting or self._is_applying or self._depth():
            self._waiting.append((self.returned + self._depth() + behind, forget))
        else:
            forget()

    def pause(self) -> None:
        """A command is prepared bit by bit: nothing is forgotten until `resume`."""
        self._pauses += 1

    def resume(self) -> None:
        """The command is prepared, and is the next to be submitted: all that was let go of since
        `pause` waits for it too."""
        self._pauses -= 1
        due = self.returned + self._depth() + 1
        self._waiting = deque((max(due, other), forget) for other, forget in self._waiting)

    def begin(self, commands: int) -> None:
        """So many came back; they are applied or refused now."""
        self.returned += commands
        self._is_applying = True

    def end(self) -> None:
        self._is_applying = False
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.returned and not self._pauses:
            waiting.popleft()[1]()


def _none() -> int:
    return 0
