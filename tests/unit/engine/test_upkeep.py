"""Work in the background goes on after errors, and is over when its block is."""

from __future__ import annotations

import asyncio

import pytest

from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep, in_background
from millstream.faults import Faults


def test_work_is_repeated_whatever_it_raises() -> None:
    faults, rounds = Faults(), list[int]()
    upkeep = Upkeep(faults, "retention", Backoff(0.0, 0.0))

    async def work() -> float:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise KeyError("a fault")
        if len(rounds) == 2:
            raise OSError("the world")
        if len(rounds) == 3:
            upkeep.worked()
            return 0.0
        raise asyncio.CancelledError

    async def story() -> None:
        with pytest.raises(asyncio.CancelledError):
            await upkeep.repeat(work, "it cannot be done")

    asyncio.run(story())
    assert len(rounds) == 4
    assert (faults.counts["retention"], faults.failing()) == (1, {})


def test_after_the_block_the_work_beside_it_is_over() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            async with in_background(group, work()):
                await asyncio.sleep(0)
            assert ended

    asyncio.run(story())


def test_an_error_that_escapes_the_work_ends_the_group_and_the_block() -> None:
    async def work() -> None:
        raise KeyError("nothing catches this")

    async def story() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group, in_background(group, work()):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(story())
    assert raised.group_contains(KeyError, match="nothing catches this")
