"""Freed memory goes back to the system when it has piled up."""

from __future__ import annotations

import asyncio

import pytest

from millstream.cold import memory_keeper
from millstream.cold.memory_keeper import MemoryKeeper
from millstream.engine.timings import Timings
from millstream.faults import Faults
from millstream.heap import resident_bytes
from millstream.limits import MIB
from tests.unit.cold.cold_office import until


def test_the_system_tells_what_we_have() -> None:
    before = resident_bytes()
    piece = b"x" * (64 * MIB)
    assert resident_bytes() - before > 48 * MIB
    del piece


def test_memory_is_returned_once_when_it_has_grown_and_again_when_it_grows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = iter([100, 110, 117, 110, 120, 125, 127, 140, 127])
    left = [100]

    def resident() -> int:
        left[0] = next(sizes, left[0])
        return left[0] * MIB

    monkeypatch.setattr(memory_keeper, "resident_bytes", resident)

    async def story() -> int:
        keeper = MemoryKeeper(Faults(), Timings(memory_look=0.001))
        # 100 at first; 117 is too much, 110 are left
        async with asyncio.TaskGroup() as group, keeper.running(group):
            # 127 is too much again, 140 are left
            await until(lambda: left[0] == 127 and keeper.returns >= 2)
        return keeper.returns

    assert asyncio.run(story()) == 2
