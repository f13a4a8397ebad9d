"""Objects that are needed no more: which they are, when they may go, and deleting them.

There are three kinds. Segments without live runs are listed by the catalog. Blobs of snapshots
that were superseded or deleted are told by the state machine and remembered here. Orphans, left by
a crash between upload and reference, are found by listing the store now and then.

An object may go once the oldest manifest that is kept is at or beyond the position at which it
became garbage, so that a restore never misses an object, and a grace has passed since then, so
that readers are done. A reader that is slower finds it missing and plans again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.pending_objects import PendingObjects
from millstream.engine.alarm import Alarm
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, in_background
from millstream.formats.layout import StreamId
from millstream.formats.runs import SegmentName
from millstream.limits import (
    GARBAGE_GRACE_FULL_SECONDS,
    ORPHAN_PAGE,
    ORPHANS_PER_TURN,
    UNUSED_BLOBS_MAX,
)
from millstream.state.changes import Capture
from millstream.state.outbox import Outbox
from millstream.tier.catalog import Garbage as SegmentGarbage
from millstream.tier.object_kinds import (
    FOLDERS_WITH_ORPHANS,
    SnapshotName,
    parse_name,
    snapshot_name,
)
from millstream.tier.objects import ObjectInfo, ObjectStore

logger = structlog.get_logger("millstream.garbage")

DELETE_AT_ONCE = 100  # objects in one go: orphans are looked up once more, on the loop

HURRY_SECONDS = 5.0  # after the last call for it
COMPLAINT = "garbage stays for now"

UNREFERRED = "no live run left"
SUPERSEDED = "snapshot superseded or deleted"
ORPHAN = "nothing ever referred to it"


class GarbageCatalog(Protocol):
    lsn: int

    def garbage(self) -> list[SegmentGarbage]: ...

    def forget_garbage(self, names: Sequence[str]) -> None: ...

    def knows_segment(self, name: str, shard: int) -> bool: ...


class Jobs(Protocol):
    """The pipeline's, which are under way."""

    def oldest_start_ms(self) -> int | None:
        """Segments named with this time or a later one may be about to be committed."""
        ...

    def busy_names(self) -> set[str]:
        """Segments that some job reads."""
        ...


class Item(NamedTuple):
    name: str
    size: int | None  # None: not known
    lsn: int  # nothing refers to it since this position
    reason: str


class Report(NamedTuple):
    """What may go now, and what has to wait with what it waits for."""

    ready: list[Item]
    waiting: list[tuple[Item, str]]


class Collected(NamedTuple):
    items: list[Item]  # gone
    error: Exception | None  # why there are not more


