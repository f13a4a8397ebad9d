"""The kinds of job that rewrite segments: new ones take the place of old ones, and hold the same.

`compact` takes what is worth rewriting, content that must go before all else; `erase` takes only
that. They differ in what they choose. compaction.py has what is decided without asking anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from millstream.engine.threads import Threads
from millstream.errors import InvalidRequest, JobConflict
from millstream.formats.jobs import JobInput, TaskResult, decode_result, decode_task, encode_task
from millstream.formats.runs import Run, Segment
from millstream.jobs.compaction import (
    Choice,
    Policy,
    check_result,
    choose_small,
    choose_spread,
    cut_tasks,
    live_part,
    split_like,
    task_input,
)
from millstream.jobs.erasure import Erasure
from millstream.jobs.kinds import Held, Plan
from millstream.jobs.source import Source
from millstream.tier.catalog import SegmentUse

COMPACT, ERASE = "compact", "erase"
REWRITES = (COMPACT, ERASE)  # no two of these at one segment; those who only read it may

Choose = Callable[[Collection[str]], Choice | None]  # but for these segments, which are taken


class Swap(Protocol):
    async def __call__(
        self,
        shard: int,
        old: list[str],
        segments: list[Segment],
        runs: list[list[Run]],
        swaps_seen: int,
        /,
    ) -> None:
        """Journals the swap; raises StreamError when it does not happen."""
        ...


@dataclass(frozen=True, kw_only=True)
class RewritePlan(Plan):
    swaps_seen: int  # that the catalog knew when the inputs were chosen


class SegmentRewrites:
    """A kind of job. `choose` is called on the worker thread."""

    def __init__(
        self, choose: Choose, source: Source, swap: Swap, threads: Threads, policy: Policy
    ) -> None:
        self._choose = choose
        self._source = source
        self._swap = swap
        self._threads = threads
        self._policy = policy

    def has_work(self, held: Held) -> bool:
        return self._choose(being_rewritten(held)) is not None

    def plan(self, held: Held) -> RewritePlan | None:
        swaps_seen = self._source.swaps()
        choice = self._choose(being_rewritten(held))
        if choice is None:
            return None
        segments = {use.segment.name: use.segment for use in choice.inputs}
        live_bytes = sum(use.live_bytes for use in choice.inputs)
        pieces = cut_tasks(self._source.live_runs(list(segments)), live_bytes, self._policy)
        cuts = self._source.cuts(choice.shard, list(segments))
        tasks = [encode_task(task_input(piece, segments, cuts)) for piece in pieces]
        if not tasks:
            return None
        return RewritePlan(
            shard=choice.shard,
            inputs=[_input(use) for use in choice.inputs],
            tasks=tasks,
            reason=choice.reason,
            target_bytes=self._policy.target_bytes,
            swaps_seen=swaps_seen,
        )

    def check(
        self, plan: RewritePlan, number: int, body: bytes, others: Mapping[int, TaskResult]
    ) -> TaskResult:
        """Raises ResultRefused unless the new runs hold exactly what the old ones held."""
        try:
            result = decode_result(body)
        except ValueError as error:
            raise InvalidRequest(f"the body is no result of a task: {error}") from None
        taken = {each.name for each in plan.inputs}
        taken.update(segment.name for other in others.values() for segment in other.segments)
        task = decode_task(plan.tasks[number])
        check_result(task, result, shard=plan.shard, taken_names=taken)
        return result

    async def commit(self, plan: RewritePlan, results: list[TaskResult]) -> None:
        """One command swaps the references, once nothing speaks against it any more."""
        runs = await self._threads.run(lambda: self._compare(plan, results))
        segments = [segment for result in results for segment in result.segments]
        old = [each.name for each in plan.inputs]
        try:
            await self._swap(plan.shard, old, segments, runs, plan.swaps_seen)
        except OSError as error:  # it may be journaled, so it is not to be tried again
            raise RuntimeError(f"the swap was cut short: {error}") from error

    def _compare(self, plan: RewritePlan, results: list[TaskResult]) -> list[list[Run]]:
        """Of each new segment the runs that hold something live. Raises JobConflict."""
        taken = self._source.segment_names(plan.shard)
        for result in results:
            for segment in result.segments:
                if segment.name in taken:
                    raise JobConflict(f"the name {segment.name} is in use")
                size = self._source.object_size(segment.name)
                if size != segment.size:
                    found = "no such object" if size is None else f"{size} bytes"
                    raise JobConflict(f"{segment.name}: expected {segment.size} bytes, {found}")
        names = sorted(each.name for each in plan.inputs)
        parts = split_like(map(decode_task, plan.tasks), self._source.live_runs(names))
        return [
            runs
            for (frozen, part), result in zip(parts, results, strict=True)
            for runs in live_part(frozen, part, result.runs)
        ]


def rewriting_kinds(
    source: Source, erasure: Erasure, swap: Swap, threads: Threads, policy: Policy
) -> dict[str, SegmentRewrites]:
    """`compact` and `erase`, by name."""

    def choose(busy: Collection[str]) -> Choice | None:
        return erasure.choose(busy) or _choose_untidy(source, policy, busy)

    return {
        COMPACT: SegmentRewrites(choose, source, swap, threads, policy),
        ERASE: SegmentRewrites(erasure.choose, source, swap, threads, policy),
    }


def _choose_untidy(source: Source, policy: Policy, busy: Collection[str]) -> Choice | None:
    """Small segments first; shards are walked for garbage and spread streams only without any."""
    uses = source.segments()
    choice = choose_small(uses, policy, busy)
    by_shard: dict[int, list[SegmentUse]] = {}
    for use in uses:
        by_shard.setdefault(use.segment.shard, []).append(use)
    for shard, found in by_shard.items():
        if choice is not None:
            break
        choice = choose_spread(shard, found, source.segment_spans(shard), policy, busy)
    return choice


def being_rewritten(held: Held) -> set[str]:
    """By a job under way; a segment that others only read is free to be rewritten."""
    return {name for kind in REWRITES for name in held.get(kind, ())}


def _input(use: SegmentUse) -> JobInput:
    segment = use.segment
    return JobInput(segment.name, segment.size, segment.footer_bytes, segment.rows, use.live_bytes)
