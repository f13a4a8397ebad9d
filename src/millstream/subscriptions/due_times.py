"""When which subscription has to be looked at: one heap for all of them, no timer each."""

from __future__ import annotations

import heapq


class DueTimes:
    """Each name once. A look that comes too early does no harm, so only the earliest is kept."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._due_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._due_ms)

    def note(self, name: str, due_ms: int) -> None:
        known_ms = self._due_ms.get(name)
        if known_ms is not None and known_ms <= due_ms:
            return
        self._due_ms[name] = due_ms
        heapq.heappush(self._heap, (due_ms, name))
        if len(self._heap) > 2 * len(self._due_ms) + 64:  # mostly entries that came to nothing
            self._heap = [(due_ms, name) for name, due_ms in self._due_ms.items()]
            heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """When the next one is due; None: none is."""
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> str | None:
        """One that is due, and no longer noted."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, name = heapq.heappop(self._heap)
        del self._due_ms[name]
        return name
