"""New segments take the place of old ones; the job that made them hears once the catalog has it."""

from __future__ import annotations

from millstream.cold.checkpointer import Checkpointer
from millstream.engine.engine import Engine
from millstream.errors import JobConflict, StreamError
from millstream.formats.runs import Run, Segment
from millstream.state.commands import ReplaceSegments


class SegmentSwaps:
    def __init__(self, engine: Engine, checkpointer: Checkpointer) -> None:
        self._engine = engine
        self._checkpointer = checkpointer

    async def swap(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        swaps_seen: int,
    ) -> None:
        """It happened, and the catalog has it: until then the job holds its segments.

        Raises StreamError: it did not happen, but for AppendOutcomeUnknown. Cancelled, it may have.
        """
        coming = self._engine.machine.changes.segment_names()
        used = next((segment.name for segment in segments if segment.name in coming), None)
        if used is not None:
            raise JobConflict(f"the name {used} is in use")
        now_ms = self._engine.clock.now_ms()
        command = ReplaceSegments(now_ms, shard, old, segments, runs, swaps_seen)
        outcome = await self._engine.perform(command)
        if isinstance(outcome, StreamError):
            raise outcome
        # When the last checkpoint of a stop fails, the log has it: the next start goes on.
        await self._checkpointer.checkpoint()
