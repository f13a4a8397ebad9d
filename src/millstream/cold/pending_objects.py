"""Names of objects that are on their way into the state: nothing refers to them yet, but will."""

from __future__ import annotations


class PendingObjects:
    """Belongs to the event loop. An object that is pending is never taken for an orphan."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Before the upload begins."""
        self._names.add(name)

    def remove(self, name: str) -> None:
        """After the command that refers to it was applied, or when there will be none."""
        self._names.discard(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names
