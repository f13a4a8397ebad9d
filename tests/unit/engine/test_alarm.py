"""An alarm rings at the earliest of the times it was set to, once."""

from __future__ import annotations

import asyncio

import pytest

from millstream.engine.alarm import Alarm

LATER_SECONDS = 3600.0


def test_it_rings_once_for_all_that_set_it() -> None:
    async def story() -> None:
        alarm = Alarm()
        assert not alarm.is_set
        alarm.ring_in(0.0)
        alarm.ring_in(-1.0)
        alarm.ring_in(LATER_SECONDS)
        assert alarm.is_set
        await alarm.wait()
        assert not alarm.is_set
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await alarm.wait()

    asyncio.run(story())


@pytest.mark.parametrize("is_set_before", [False, True])
def test_who_waits_already_hears_of_an_earlier_time(is_set_before: bool) -> None:
    async def story() -> None:
        alarm = Alarm()
        if is_set_before:
            alarm.ring_in(LATER_SECONDS)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(alarm.wait())
            await asyncio.sleep(0)  # it waits now
            alarm.ring_in(0.001)

    asyncio.run(story())


def test_it_stays_set_when_the_wait_for_it_is_cancelled() -> None:
    async def story() -> None:
        alarm = Alarm()
        alarm.ring_in(LATER_SECONDS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await alarm.wait()
        assert alarm.is_set

    asyncio.run(story())
