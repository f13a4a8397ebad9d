"""The service with a kind of job that rewrites nothing: it counts what segments hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from millstream.errors import InvalidRequest, JobConflict, JobNotFound, ResultRefused
from millstream.formats.jobs import JobInput
from millstream.jobs.kinds import Held, JobKind, Plan
from tests.unit.jobs.job_world import LEASE_MS, JobWorld

SIZES = {"segments/0002/0": 7, "segments/0002/1": 5}  # the first two of the world's four


@dataclass(frozen=True, kw_only=True)
class CountPlan(Plan):
    sizes: list[int]  # what the tasks are to find


class Counting:
    """One task for each segment; its result is a number."""

    def __init__(self) -> None:
        self.counted: list[dict[str, int]] = []
        self.errors: list[BaseException] = []  # of the next commits
        self.others: list[Mapping[int, int]] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    def has_work(self, held: Held) -> bool:
        return self.plan(held) is not None

    def plan(self, held: Held) -> CountPlan | None:
        free = [name for name in SIZES if name not in held.get("count", ())]
        inputs = [JobInput(name, 100, 10, 1, 10) for name in free]
        tasks, sizes = [name.encode() for name in free], [SIZES[name] for name in free]
        plan = CountPlan(shard=2, inputs=inputs, tasks=tasks, reason="to know", sizes=sizes)
        return plan if tasks else None

    def check(self, plan: CountPlan, number: int, body: bytes, others: Mapping[int, int]) -> int:
        self.others.append(others)
        try:
            size = int(body)
        except ValueError:
            raise InvalidRequest("no number") from None
        if size != plan.sizes[number]:
            raise ResultRefused(f"expected {plan.sizes[number]}, found {size}")
        return size

    async def commit(self, plan: CountPlan, results: list[int]) -> None:
        await self.may_commit.wait()
        if self.errors:
            raise self.errors.pop(0)
        names = [each.name for each in plan.inputs]
        self.counted.append(dict(zip(names, results, strict=True)))


Story = Callable[[JobWorld, Counting], Awaitable[None]]


def run(story: Story) -> None:
    async def whole() -> None:
        counting = Counting()
        kind: JobKind[CountPlan, int] = counting  # it fits, and mypy sees that it does
        world = JobWorld({"count": kind})
        with structlog.testing.capture_logs():
            async with asyncio.timeout(20):
                await story(world, counting)
        await world.worker.close()

    asyncio.run(whole())


async def counted(world: JobWorld) -> str:
    """A job that only has to be committed."""
    job: str = (await world.offered("count"))["job"]
    for number, size in enumerate(SIZES.values()):
        await world.jobs.put_result(job, number, b"%d" % size)
    return job


def test_a_job_of_any_kind_goes_from_its_offer_to_its_commit() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        offer = await world.offered("count")
        assert (offer["kind"], offer["tasks"], offer["reason"]) == ("count", 2, "to know")
        assert [each["name"] for each in offer["inputs"]] == list(SIZES)
        assert (offer["live_bytes"], offer["target_bytes"]) == (20, 0)
        job = offer["job"]
        assert world.jobs.task(job, 1) == b"segments/0002/1"
        await world.jobs.put_result(job, 1, b"5")
        with pytest.raises(JobConflict, match="no result of task 0"):
            await world.jobs.commit(job)
        await world.jobs.put_result(job, 0, b"7")
        await world.jobs.commit(job)
        await world.jobs.commit(job)
        assert counting.counted == [SIZES]
        assert counting.others == [{}, {1: 5}]
        assert world.table.held() == {}

    run(story)


def test_a_result_that_the_kind_refuses_is_not_the_jobs() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        job = (await world.offered("count"))["job"]
        with pytest.raises(ResultRefused, match="expected 7, found 8"):
            await world.jobs.put_result(job, 0, b"8")
        with pytest.raises(InvalidRequest):
            await world.jobs.put_result(job, 0, b"many")
        with pytest.raises(JobNotFound, match="tasks 0 to 1"):
            await world.jobs.put_result(job, 2, b"7")
        with pytest.raises(JobConflict, match="no result of task 0"):
            await world.jobs.commit(job)
        assert world.table.find(job).results == {}

    run(story)


def test_jobs_of_two_kinds_hold_the_same_segments_when_only_one_rewrites_them() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        counted_job = await counted(world)
        offer = await world.offered("compact")
        rewritten = {each["name"] for each in offer["inputs"]}
        assert rewritten > set(SIZES)
        assert world.table.held() == {"count": set(SIZES), "compact": rewritten}
        assert await world.jobs.ask("count") is None
        assert await world.jobs.ask("compact") is None
        await world.jobs.commit(counted_job)
        assert world.table.held() == {"compact": rewritten}  # the other one goes on
        assert await world.jobs.ask("compact") is None
        assert await world.jobs.has_work("count") is True

    run(story)


def test_a_silent_job_ends_by_its_lease_and_those_of_other_kinds_do_not() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        silent = await counted(world)
        world.clock.advance(LEASE_MS - 1)
        other = (await world.offered("compact"))["job"]
        world.clock.advance(2)
        for call in (world.jobs.put_result(silent, 0, b"7"), world.jobs.commit(silent)):
            with pytest.raises(JobNotFound):
                await call
        assert world.jobs.task(other, 0)
        assert (await world.offered("count"))["job"] != silent

    run(story)


def test_a_lease_that_ends_while_a_result_is_checked_ends_the_job() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        job = (await world.offered("count"))["job"]
        world.worker.waiting = []
        putting = asyncio.create_task(world.jobs.put_result(job, 0, b"7"))
        await asyncio.sleep(0)
        [checked] = world.worker.waiting
        world.clock.advance(LEASE_MS + 1)
        checked.set()
        with pytest.raises(JobNotFound):
            await putting

    run(story)


def test_a_job_that_is_given_up_frees_what_it_holds() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        job = await counted(world)
        world.jobs.give_up(job)
        with pytest.raises(JobNotFound):
            world.jobs.give_up(job)
        with pytest.raises(JobNotFound):
            await world.jobs.commit(job)
        assert counting.counted == []
        await world.offered("count")

    run(story)


def test_a_job_that_is_being_committed_is_left_alone() -> None:
    """Its lease does not run out either, however long the commit takes."""

    async def story(world: JobWorld, counting: Counting) -> None:
        job = await counted(world)
        counting.may_commit.clear()
        committing = asyncio.create_task(world.jobs.commit(job))
        await asyncio.sleep(0)
        with pytest.raises(JobConflict, match="is being committed"):
            world.jobs.give_up(job)
        with pytest.raises(JobConflict, match="is being committed"):
            await world.jobs.commit(job)
        with pytest.raises(JobConflict, match="is being committed"):
            await world.jobs.put_result(job, 0, b"7")
        world.clock.advance(10 * LEASE_MS)
        assert await world.jobs.ask("count") is None
        counting.may_commit.set()
        await committing
        assert counting.counted == [SIZES]

    run(story)


def test_a_commit_that_did_not_begin_may_come_again() -> None:
    """The store was away: an OSError says that nothing is journaled."""

    async def story(world: JobWorld, counting: Counting) -> None:
        job = await counted(world)
        counting.errors = [OSError("no answer")]
        with pytest.raises(OSError, match="no answer"):
            await world.jobs.commit(job)
        assert counting.counted == []
        await world.jobs.commit(job)
        assert counting.counted == [SIZES]

    run(story)


@pytest.mark.parametrize("error", [JobConflict("too late"), KeyError("x"), MemoryError()])
def test_a_commit_that_failed_otherwise_ends_the_job(error: Exception) -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        job = await counted(world)
        counting.errors = [error]
        with pytest.raises(type(error)):
            await world.jobs.commit(job)
        with pytest.raises(JobNotFound):
            await world.jobs.commit(job)
        assert counting.counted == []
        await world.offered("count")

    run(story)


def test_a_commit_that_was_cancelled_ends_the_job() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        job = await counted(world)
        counting.may_commit.clear()
        committing = asyncio.create_task(world.jobs.commit(job))
        await asyncio.sleep(0)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        with pytest.raises(JobNotFound):
            await world.jobs.commit(job)

    run(story)


def test_jobs_of_all_kinds_are_planned_one_after_the_other() -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        world.worker.waiting = []
        asking = [asyncio.create_task(world.jobs.ask(kind)) for kind in ("count", "compact")]
        found: list[Any] = []
        for task in asking:
            await asyncio.sleep(0.001)
            [turn] = world.worker.waiting
            world.worker.waiting.clear()
            turn.set()
            found.append(json.loads(await task or b""))
        assert [offer["kind"] for offer in found] == ["count", "compact"]

    run(story)


@pytest.mark.parametrize(("error", "faults"), [(KeyError("x"), 1), (OSError("away"), 0)])
def test_a_look_that_fails_has_found_no_work(error: Exception, faults: int) -> None:
    async def story(world: JobWorld, counting: Counting) -> None:
        def fail(held: Held) -> bool:
            raise error

        counting.has_work = fail  # type: ignore[method-assign]
        assert await world.jobs.has_work("count") is False
        assert world.faults.counts["jobs"] == faults
        assert await world.jobs.has_work("compact") is True

    run(story)
