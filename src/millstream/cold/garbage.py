"""Objects that nobody needs any more: which they are, when they may go, and deleting them.

There are three kinds. Segments without live runs are listed by the catalog. Blobs of snapshots
that were superseded or deleted are told by the state machine and remembered here. Orphans, left by
a crash between upload and reference, are found by listing the store now and then.

An object may go once the oldest manifest that is kept is at or beyond the position at which it
became garbage, so that a restore never misses an object, and a grace has passed since then, so
that readers are done. A reader that is slower finds it missing and plans again.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import structlog

from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.pending_objects import PendingObjects
from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.formats.layout import StreamId
from millstream.limits import (
    GARBAGE_GRACE_FULL_SECONDS,
    GARBAGE_GRACE_SECONDS,
    GARBAGE_RETRY_SECONDS,
    ORPHAN_AGE_SECONDS,
    ORPHAN_PAGE,
    ORPHANS_PER_TURN,
    UNUSED_BLOBS_MAX,
)
from millstream.state.changes import Capture
from millstream.tier.blobs import SNAPSHOTS
from millstream.tier.catalog import Garbage as SegmentGarbage
from millstream.tier.objects import ObjectInfo, ObjectStore

logger = structlog.get_logger("millstream.garbage")

SEGMENTS = "segments/"
FIRST_LOOK_SECONDS = 300.0  # after the start: by then what recovery left to do is done
LOOK_SECONDS = 3600.0  # between two listings of the whole store
DELETE_AT_ONCE = 100  # objects in one go: orphans are looked up once more, on the loop

RETRY_SECONDS_MIN = 5.0
HURRY_SECONDS = 5.0  # after the last call for it
COMPLAINT = "garbage stays for now"

UNREFERRED = "no live run left"
SUPERSEDED = "snapshot superseded or deleted"
ORPHAN = "nothing ever referred to it"

_SEGMENT = re.compile(r"segments/(\d{4})/(\d{13})-[0-9a-f]+\.parquet")
_SNAPSHOT = re.compile(r"snapshots/((\d+)-\d+-[0-9a-f]+)")


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
    size: int | None  # None: nobody has counted
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
        *,
        grace_seconds: float = GARBAGE_GRACE_SECONDS,
        orphan_age_seconds: float = ORPHAN_AGE_SECONDS,
        first_look_seconds: float = FIRST_LOOK_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._checkpointer = checkpointer
        self._catalog = catalog
        self._objects = objects
        self._uploads = uploads
        self._pending = pending
        self._jobs = jobs
        self._going: set[str] = set()  # being deleted at this moment
        self._grace_seconds = grace_seconds
        self._orphan_age_seconds = orphan_age_seconds
        self._first_look_seconds = first_look_seconds
        self._look_seconds = look_seconds
        self._thread = OffLoop("garbage", 1)
        self._upkeep = Upkeep(
            engine.faults,
            "garbage",
            Backoff(min(RETRY_SECONDS_MIN, GARBAGE_RETRY_SECONDS), GARBAGE_RETRY_SECONDS),
        )
        self._take_blobs = self._upkeep.guarded(self.take_unused_blobs, COMPLAINT)
        self._remembered: dict[str, Item] = {}  # blobs and orphans
        self._stored: deque[tuple[float, int]] = deque()  # when a checkpoint of which lsn was
        self._settled_lsn = 0  # of the newest checkpoint that is older than the grace
        self._waits_for_upload = False
        self._timer: asyncio.TimerHandle | None = None
        self._listing_timer: asyncio.TimerHandle | None = None
        self._hurried_until = 0.0
        self._is_collecting = False
        self._is_listing = False
        self._is_closing = False
        self.deleted = 0  # objects since the start

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._note_checkpoint(self._catalog.lsn)
        self._checkpointer.after.append(self._checkpointed)
        self._uploads.after.append(self._collect_soon)
        self._uploads.is_awaited = lambda: self._waits_for_upload
        self._engine.after_batch.append(self._take_blobs)
        self._listing_timer = loop.call_later(self._first_look_seconds, self._list_now)
        self._collect_soon()

    # What there is

    def take_unused_blobs(self) -> None:
        """Called after every batch: remembers what the batch made useless."""
        if self._machine.unused_blobs:
            names, self._machine.unused_blobs = self._machine.unused_blobs, []
            for name in names:
                self._remember(SNAPSHOTS + name, None, SUPERSEDED)

    def _remember(self, name: str, size: int | None, reason: str) -> None:
        if len(self._remembered) < UNUSED_BLOBS_MAX:
            self._remembered.setdefault(name, Item(name, size, self._engine.applied_lsn, reason))
            self._waits_for_upload = True

    def _checkpointed(self, capture: Capture) -> None:
        self._note_checkpoint(capture.lsn)

    def _note_checkpoint(self, lsn: int) -> None:
        self._stored.append((self._loop.time(), lsn))

    def _settle(self) -> int:
        """The position whose garbage no reader can still be on its way to."""
        grown_up = self._loop.time() - self._grace_seconds
        if self._loop.time() < self._hurried_until:
            grown_up = self._loop.time() - min(self._grace_seconds, GARBAGE_GRACE_FULL_SECONDS)
        while self._stored and self._stored[0][0] <= grown_up:
            self._settled_lsn = max(self._settled_lsn, self._stored.popleft()[1])
        return self._settled_lsn

    def look(self, done: Callable[[Report | Exception], None]) -> None:
        """What may go and what not, as of now."""

        def read(found: list[SegmentGarbage] | Exception) -> None:
            try:
                result = found if isinstance(found, Exception) else self._report(found)
            except Exception as error:
                result = error
            self._upkeep.tell(done, result)

        self._checkpointer.run_in_thread(self._catalog.garbage, read)

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
        self._collect_in(self._grace_seconds)

    def _collect_in(self, seconds: float) -> None:
        """Or sooner, if somebody has asked for that."""
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + seconds:
                return
            self._timer.cancel()
        if not self._is_closing:
            self._timer = self._loop.call_later(seconds, self._timer_rang)

    @property
    def waits_for_upload(self) -> bool:
        return self._waits_for_upload

    def hurry(self) -> None:
        """The disk is full: what may go goes soon."""
        self._hurried_until = self._loop.time() + HURRY_SECONDS
        self._collect_in(0.0)

    def _timer_rang(self) -> None:
        self._timer = None
        if self._is_collecting:
            self._collect_soon()
        else:
            self.collect(lambda result: None)

    def collect(self, done: Callable[[Collected], None]) -> None:
        """Deletes all that may go now; `done` hears what is gone."""
        if self._is_collecting or self._is_closing:
            done(Collected([], BlockingIOError("garbage is being collected already")))
            return
        self._is_collecting = True
        collected = Collected([], None)

        def looked(report: Report | Exception) -> None:
            if isinstance(report, Exception):
                raise report
            self._delete_next(report.ready, collected, done)

        self._guard(
            lambda: self.look(
                lambda report: self._guard(lambda: looked(report), [], collected, done)
            ),
            *([], collected, done),
        )

    def _guard(
        self,
        step: Callable[[], None],
        names: list[str],
        collected: Collected,
        done: Callable[[Collected], None],
    ) -> None:
        """Every step runs in here: whatever it raises, the collection ends, and `done` hears it.

        `names` are those that are being deleted.
        """
        try:
            step()
        except Exception as error:
            self._going.difference_update(names)
            self._end(collected._replace(error=error), done)

    def _delete_next(
        self, items: list[Item], collected: Collected, done: Callable[[Collected], None]
    ) -> None:
        """The first so many, then what is left."""
        if not items or self._is_closing:
            self._end(collected, done)
            return
        some, rest = items[:DELETE_AT_ONCE], items[DELETE_AT_ONCE:]
        some = self._still_garbage(some)
        names = [item.name for item in some]
        self._going.update(names)

        def guard(step: Callable[[], None]) -> None:
            self._guard(step, names, collected, done)

        def forgotten(result: Exception | None) -> None:
            if result is not None:
                raise result
            self._going.difference_update(names)
            for name in names:
                self._remembered.pop(name, None)
            self.deleted += len(names)
            collected.items.extend(some)
            self._delete_next(rest, collected, done)

        def deleted(result: Exception | None) -> None:
            if result is not None:
                raise result
            listed = [item.name for item in some if item.reason == UNREFERRED]
            self._checkpointer.run_in_thread(
                lambda: self._catalog.forget_garbage(listed),
                lambda result: guard(lambda: forgotten(result)),
            )

        guard(
            lambda: self._thread.run(
                lambda: self._objects.delete(names), lambda result: guard(lambda: deleted(result))
            )
        )

    def _still_garbage(self, items: list[Item]) -> list[Item]:
        """Orphans are looked at once more: somebody slow may have referred to one by now."""
        doubtful = [item.name for item in items if item.reason == ORPHAN]
        referred = set(doubtful) - set(self._orphans(doubtful))
        for name in referred:
            del self._remembered[name]
        return [item for item in items if item.name not in referred]

    def _end(self, collected: Collected, done: Callable[[Collected], None]) -> None:
        self._is_collecting = False
        if collected.error is None:
            self._upkeep.worked()
        else:
            self._collect_in(self._upkeep.failed(collected.error, COMPLAINT))
        if collected.items:
            logger.info("garbage collected", objects=len(collected.items))
        self._upkeep.tell(done, collected)

    # Orphans

    def _list_now(self) -> None:
        self._listing_timer = self._loop.call_later(self._look_seconds, self._list_now)
        self.find_orphans(lambda error: None)

    def find_orphans(self, done: Callable[[Exception | None], None]) -> None:
        """Lists the store and remembers what nothing refers to."""
        if self._is_listing or self._is_closing:
            done(None)
            return
        self._is_listing = True
        self._guard_listing(lambda: self._list_page(self._old_objects(), done), done)

    def _guard_listing(
        self, step: Callable[[], None], done: Callable[[Exception | None], None]
    ) -> None:
        """Every step of a listing runs in here: whatever it raises, the listing ends."""
        try:
            step()
        except Exception as error:
            self._end_listing(error, done)

    def _old_objects(self) -> Iterator[ObjectInfo]:
        """In the garbage thread. Young ones may be referred to any moment."""
        for prefix in (SEGMENTS, SNAPSHOTS):
            for info in self._objects.list(prefix):
                if self._age_seconds(info) >= self._orphan_age_seconds:
                    yield info

    def _age_seconds(self, info: ObjectInfo) -> float:
        """By the store's clock and, for a segment, also by the clock of whoever named it."""
        match = _SEGMENT.fullmatch(info.name)
        newest_ms = max(info.modified_ms, int(match[2]) if match else 0)
        return (self._engine.clock.now_ms() - newest_ms) / 1000

    def _list_page(
        self, objects: Iterator[ObjectInfo], done: Callable[[Exception | None], None]
    ) -> None:
        def listed(page: list[ObjectInfo] | Exception) -> None:
            if isinstance(page, Exception):
                raise page
            if not page or self._is_closing:
                self._end_listing(None, done)
            else:
                check_some(iter(page))

        def check_some(page: Iterator[ObjectInfo]) -> None:
            some = list(islice(page, ORPHANS_PER_TURN))
            if some:
                self._check(some)
                self._loop.call_soon(self._guard_listing, lambda: check_some(page), done)
            else:
                self._list_page(objects, done)

        self._thread.run(
            lambda: list(islice(objects, ORPHAN_PAGE)),
            lambda page: self._guard_listing(lambda: listed(page), done),
        )

    def _check(self, infos: list[ObjectInfo]) -> None:
        sizes = {info.name: info.size for info in infos if info.name not in self._remembered}
        for name in self._orphans(sizes):
            self._remember(name, sizes[name], ORPHAN)

    def _orphans(self, names: Iterable[str]) -> list[str]:
        """Those that nothing refers to, or will: neither the catalog nor what it will hear of."""
        coming, oldest_job_ms = self._machine.changes.segment_names(), self._jobs.oldest_start_ms()
        found = []
        for name in names:
            segment, snapshot = _SEGMENT.fullmatch(name), _SNAPSHOT.fullmatch(name)
            if name in self._pending or name in coming:
                continue
            if segment is not None:
                shard, created_ms = int(segment[1]), int(segment[2])
                is_of_job = oldest_job_ms is not None and created_ms >= oldest_job_ms
                is_ours = shard < self._machine.shards
                if is_ours and not is_of_job and not self._catalog.knows_segment(name, shard):
                    found.append(name)
            elif snapshot is not None and not self._machine.has_blob(
                StreamId(int(snapshot[2])), snapshot[1]
            ):
                found.append(name)
        return found

    def _end_listing(
        self, error: Exception | None, done: Callable[[Exception | None], None]
    ) -> None:
        self._is_listing = False
        if error is not None:
            self._upkeep.failed(error, "the store could not be listed for orphans")
        self._collect_soon()
        self._upkeep.tell(done, error)

    # The end

    async def close(self) -> None:
        """What is under way is finished; the rest is found again after the next start."""
        self._is_closing = True
        for timer in (self._timer, self._listing_timer):
            if timer is not None:
                timer.cancel()
        if self._take_blobs in self._engine.after_batch:
            self._engine.after_batch.remove(self._take_blobs)
        await self._thread.wait_idle()
        self._thread.close()
