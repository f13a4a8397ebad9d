"""Content that must go, and by when: the promise of --erase-within, as the catalog sees it.

A pipeline that asks for work gets dead content first once half of the time has passed. What is
still there at five eighths is late: eraser_process.py sees to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from millstream.clock import Clock
from millstream.jobs.compaction import Choice, Policy, choose_decayed
from millstream.jobs.source import Source


class DeadBytes(NamedTuple):
    in_all: int
    overdue: int  # what should be gone by now


class Erasure:
    """Called on a worker thread."""

    def __init__(
        self, source: Source, clock: Clock, policy: Policy, erase_seconds: float = 0.0
    ) -> None:
        """Dead content is gone within `erase_seconds`; 0: whenever it suits."""
        self._source = source
        self._clock = clock
        self._policy = policy
        self._erase_ms = int(erase_seconds * 1000)

    def choose(self, busy: Collection[str]) -> Choice | None:
        """What a pipeline should rewrite before all else."""
        return self._choose(busy, self._erase_ms // 2)

    def is_late(self, busy: Collection[str]) -> bool:
        """Whether dead content is left in segments longer than a pipeline should need."""
        return self._choose(busy, self._erase_ms * 5 // 8) is not None

    def _choose(self, busy: Collection[str], after_ms: int) -> Choice | None:
        """What has held dead content for so long."""
        if not self._erase_ms:
            return None
        before_ms = self._clock.now_ms() - after_ms
        return choose_decayed(self._source.decayed(), before_ms, self._policy, busy)

    def dead_bytes(self) -> DeadBytes:
        """About how much of the segments is dead."""
        decays = self._source.decayed()
        late_ms = self._clock.now_ms() - self._erase_ms
        late = [each for each in decays if self._erase_ms and each.since_ms < late_ms]
        return DeadBytes(
            sum(each.dead_bytes for each in decays), sum(each.dead_bytes for each in late)
        )
