"""When the disk is full: sees to it that what can be freed is freed soon, without an operator.

Deletions, expiry and trims are journaled on the room that the log's reserve gives back. Then it
takes a checkpoint (lets the log go, tells the catalog what is garbage), copies of the catalog (a
restore must not miss an object) and a collection of the garbage. Each of these happens anyway, in
its own good time; here they follow on each other at once, and readers get a shorter grace: one that
is slower finds an object missing and plans again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.garbage import Garbage
from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.journal.reserve import NO_ROOM


def says_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in NO_ROOM


class RoomMaker:
    def __init__(
        self,
        engine: Engine,
        checkpointer: Checkpointer,
        uploads: CatalogUploads,
        garbage: Garbage,
        errors: Callable[[], list[BaseException | None]],
        timings: Timings,
    ) -> None:
        """`errors` are the last ones of the services that write to the disk that the log is on."""
        self._engine = engine
        self._checkpointer = checkpointer
        self._uploads = uploads
        self._garbage = garbage
        self._errors = errors
        self._look_seconds = timings.full_disk_look

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Afterwards it hurries no other service any more."""
        task = group.create_task(self._run(), name="room maker")
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        """A disk does not say when it is full or has room again: it is asked now and then."""
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                self._look()
            except Exception as error:  # the next look comes as soon as any back-off would end
                self._engine.faults.report("loop", error)

    def _look(self) -> None:
        journal = self._engine.journal
        if not journal.is_full and any(map(says_full, self._errors())):
            journal.declare_full()
        if journal.is_full:
            self._checkpointer.hurry(is_wanted=self._garbage.waits_for_upload)
            self._uploads.hurry()
            self._garbage.hurry()
