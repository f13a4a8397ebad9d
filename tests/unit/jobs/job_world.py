"""Jobs over a catalog that is a plain list, and a worker thread that waits when told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from millstream.clock import ManualClock
from millstream.engine.threads import Threads
from millstream.faults import Faults
from millstream.formats.jobs import ColdPlace, TaskResult, decode_task
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.jobs.compaction import Policy
from millstream.jobs.erasure import Erasure
from millstream.jobs.kinds import JobKind
from millstream.jobs.rewrites import rewriting_kinds
from millstream.jobs.service import Jobs
from millstream.jobs.table import JobTable
from millstream.tier.catalog import Decay, SegmentSpan, SegmentUse

T = TypeVar("T")

LEASE_MS = 1000
ERASE_SECONDS = 1000.0


class Catalog:
    """Four small segments of shard 2, each with one message of stream 2."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.dead_since: dict[str, int] = {}
        self.runs = [
            (f"segments/0002/{k}", Run(StreamId(2), k, 10 * k, 1, 10, 0, 0, 0x11111111))
            for k in range(4)
        ]

    def segments(self) -> list[SegmentUse]:
        return [SegmentUse(Segment(name, 2, 100, 10, 1, 0), 10, 1) for name, _ in self.runs]

    def segment_names(self, shard: int) -> set[str]:
        return {name for name, _ in self.runs}

    def swaps(self) -> int:
        return 3

    def decayed(self) -> list[Decay]:
        return [
            Decay(SegmentUse(Segment(name, 2, 100, 10, 4, 0), 10, 1), since_ms, 3)
            for name, since_ms in self.dead_since.items()
        ]

    def cuts(self, shard: int, names: Sequence[str]) -> dict[int, int]:
        return {}

    def segment_spans(self, shard: int) -> Mapping[str, SegmentSpan]:
        return {name: SegmentSpan(1, 2, 2) for name, _ in self.runs}

    def live_runs(self, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        return ((name, run) for name, run in self.runs if name in names)

    def object_size(self, name: str) -> int | None:
        return self.sizes.get(name)


class Worker(Threads):
    """A real thread; while `waiting` is a list, work stays there until its event is set."""

    def __init__(self) -> None:
        super().__init__("test-jobs", 1)
        self.waiting: list[asyncio.Event] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        if self.waiting is not None:
            turn = asyncio.Event()
            self.waiting.append(turn)
            await turn.wait()
        return await super().run(work)


class JobWorld:
    """The service with the kinds that rewrite segments, and `more` beside them."""

    def __init__(self, more: Mapping[str, JobKind[Any, Any]] | None = None) -> None:
        self.catalog = Catalog()
        self.clock = ManualClock()
        self.faults = Faults()
        self.worker = Worker()
        self.table = JobTable(self.clock, LEASE_MS)
        self.swapped: list[tuple[int, list[str], list[Segment], list[list[Run]]]] = []
        self.swap_error: BaseException | None = None
        policy = Policy(target_bytes=100, task_bytes=200, small_min=3)
        self.erasure = Erasure(self.catalog, self.clock, policy, ERASE_SECONDS)
        kinds = rewriting_kinds(self.catalog, self.erasure, self.swap, self.worker, policy)
        place = ColdPlace("fs", "fs:/cold")
        self.jobs = Jobs(
            {**kinds, **(more or {})}, self.table, self.worker, "id", place, self.faults
        )

    async def swap(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        swaps_seen: int,
        /,
    ) -> None:
        assert swaps_seen == 3
        self.swapped.append((shard, old, segments, runs))
        if self.swap_error is not None:
            raise self.swap_error

    async def offered(self, kind: str = "compact") -> dict[str, Any]:
        """The offer of a job that there has to be."""
        offer = await self.jobs.ask(kind)
        assert offer is not None
        found: dict[str, Any] = json.loads(offer)
        return found

    def rewritten(self, task: bytes) -> TaskResult:
        """The right answer to a task of all four segments; the store has what it wrote."""
        new = [
            Run(StreamId(2), run.first_ordinal, run.first_byte, 1, 10, 0, row, run.crc)
            for row, (_, run) in enumerate(decode_task(task).runs)
        ]
        segment = Segment("segments/0002/new", 2, 55, 10, len(new), 0)
        self.catalog.sizes[segment.name] = 55
        return TaskResult([segment], [new])
