"""What a kind of job is: it plans jobs, checks what each task made, and commits all of it at once.

service.py gives every kind the same: leases, requests that may be repeated, one plan at a time.
rewrites.py has the first two kinds. docs/pipeline.md is the contract with the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millstream.formats.jobs import JobInput

Held = Mapping[str, Set[str]]  # by kind: the segments that its jobs under way hold


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job that may begin, as its pipeline hears of it.

    A kind adds what it wants to find again when it checks and commits.
    """

    shard: int
    inputs: list[JobInput]  # held until the job is over
    tasks: list[bytes]  # encoded, one at least
    reason: str  # why these inputs; for people
    target_bytes: int = 0  # of one new object, where a kind makes objects of a size


PlanT = TypeVar("PlanT", bound=Plan)
ResultT = TypeVar("ResultT")


class JobKind(Protocol[PlanT, ResultT]):
    """Its name is a path of the job contract. All but `commit` is called on a worker thread."""

    def has_work(self, held: Held) -> bool:
        """Whether `plan` would find a job; costs less."""
        ...

    def plan(self, held: Held) -> PlanT | None:
        """The job most worth doing now, None when none is.

        No other job begins before this one has, so what is not in `held` is free.
        """
        ...

    def check(
        self, plan: PlanT, number: int, body: bytes, others: Mapping[int, ResultT]
    ) -> ResultT:
        """What task `number` made, decoded and found right; `others` has what other tasks made.

        Raises InvalidRequest for what is no result, ResultRefused for a wrong one.
        """
        ...

    async def commit(self, plan: PlanT, results: list[ResultT]) -> None:
        """Journals what makes all results visible; they come in the order of the tasks.

        Raises OSError: nothing was journaled, the same commit may come again. All else that it
        raises ends the job, and StreamErrors are the pipeline's answer. Cancelled, it may have
        happened.
        """
        ...
