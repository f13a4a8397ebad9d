"""New segments take the place of old ones, and whoever made them hears what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.engine.checkpointer import Checkpointer
from millstream.engine.engine import Engine
from millstream.errors import JobConflict, StreamError
from millstream.formats.runs import Run, Segment
from millstream.state.commands import ReplaceSegments
from millstream.state.outcomes import Done, Outcome
from millstream.tier.catalog import SegmentUse


class SegmentCatalog(Protocol):
    def segments(self, shard: int) -> list[SegmentUse]: ...


class SegmentSwaps:
    def __init__(self, engine: Engine, checkpointer: Checkpointer, catalog: SegmentCatalog) -> None:
        self._engine = engine
        self._checkpointer = checkpointer
        self._catalog = catalog

    def swap(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        done: Callable[[Outcome], None],
    ) -> None:
        """Told once the catalog has it: until then the job holds its segments."""

        def journaled(_: object, outcome: Outcome) -> None:
            if isinstance(outcome, StreamError):
                done(outcome)
            else:
                self._checkpointer.run(merged)

        def merged() -> None:
            self._checkpointer.run_in_thread(lambda: self._catalog.segments(shard), looked)

        def looked(uses: list[SegmentUse] | Exception) -> None:
            if isinstance(uses, Exception):
                done(JobConflict(f"the swap is journaled, but the catalog cannot be read: {uses}"))
                return
            left = {use.segment.name for use in uses}.intersection(old)
            if left:  # the catalog swaps all of them or none
                dead = len(old) - len(left)
                done(JobConflict(f"{dead} of its {len(old)} segments died before the swap"))
            else:
                done(Done.ACCEPTED)

        command = ReplaceSegments(self._engine.clock.now_ms(), shard, old, segments, runs)
        self._engine.submit(command, journaled, None)
