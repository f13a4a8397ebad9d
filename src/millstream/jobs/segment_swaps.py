"""New segments take the place of old ones; whoever made them hears once the catalog has it."""

from __future__ import annotations

import asyncio

from millstream.cold.checkpointer import Checkpointer
from millstream.engine.engine import Engine
from millstream.errors import JobConflict, StreamError
from millstream.formats.runs import Run, Segment
from millstream.state.commands import ReplaceSegments
from millstream.state.outcomes import Outcome


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
        command = ReplaceSegments(
            self._engine.clock.now_ms(), shard, old, segments, runs, swaps_seen
        )
        outcome = await self._journal(command)
        if isinstance(outcome, StreamError):
            raise outcome
        await self._merge()

    async def _journal(self, command: ReplaceSegments) -> Outcome:
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def reply(_: object, outcome: Outcome) -> None:
            if not told.done():
                told.set_result(outcome)

        self._engine.submit(command, reply, None)
        return await told

    async def _merge(self) -> None:
        """When the last checkpoint of a stop fails, the log has it: the next start goes on."""
        await self._checkpointer.checkpoint()
