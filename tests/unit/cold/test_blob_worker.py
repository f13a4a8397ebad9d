"""Whoever waits for a blob is told, whatever happens to it."""

from __future__ import annotations

import asyncio

from millstream.cold.blob_worker import BlobWorker
from millstream.faults import Faults
from millstream.tier.blobs import MemoryBlobs


def test_whoever_waits_hears_of_an_error_that_nobody_expected() -> None:
    faults, told = Faults(), list[object]()

    def fail() -> None:
        raise KeyError("unforeseen")

    async def story() -> None:
        blobs = BlobWorker(MemoryBlobs(), faults=faults)
        blobs.start(asyncio.get_running_loop())
        blobs.run(fail, told.append)
        await blobs._threads.wait_idle()
        assert "blobs" in faults.failing()
        blobs.run(lambda: "fine", told.append)
        await blobs._threads.wait_idle()
        blobs.close()

    asyncio.run(story())
    failed, fine = told
    assert isinstance(failed, OSError)
    assert fine == "fine"
    assert (faults.counts["blobs"], faults.failing()) == (1, {})


def test_who_is_told_and_fails_harms_nobody_else() -> None:
    faults, told = Faults(), list[object]()

    def fail(result: object) -> None:
        raise RuntimeError("a reply")

    async def story() -> None:
        blobs = BlobWorker(MemoryBlobs(), faults=faults)
        blobs.start(asyncio.get_running_loop())
        blobs.run(lambda: None, fail)
        blobs.run(lambda: None, told.append)
        await blobs._threads.wait_idle()
        blobs.close()

    asyncio.run(story())
    assert told == [None]
    assert faults.counts["watcher"] == 1
