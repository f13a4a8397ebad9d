"""Takes the catalog to the cold store now and then, so that a new machine can go on from there.

A copy is made in the checkpoint's own thread, where no merge runs beside it, so all files are of
one position; compressing and uploading happens in another thread and holds up nobody. An upload
ends at its first failure and is tried again later: the manifest before it stays good.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.checkpointer import Checkpointer
from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep, is_expected
from millstream.errors import DamagedBackup
from millstream.limits import CATALOG_NUDGE_SECONDS, CATALOG_UPLOAD_SHARE
from millstream.state.changes import Capture
from millstream.state.commands import NoOp
from millstream.tier.backup import (
    FORMAT,
    MANIFESTS_KEPT,
    BackedUpFile,
    Manifest,
    delete_unused,
    list_manifests,
    load_manifest,
    store_file,
    store_manifest,
)
from millstream.tier.objects import ObjectStore

logger = structlog.get_logger("millstream.backup")

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 5.0, 300.0
COMPLAINT = "cannot upload the catalog; trying again later"


class CopiedCatalog(Protocol):
    lsn: int

    def file_names(self) -> dict[str, int | None]: ...

    def changed_lsn(self, shard: int | None) -> int: ...

    def back_up(self, shard: int | None, to: Path) -> int: ...


class _Copies(NamedTuple):
    lsn: int
    paths: list[Path]
    unchanged: dict[str, BackedUpFile]


class _Stored(NamedTuple):
    kept: list[Manifest]  # the newest first
    copied: list[str]


class CatalogUploads:
    def __init__(
        self,
        engine: Engine,
        checkpointer: Checkpointer,
        catalog: CopiedCatalog,
        objects: ObjectStore,
        store_id: str,
        copies: Path,
        interval_seconds: float,
        closing_seconds: float,
        *,
        nudge_seconds: float = CATALOG_NUDGE_SECONDS,
    ) -> None:
        """`copies` is a folder of its own; what is in it does not outlive an upload."""
        self._engine = engine
        self._checkpointer = checkpointer
        self._catalog = catalog
        self._objects = objects
        self._store_id = store_id
        self._folder = copies
        self._interval_seconds = interval_seconds
        self._closing_seconds = closing_seconds
        self._nudge_seconds = nudge_seconds
        self._thread = OffLoop("catalog-upload", 1)
        self._kept: list[Manifest] | None = None  # None: nobody has looked yet
        self._copied_lsns: dict[str, int] = {}  # files of the newest manifest that we stored
        self._is_busy = False
        self._upkeep = Upkeep(
            engine.faults, "uploads", Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        )
        self._not_before = 0.0
        self._hurried_not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._nudge_timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.after: list[Callable[[], None]] = []  # called when a manifest is stored
        self.is_awaited: Callable[[], bool] = lambda: False  # somebody waits for a newer one
        self.count = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._checkpointer.after.append(self._checkpointed)
        self._thread.run(self._look, self._looked)
        self._nudge_timer = loop.call_later(self._nudge_seconds, self._nudge)
        self._nudged = self._upkeep.guarded(self._look_for_work, COMPLAINT)

    @property
    def oldest_lsn(self) -> int:
        """What was garbage by then is in no manifest that is kept. -1: none is known.

        A restore may go back to the position of the oldest manifest, and needs its objects.
        """
        return self._kept[-1].lsn if self._kept else -1

    @property
    def newest_lsn(self) -> int:
        return self._kept[0].lsn if self._kept else 0

    # When

    def _checkpointed(self, capture: Capture) -> None:
        self._upload_soon()

    def _upload_soon(self) -> None:
        if self._is_busy or self._timer is not None:
            return
        wait = self._not_before - self._loop.time()
        if wait <= 0:
            self._begin(self._objects)
        else:
            self._timer = self._loop.call_later(wait, self._timer_rang)

    def hurry(self) -> None:
        """Somebody needs a newer one soon."""
        if self._is_busy or self._checkpointer.is_closing:
            return
        if self._catalog.lsn <= self.newest_lsn:
            if self.is_awaited():
                self._engine.submit_and_forget(NoOp(self._engine.clock.now_ms()))
        elif self._loop.time() >= self._hurried_not_before:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._begin(self._objects)

    def _timer_rang(self) -> None:
        self._timer = None
        if not self._is_busy:
            self._begin(self._objects)

    def _nudge(self) -> None:
        """Sees to it that there is something newer to upload when somebody waits for it."""
        self._nudge_timer = self._loop.call_later(self._nudge_seconds, self._nudge)
        self._nudged()

    def _look_for_work(self) -> None:
        if self._is_busy or self._timer is not None or self._checkpointer.is_closing:
            return
        if self._catalog.lsn > self.newest_lsn:
            self._upload_soon()
        elif self.is_awaited():
            # The next checkpoint will be at a newer position, though nothing else happens.
            self._engine.submit_and_forget(NoOp(self._engine.clock.now_ms()))

    # How

    def _look(self) -> list[Manifest]:
        return _load_kept(self._objects, self._store_id)

    def _looked(self, result: list[Manifest] | Exception) -> None:
        if isinstance(result, Exception):
            if not is_expected(result):  # else the first upload looks again
                self._upkeep.failed(result, COMPLAINT)
        elif self._kept is None:
            self._kept = result

    def _begin(self, objects: ObjectStore) -> None:
        """Whatever goes wrong from here on comes to `_failed`, which sees to the next try."""
        self._is_busy = True
        self._ended.clear()
        began = self._began = self._loop.time()

        def guard(step: Callable[[], None]) -> None:
            try:
                step()
            except Exception as error:
                self._failed(began, error)

        def copied(copies: _Copies | Exception) -> None:
            if isinstance(copies, Exception):
                raise copies
            kept, now_ms = self._kept, self._engine.clock.now_ms()
            self._thread.run(
                lambda: self._store(objects, copies, kept, now_ms),
                lambda result: guard(lambda: self._stored(began, result)),
            )

        guard(
            lambda: self._checkpointer.run_in_thread(
                self._copy, lambda copies: guard(lambda: copied(copies))
            )
        )

    def _copy(self) -> _Copies:
        """In the checkpoint's thread: every file that changed, all of one position."""
        catalog, newest = self._catalog, self._kept[0] if self._kept else None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        try:
            return self._copy_changed(catalog, newest)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)  # perhaps the disk is full
            raise

    def _copy_changed(self, catalog: CopiedCatalog, newest: Manifest | None) -> _Copies:
        copies = _Copies(catalog.lsn, [], {})
        for name, shard in catalog.file_names().items():
            copied_lsn = self._copied_lsns.get(name, -1)
            if newest is not None and catalog.changed_lsn(shard) <= copied_lsn:
                copies.unchanged[name] = newest.files[name]
                continue
            path = self._folder / name
            lsn = catalog.back_up(shard, path)
            if lsn != copies.lsn:
                raise OSError(f"{name} is at {lsn}, not at {copies.lsn}: a merge is not finished")
            copies.paths.append(path)
        return copies

    def _store(
        self, objects: ObjectStore, copies: _Copies, kept: list[Manifest] | None, now_ms: int
    ) -> _Stored:
        if kept is None:
            kept = _load_kept(objects, self._store_id)
        files = dict(copies.unchanged)
        for path in copies.paths:
            files[path.name] = store_file(objects, copies.lsn, path)
            path.unlink()
        shards = len(files) - 1
        manifest = Manifest(FORMAT, self._store_id, copies.lsn, shards, now_ms, files)
        store_manifest(objects, manifest)
        kept = [manifest, *(m for m in kept if m.lsn != manifest.lsn)][:MANIFESTS_KEPT]
        try:
            delete_unused(objects, kept)
        except OSError as error:
            logger.info("older copies of the catalog stay for now", error=str(error))
        return _Stored(kept, [path.name for path in copies.paths])

    def _stored(self, began: float, result: _Stored | Exception) -> None:
        if isinstance(result, Exception):
            raise result
        self._not_before = self._loop.time() + self._rest_seconds(began)
        self._kept = result.kept
        lsn = result.kept[0].lsn
        self._copied_lsns.update(dict.fromkeys(result.copied, lsn))
        self.count += 1
        self._upkeep.worked()
        logger.info("catalog uploaded", lsn=lsn, files=len(result.copied))
        self._end()
        for call in self.after:
            self._upkeep.tell(call)
        if self._catalog.lsn > lsn and not self._checkpointer.is_closing:
            self._upload_soon()  # a checkpoint came while we were busy

    def _rest_seconds(self, began: float) -> float:
        took = self._loop.time() - began
        return max(self._interval_seconds, took * CATALOG_UPLOAD_SHARE)

    def _failed(self, began: float, error: Exception) -> None:
        wait = max(self._rest_seconds(began), self._upkeep.failed(error, COMPLAINT))
        self._not_before = self._loop.time() + wait
        if self._timer is None and not self._checkpointer.is_closing:
            self._timer = self._loop.call_later(wait, self._timer_rang)
        self._end()

    def _end(self) -> None:
        self._is_busy = False
        self._hurried_not_before = self._loop.time() + (self._loop.time() - self._began)
        self._ended.set()

    # The end

    async def close(self) -> None:
        """The last upload, after the last checkpoint; gives up soon when the store is away."""
        for timer in (self._timer, self._nudge_timer):
            if timer is not None:
                timer.cancel()
        if self._is_busy:
            await self._ended.wait()
        if self._catalog.lsn > self.newest_lsn and not self._upkeep.failures:
            settings = self._objects.settings
            seconds = min(settings.timeout_seconds, self._closing_seconds)
            self._begin(ObjectStore(settings._replace(timeout_seconds=max(seconds, 0.1))))
            await self._ended.wait()
        await self._thread.wait_idle()
        self._thread.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _load_kept(objects: ObjectStore, store_id: str) -> list[Manifest]:
    """The manifests of earlier runs. One that is damaged is not kept: it helps nobody."""
    found = []
    for lsn in list_manifests(objects):
        try:
            found.append(load_manifest(objects, lsn, store_id))
        except DamagedBackup as error:
            logger.warning("a manifest of the catalog is damaged", error=str(error))
        if len(found) == MANIFESTS_KEPT:
            break
    return found
