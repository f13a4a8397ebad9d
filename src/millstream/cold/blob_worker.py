"""Blob work off the loop: store and load; and which blobs are on their way into the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from millstream.cold.pending_objects import PendingObjects
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.faults import Faults
from millstream.state.outbox import Outbox
from millstream.tier.blobs import BlobStore
from millstream.tier.object_kinds import snapshot_name

THREADS = 4  # a few large bodies at a time; more would only fight for the same disk

Result = TypeVar("Result")


class BlobWorker:
    def __init__(
        self,
        store: BlobStore,
        pending: PendingObjects | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.store = store
        self._pending = pending or PendingObjects()
        self._threads = OffLoop("blobs", THREADS)
        self._upkeep = Upkeep(faults or Faults(), "blobs", Backoff(0.0, 0.0))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads.start(loop)

    def run(self, work: Callable[[], Result], done: Callable[[Result | OSError], None]) -> None:
        """Does the work on a thread and calls `done` on the loop with its result or its error.

        `done` is always called: after an error that is a fault of ours, with an OSError.
        """

        def finished(result: Result | Exception) -> None:
            if not isinstance(result, Exception):
                self._upkeep.worked()
            elif not isinstance(result, OSError):
                self._upkeep.failed(result, "")
                result = OSError("an unexpected error, see the log")
            self._upkeep.tell(done, result)

        self._threads.run(work, finished)

    def hold(self, name: str) -> None:
        """The blob is on its way into the state: nothing refers to it yet, but will."""
        self._pending.add(snapshot_name(name))

    def release(self, name: str) -> None:
        self._pending.remove(snapshot_name(name))

    def collect(self, outbox: Outbox) -> None:
        """Called after every batch: deletes what the batch made useless.

        For blobs in memory, which takes no time. In the cold store they have to wait, see
        cold/garbage.py.
        """
        for name in outbox.unused_blobs:
            self.store.delete(name)

    def close(self) -> None:
        self._threads.close()
