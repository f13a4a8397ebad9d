"""What `compact` and `erase` choose, and what becomes of their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.errors import JobConflict, JobNotFound, ResultRefused
from millstream.formats.jobs import TaskResult, encode_task
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run
from tests.unit.jobs.job_world import JobWorld

NAMES = [f"segments/0002/{k}" for k in range(4)]


def run(story: Callable[[JobWorld], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = JobWorld()
        async with asyncio.timeout(20):
            await story(world)
        await world.worker.close()

    asyncio.run(whole())


async def brought(world: JobWorld) -> tuple[str, TaskResult]:
    """A job with the result of its only task, and that result."""
    job = (await world.offered())["job"]
    result = world.rewritten(world.jobs.task(job, 0))
    await world.jobs.put_result(job, 0, encode_task(result))
    return job, result


def test_all_results_are_swapped_in_by_one_command() -> None:
    async def story(world: JobWorld) -> None:
        job, result = await brought(world)
        await world.jobs.commit(job)
        await world.jobs.commit(job)  # the answer to the first was not heard
        assert world.swapped == [(2, NAMES, result.segments, result.runs)]

    run(story)


@pytest.mark.parametrize("what", ["moved", "no object", "short object", "name in use", "refused"])
def test_a_conflict_is_told_and_ends_the_job(what: str) -> None:
    async def story(world: JobWorld) -> None:
        job, _ = await brought(world)
        if what == "moved":
            name, moved = world.catalog.runs[1]
            world.catalog.runs[1] = (name, Run(StreamId(2), 1, 10, 1, 10, 0, 5, moved.crc))
        elif what == "no object":
            world.catalog.sizes.clear()
        elif what == "short object":
            world.catalog.sizes["segments/0002/new"] = 54
        elif what == "name in use":
            world.catalog.runs.append(("segments/0002/new", Run(StreamId(6), 0, 0, 1, 1, 0, 0, 0)))
        else:
            world.swap_error = JobConflict("another job won")
        with pytest.raises(JobConflict):
            await world.jobs.commit(job)
        assert len(world.swapped) == (what == "refused")
        with pytest.raises(JobNotFound):
            world.jobs.task(job, 0)

    run(story)


def test_what_died_meanwhile_is_left_out_of_the_commit() -> None:
    async def story(world: JobWorld) -> None:
        job, result = await brought(world)
        del world.catalog.runs[1]
        await world.jobs.commit(job)
        runs = [[each for each in result.runs[0] if each.first_ordinal != 1]]
        assert world.swapped == [(2, NAMES, result.segments, runs)]

    run(story)


def test_a_job_whose_inputs_are_all_dead_is_committed_with_nothing() -> None:
    async def story(world: JobWorld) -> None:
        job, result = await brought(world)
        world.catalog.runs.clear()
        await world.jobs.commit(job)
        [(_, _, segments, runs)] = world.swapped
        assert (segments, runs) == (result.segments, [[]])

    run(story)


def test_the_name_of_an_input_or_of_another_tasks_segment_is_taken() -> None:
    async def story(world: JobWorld) -> None:
        plan = world.jobs.kinds["compact"].plan({})
        assert plan is not None
        result = world.rewritten(plan.tasks[0])
        check = world.jobs.kinds["compact"].check
        assert check(plan, 0, encode_task(result), {}) == result
        with pytest.raises(ResultRefused, match="segments/0002/new is used twice"):
            check(plan, 0, encode_task(result), {1: result})

    run(story)


def test_dead_content_comes_first_once_half_of_its_time_has_passed() -> None:
    async def story(world: JobWorld) -> None:
        world.catalog.dead_since = {NAMES[3]: world.clock.now_ms()}
        assert await world.jobs.ask("erase") is None
        world.clock.advance(500_000)
        offer = await world.offered("compact")
        assert offer["reason"] == "content that must go"
        assert [each["name"] for each in offer["inputs"]] == NAMES[3:]
        assert await world.jobs.ask("erase") is None  # it is taken
        world.jobs.give_up(offer["job"])
        assert (await world.offered("erase"))["kind"] == "erase"

    run(story)


def test_what_is_being_erased_is_not_compacted_and_the_other_way_round() -> None:
    async def story(world: JobWorld) -> None:
        world.catalog.dead_since = {NAMES[3]: world.clock.now_ms()}
        world.clock.advance(500_000)
        await world.offered("erase")
        offer = await world.offered("compact")
        assert [each["name"] for each in offer["inputs"]] == NAMES[:3]
        world.catalog.dead_since = dict.fromkeys(NAMES, world.clock.now_ms() - 500_000)
        assert await world.jobs.ask("erase") is None

    run(story)


def test_there_is_work_until_it_is_taken() -> None:
    async def story(world: JobWorld) -> None:
        assert await world.jobs.has_work("compact") is True
        assert await world.jobs.has_work("erase") is False
        await world.offered("compact")
        assert await world.jobs.has_work("compact", "erase") is False

    run(story)
