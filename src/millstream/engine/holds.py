"""Names of objects that are on their way into the state: nobody refers to them yet, but will."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Holds:
    """Belongs to the event loop. An object that is held is never taken for an orphan."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self.going: set[str] = set()  # being deleted at this moment

    def add(self, names: Iterable[str]) -> None:
        self._held.update(names)

    def try_add(self, names: Iterable[str]) -> bool:
        """For objects that somebody uploaded a while ago. False: one is being deleted."""
        names = list(names)
        if not self.going.isdisjoint(names):
            return False
        self.add(names)
        return True

    def remove(self, names: Iterable[str]) -> None:
        """After the command that refers to them was applied, or when there will be none."""
        self._held.subtract(names)
        self._held = +self._held

    def __contains__(self, name: object) -> bool:
        return name in self._held