class Garbage:
    """Belongs to the event loop, but for what it lists and deletes."""

    def __init__(
        self,
        engine: Engine,
        checkpointer: Checkpointer,
        catalog: GarbageCatalog,
        objects: ObjectStore,
        uploads: CatalogUploads,
        pending: PendingObjects,
        jobs: Jobs,
        timings: Timings,
    ) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._checkpointer = checkpointer
        self._catalog = catalog
        self._objects = objects
        self._uploads = uploads
        self._pending = pending
        self._jobs = jobs
        self._timings = timings
        self._grace_seconds = timings.garbage_grace
        self._thread = Threads("garbage", 1)
        self._upkeep = Upkeep(engine.faults, "garbage", timings.garbage_retry)
        self._listing_upkeep = Upkeep(engine.faults, "garbage", timings.garbage_retry)
        self._take_blobs = self._upkeep.guarded(self.take_unused_blobs, COMPLAINT)
        self._remembered: dict[str, Item] = {}  # blobs and orphans
        self._going: set[str] = set()  # being deleted at this moment
        self._stored: deque[tuple[float, int]] = deque()  # when a checkpoint of which lsn was
        self._settled_lsn = 0  # of the newest checkpoint that is older than the grace
        self._waits_for_upload = False
        self._hurried_until = 0.0
        self._collecting = asyncio.Lock()
        self._due = Alarm()
        self._is_listing = False
        self._is_closing = False
        self.deleted = 0  # objects since the start

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Collects in its own time. Afterwards what was being deleted is gone and the catalog knows
        it; the rest is found again after the next start."""
        self._note_checkpoint(self._catalog.lsn)
        self._checkpointer.after.append(self._checkpointed)
        self._uploads.after.append(self._collect_soon)
        self._uploads.is_awaited = lambda: self._waits_for_upload
        self._engine.listeners.append(self._take_blobs)
        self._collect_soon()
        try:
            async with in_background(group, self._run()), in_background(group, self._run_listing()):
                try:
                    yield
                finally:
                    self._is_closing = True
                    async with self._collecting:  # what is being deleted comes to its end
                        pass
        finally:
            self._engine.listeners.remove(self._take_blobs)
            await self._thread.close()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            async with self._collecting:
                await self._collect()

    async def _run_listing(self) -> None:
        await asyncio.sleep(self._timings.orphan_first_look)
        await self._listing_upkeep.repeat(self._list, "the store could not be listed for orphans")

    async def _list(self) -> float:
        """Orphans are known; seconds until the next time."""
        await self.find_orphans()
        self._listing_upkeep.worked()
        return self._timings.orphan_look

    # What there is

    def take_unused_blobs(self, outbox: Outbox) -> None:
        """Called after every batch: remembers what the batch made useless."""
        for name in outbox.unused_blobs:
            self._remember(snapshot_name(name), None, SUPERSEDED)

    def _remember(self, name: str, size: int | None, reason: str) -> None:
        if len(self._remembered) < UNUSED_BLOBS_MAX:
            self._remembered.setdefault(name, Item(name, size, self._engine.applied_lsn, reason))
            self._waits_for_upload = True

    def _checkpointed(self, capture: Capture) -> None:
        self._note_checkpoint(capture.lsn)

    def _note_checkpoint(self, lsn: int) -> None:
        self._stored.append((_now(), lsn))

    def _settle(self) -> int:
        """The position whose garbage no reader can still be on its way to."""
        grown_up = _now() - self._grace_seconds
        if _now() < self._hurried_until:
            grown_up = _now() - min(self._grace_seconds, GARBAGE_GRACE_FULL_SECONDS)
        while self._stored and self._stored[0][0] <= grown_up:
            self._settled_lsn = max(self._settled_lsn, self._stored.popleft()[1])
        return self._settled_lsn

    async def look(self) -> Report:
        """What may go and what not, as of now. Raises what reading the catalog raises."""
        return self._report(await self._checkpointer.in_thread(self._catalog.garbage))

    def _report(self, segments: list[SegmentGarbage]) -> Report:
        report = Report([], [])
        settled, uploaded = self._settle(), self._uploads.oldest_lsn
        items, being_read = [Item(*each, UNREFERRED) for each in segments], self._jobs.busy_names()
        for item in (*items, *self._remembered.values()):
            if item.name in self._going:
                continue
            if item.lsn > uploaded:
                waits_for = f"both copies of the catalog to be at {item.lsn} or later"
                report.waiting.append((item, waits_for))
            elif item.lsn > settled:
                waits_for = f"{self._grace_seconds:g} seconds of grace for readers"
                report.waiting.append((item, waits_for))
            elif item.name in being_read:
                report.waiting.append((item, "the job of the pipeline that reads it"))
            else:
                report.ready.append(item)
        self._waits_for_upload = any(item.lsn > uploaded for item, _ in report.waiting)
        return report

    # Deleting it

    def _collect_soon(self) -> None:
        self._due.ring_in(self._grace_seconds)

    @property
    def waits_for_upload(self) -> bool:
        return self._waits_for_upload

    def hurry(self) -> None:
        """The disk is full: what may go goes soon."""
        self._hurried_until = _now() + HURRY_SECONDS
        self._due.ring_in(0.0)

    async def collect(self) -> Collected:
        """Deletes all that may go now; after an error it is tried again later by itself.

        Cancelled: what was being deleted is gone or not, and found again either way.
        """
        if self._collecting.locked() or self._is_closing:
            return Collected([], BlockingIOError("garbage is being collected already"))
        async with self._collecting:
            return await self._collect()

    async def _collect(self) -> Collected:
        gone: list[Item] = []
        try:
            report = await self.look()
            await self._delete(report.ready, gone)
        except Exception as error:
            self._due.ring_in(self._upkeep.failed(error, COMPLAINT))
            return Collected(gone, error)
        finally:
            if gone:
                logger.info("garbage collected", objects=len(gone))
        self._upkeep.worked()
        return Collected(gone, None)

    async def _delete(self, items: list[Item], gone: list[Item]) -> None:
        """So many at a time, until we stop; `gone` grows by those that are."""
        for start in range(0, len(items), DELETE_AT_ONCE):
            if self._is_closing:
                return
            some = self._still_garbage(items[start : start + DELETE_AT_ONCE])
            await self._delete_some(some)
            self.deleted += len(some)
            gone += some

    async def _delete_some(self, items: list[Item]) -> None:
        names = [item.name for item in items]
        listed = [item.name for item in items if item.reason == UNREFERRED]
        self._going.update(names)
        try:
            await self._thread.run(lambda: self._objects.delete(names))
            await self._checkpointer.in_thread(lambda: self._catalog.forget_garbage(listed))
        finally:
            self._going.difference_update(names)
        for name in names:
            self._remembered.pop(name, None)

    def _still_garbage(self, items: list[Item]) -> list[Item]:
        """Orphans are looked at once more: a slow upload may have been referred to by now."""
        doubtful = [item.name for item in items if item.reason == ORPHAN]
        referred = set(doubtful) - set(self._orphans(doubtful))
        for name in referred:
            del self._remembered[name]
        return [item for item in items if item.name not in referred]

    # Orphans

    async def find_orphans(self) -> None:
        """What nothing refers to is remembered, and goes soon. Raises what the store raises.

        Does nothing while the store is being listed already.
        """
        if self._is_listing:
            return
        self._is_listing = True
        try:
            objects = self._old_objects()
            while page := await self._thread.run(lambda: list(islice(objects, ORPHAN_PAGE))):
                for start in range(0, len(page), ORPHANS_PER_TURN):
                    self._check(page[start : start + ORPHANS_PER_TURN])
                    await asyncio.sleep(0)
        finally:
            self._is_listing = False
            self._collect_soon()

    def _old_objects(self) -> Iterator[ObjectInfo]:
        """In the garbage thread. Young ones may be referred to any moment."""
        for folder in FOLDERS_WITH_ORPHANS:
            for info in self._objects.list(folder):
                if self._age_seconds(info) >= self._timings.orphan_age:
                    yield info

    def _age_seconds(self, info: ObjectInfo) -> float:
        """By the store's clock and, for a segment, by the clock of the machine that named it."""
        name = parse_name(info.name)
        named_ms = name.created_ms if isinstance(name, SegmentName) else 0
        newest_ms = max(info.modified_ms, named_ms)
        return (self._engine.clock.now_ms() - newest_ms) / 1000

    def _check(self, infos: list[ObjectInfo]) -> None:
        sizes = {info.name: info.size for info in infos if info.name not in self._remembered}
        for name in self._orphans(sizes):
            self._remember(name, sizes[name], ORPHAN)

    def _orphans(self, names: Iterable[str]) -> list[str]:
        """Those that nothing refers to, or will: neither the catalog nor what it will hear of."""
        coming, oldest_job_ms = self._machine.changes.segment_names(), self._jobs.oldest_start_ms()
        return [
            name
            for name in names
            if name not in self._pending
            and name not in coming
            and not self._is_referred(name, oldest_job_ms)
        ]

    def _is_referred(self, name: str, oldest_job_ms: int | None) -> bool:
        """Or may be: objects of a job that is under way, and those that are not ours."""
        match parse_name(name):
            case SegmentName(shard, created_ms):
                is_of_job = oldest_job_ms is not None and created_ms >= oldest_job_ms
                is_ours = shard < self._machine.shards
                return is_of_job or not is_ours or self._catalog.knows_segment(name, shard)
            case SnapshotName(stream_id, blob):
                return self._machine.has_blob(StreamId(stream_id), blob)
            case _:
                return True


def _now() -> float:
    return asyncio.get_running_loop().time()
