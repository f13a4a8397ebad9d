"""When the disk is full: sees to it that what can be freed is freed soon, without anybody's help.

Deletions, expiry and trims are journaled on the room that the log's reserve gives back. Then it
takes a checkpoint (lets the log go, tells the catalog what is garbage), copies of the catalog (a
restore must not miss an object) and a collection of the garbage. Each of these happens anyway, in
its own good time; here they follow on each other at once, and readers get a shorter grace: one that
is slower finds an object missing and plans again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.garbage import Garbage
from millstream.engine.engine import Engine
from millstream.journal.reserve import NO_ROOM
from millstream.limits import FULL_DISK_LOOK_SECONDS


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
    ) -> None:
        """`errors` are the last ones of those who write to the disk that the log is on."""
        self._engine = engine
        self._checkpointer = checkpointer
        self._uploads = uploads
        self._garbage = garbage
        self._errors = errors
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(FULL_DISK_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(FULL_DISK_LOOK_SECONDS, self._look)
        journal = self._engine.journal
        if not journal.is_full and any(map(says_full, self._errors())):
            journal.declare_full()
        if journal.is_full:
            self._make_room()

    def _make_room(self) -> None:
        self._checkpointer.hurry(is_wanted=self._garbage.waits_for_upload)
        self._uploads.hurry()
        self._garbage.hurry()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
