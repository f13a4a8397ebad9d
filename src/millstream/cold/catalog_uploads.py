"""Takes the catalog to the cold store now and then, so that a new machine can go on from there.

A copy is made in the checkpoint's own thread, where no merge runs beside it, so all files are of
one position; compressing and uploading happens in another thread and holds up no request. An upload
ends at its first failure and is tried again later: the manifest before it stays good.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.checkpointer import Checkpointer
from millstream.engine.alarm import Alarm
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, in_background, is_expected
from millstream.errors import DamagedBackup
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
        timings: Timings,
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
        self._timings = timings
        self._thread = Threads("catalog-upload", 1)
        self._kept: list[Manifest] | None = None  # None: the store was not asked yet
        self._copied_lsns: dict[str, int] = {}  # files of the newest manifest that we stored
        self._upkeep = Upkeep(engine.faults, "uploads", timings.upload_retry)
        self._nudge = self._upkeep.guarded(self._look_for_work, COMPLAINT)
        self._uploading = asyncio.Lock()
        self._due = Alarm()
        self._not_before = 0.0
        self._hurried_not_before = 0.0
        self.after: list[Callable[[], None]] = []  # called when a manifest is stored
        self.is_awaited: Callable[[], bool] = lambda: False  # garbage waits for a newer one
        self.count = 0

    @property
    def oldest_lsn(self) -> int:
        """What was garbage by then is in no manifest that is kept. -1: none is known.

        A restore may go back to the position of the oldest manifest, and needs its objects.
        """
        return self._kept[-1].lsn if self._kept else -1

    @property
    def newest_lsn(self) -> int:
        return self._kept[0].lsn if self._kept else 0

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Uploads after checkpoints. Afterwards the last checkpoint is in the store too, unless the
        store was away: then the manifest before it stays good."""
        self._checkpointer.after.append(self._checkpointed)
        try:
            async with in_background(group, self._run()):
                try:
                    yield
                finally:
                    async with self._uploading:  # the one that is under way comes to its end
                        pass
        finally:
            await self._upload_last()
            await self._thread.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self) -> None:
        await self._look()
        while True:
            await self._wait_until_due()
            await self._upload(self._objects)

    async def _look(self) -> None:
        """Which manifests earlier runs left. If the store is away, the first upload asks again."""
        try:
            self._kept = await self._thread.run(lambda: _load_kept(self._objects, self._store_id))
        except Exception as error:
            if not is_expected(error):
                self._upkeep.failed(error, COMPLAINT)

    # When

    async def _wait_until_due(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timings.upload_nudge):
                    await self._due.wait()
                    return
            except TimeoutError:
                self._nudge()

    def _checkpointed(self, capture: Capture) -> None:
        """While one is uploaded, `_upload` sees for itself that there is a newer position."""
        if not self._uploading.locked():
            self._upload_soon()

    def _upload_soon(self) -> None:
        if not self._checkpointer.is_closing:  # else the last one is on its way
            self._due.ring_in(self._not_before - _now())

    def hurry(self) -> None:
        """The disk is full: a newer one is needed soon."""
        if self._uploading.locked() or self._checkpointer.is_closing:
            return
        if self._catalog.lsn <= self.newest_lsn:
            self._bring_about_news()
        elif _now() >= self._hurried_not_before:
            self._due.ring_in(0.0)

    def _look_for_work(self) -> None:
        if self._due.is_set or self._checkpointer.is_closing:
            return
        if self._catalog.lsn > self.newest_lsn:
            self._upload_soon()
        else:
            self._bring_about_news()

    def _bring_about_news(self) -> None:
        """The next checkpoint will be at a newer position, though nothing else happens."""
        if self.is_awaited():
            self._engine.submit_and_forget(NoOp(self._engine.clock.now_ms()))

    # How

    async def _upload(self, objects: ObjectStore) -> None:
        """The newest position is stored, or the reason is told and the next try is set.

        Cancelled: the manifest may be stored all the same.
        """
        async with self._uploading:
            began, wait, is_stored = _now(), 0.0, False
            try:
                await self._store_newest(objects)
                is_stored = True
            except Exception as error:
                wait = self._upkeep.failed(error, COMPLAINT)
            took = _now() - began
            rest = max(wait, self._interval_seconds, took * self._timings.upload_share)
            self._not_before = _now() + rest
            self._hurried_not_before = _now() + took
        if is_stored:
            for call in self.after:
                self._upkeep.tell(call)
        if not is_stored or self._catalog.lsn > self.newest_lsn:
            self._upload_soon()

    async def _store_newest(self, objects: ObjectStore) -> None:
        copies = await self._checkpointer.in_thread(self._copy)
        kept, now_ms = self._kept, self._engine.clock.now_ms()
        stored = await self._thread.run(lambda: self._store(objects, copies, kept, now_ms))
        self._kept = stored.kept
        self._copied_lsns.update(dict.fromkeys(stored.copied, copies.lsn))
        self.count += 1
        self._upkeep.worked()
        logger.info("catalog uploaded", lsn=copies.lsn, files=len(stored.copied))

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

    async def _upload_last(self) -> None:
        """After the last checkpoint; gives up soon when the store is away."""
        if self._catalog.lsn > self.newest_lsn and not self._upkeep.failures:
            await self._thread.run(_nothing)  # a try that was cancelled may still read its copies
            settings = self._objects.settings
            seconds = min(settings.timeout_seconds, self._closing_seconds)
            await self._upload(ObjectStore(settings._replace(timeout_seconds=max(seconds, 0.1))))


def _load_kept(objects: ObjectStore, store_id: str) -> list[Manifest]:
    """The manifests of earlier runs. One that is damaged is not kept: no restore can use it."""
    found = []
    for lsn in list_manifests(objects):
        try:
            found.append(load_manifest(objects, lsn, store_id))
        except DamagedBackup as error:
            logger.warning("a manifest of the catalog is damaged", error=str(error))
        if len(found) == MANIFESTS_KEPT:
            break
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()


def _nothing() -> None:
    pass
