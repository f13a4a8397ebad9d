"""Dead content: when it is late, how much there is, and what the log says of it."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.typing import EventDict

from millstream.config import Config
from millstream.engine.timings import Timings
from millstream.jobs import eraser_process
from millstream.jobs.compaction import Policy
from millstream.jobs.eraser_process import EraserProcess
from millstream.jobs.erasure import Erasure
from tests.unit.cold.cold_office import until
from tests.unit.jobs.job_world import JobWorld

DEAD = "segments/0002/3"
URL = "http://127.0.0.1:1"


def test_what_is_not_rewritten_in_time_is_late_and_then_overdue() -> None:
    world = JobWorld()
    erasure = world.erasure
    world.catalog.dead_since = {DEAD: world.clock.now_ms()}
    world.clock.advance(600_000)
    assert not erasure.is_late(set())
    world.clock.advance(30_000)
    assert erasure.is_late(set())
    assert not erasure.is_late({DEAD})  # it is being rewritten
    assert erasure.dead_bytes() == (75, 0)
    world.clock.advance(400_000)
    assert erasure.dead_bytes() == (75, 75)


def test_without_a_promise_nothing_is_late() -> None:
    world = JobWorld()
    world.catalog.dead_since = {DEAD: 0}
    erasure = Erasure(world.catalog, world.clock, Policy())
    assert erasure.choose(set()) is None
    assert not erasure.is_late(set())
    assert erasure.dead_bytes() == (75, 0)


async def look(world: JobWorld, looks: int) -> EraserProcess:
    """An eraser that has looked so often."""
    timings = Timings(eraser_look_min=0.0, eraser_look_max=0.0)
    eraser = EraserProcess(Config(), world.jobs, world.erasure, world.worker, world.faults, timings)
    seen = 0
    decayed = world.catalog.decayed

    def counted() -> object:
        nonlocal seen
        seen += 1
        return decayed()

    world.catalog.decayed = counted  # type: ignore[assignment, method-assign]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group, eraser.running(group, URL):
        await until(lambda: seen > 2 * looks)  # two questions each
    await world.worker.close()
    return eraser


def warnings(logs: list[EventDict]) -> list[EventDict]:
    return [line for line in logs if "longer than --erase-within says" in line["event"]]


def test_what_is_overdue_is_said_once_in_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eraser_process, "LOOKS_BETWEEN_WARNINGS", 1000)
    world = JobWorld()
    world.catalog.dead_since = {DEAD: world.clock.now_ms() - 1_000_001}
    plan = world.jobs.kinds["erase"].plan({})
    assert plan is not None
    world.table.start("erase", plan)  # a pipeline is at it
    with structlog.testing.capture_logs() as logs:
        eraser = asyncio.run(look(world, 5))
    assert eraser.dead == (75, 75)
    [warning] = warnings(logs)
    assert (warning["bytes"], warning["log_level"]) == (75, "warning")


def test_a_catalog_that_cannot_be_read_leaves_the_numbers_as_they_were() -> None:
    world = JobWorld()

    def fail() -> list[object]:
        raise OSError("away")

    world.catalog.decayed = fail  # type: ignore[assignment, method-assign]
    with structlog.testing.capture_logs() as logs:
        eraser = asyncio.run(look(world, 3))
    assert eraser.dead == (0, 0)
    assert not warnings(logs)
    assert not world.faults.failing()
