"""Writes the state to disk now and then, so that the log stays short and a restart quick.

A checkpoint is due when the log has grown by the configured size, or when so many streams changed
that memory would fill with them. First large pieces of hot content are flushed, then the state is
captured between two batches, a few streams at a time; the file and the catalog are written off the
loop. What a failed attempt captured is tried again until it is stored: later ones build on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

import structlog

from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep, is_set_within
from millstream.errors import ShuttingDown
from millstream.formats.changes import Changes
from millstream.journal.checkpoints import encode_checkpoint, store_checkpoint
from millstream.journal.disk import Disk
from millstream.limits import CAPTURE_STREAMS, CHECKPOINT_FLUSH_BYTES, MIB
from millstream.state.changes import Capture
from millstream.state.outbox import Outbox
from millstream.state.records import take_records

logger = structlog.get_logger("millstream.checkpoint")

CLOSING_WAL_BYTES = MIB  # a stop with less to replay and no news for the catalog needs none

Result = TypeVar("Result")


class ChangesCatalog(Protocol):
    def merge(self, changes: Changes) -> None:
        """Durable when this returns; the same changes may come again."""
        ...


class HotFlusher(Protocol):
    async def flush_floor(self, floor_bytes: int) -> None: ...


class _GivenUp(Exception):
    """There will be no checkpoint any more: the log has it all, and the next start goes on."""


class Checkpointer:
    def __init__(
        self,
        engine: Engine,
        disk: Disk,
        folder: str,
        store_id: str,
        catalog: ChangesCatalog,
        flusher: HotFlusher,
        wal_bytes: int,
        dirty_streams: int,
        timings: Timings,
        *,
        wal_bytes_recovered: int,
    ) -> None:
        self._engine = engine
        self._changes = engine.machine.changes
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self._catalog = catalog
        self._flusher = flusher
        self._wal_bytes = wal_bytes
        self._dirty_streams = dirty_streams
        self._interval_seconds = timings.checkpoint_interval
        self._written_at_last = -wal_bytes_recovered
        self._thread = Threads("checkpoint", 1)
        self._lsn_of_last = engine.applied_lsn
        self._upkeep = Upkeep(engine.faults, "checkpoint", timings.checkpoint_retry)
        self._check = self._upkeep.guarded(self.check, "cannot see whether a checkpoint is due")
        self._untold: dict[str, bytes | None] = {}  # records on their way into a capture
        self._due = asyncio.Event()
        self._try_now = asyncio.Event()  # ends a pause after a failure
        self._asked: list[asyncio.Future[None]] = []  # callers who wait for the next one
        self._is_running = False
        self._is_over = False  # there will be none any more
        self._is_interrupted = False  # by the end of another service
        self.is_closing = False
        self.after: list[Callable[[Capture], None]] = []  # called when one is on the store
        self.count = 0

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Afterwards the last one is stored, unless it failed or there was next to nothing in it.

        What fails during the stop is not tried again: the log has it. `in_thread` goes on until
        `close`.
        """
        self._engine.listeners.append(self._check)
        task = group.create_task(self._run(), name="checkpointer")
        try:
            yield
        finally:
            self._engine.listeners.remove(self._check)
            self.is_closing = True
            self._due.set()
            self._try_now.set()
            await asyncio.wait([task])

    async def close(self) -> None:
        """All that was begun in the thread has ended."""
        await self._thread.close()

    # When

    async def checkpoint(self) -> None:
        """One of all that is applied by now is stored. During a stop it may have failed: then the
        log has it all, and the next start goes on.

        Raises ShuttingDown: the server stops after an error, and there will be none. Cancelled: it
        is taken all the same.
        """
        if self._engine.failure is None and not self._is_over:
            asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._asked.append(asked)
            self._due.set()
            await asked
        if self._engine.failure is not None or self._is_interrupted:
            raise ShuttingDown("the server stops after an error; try again later")

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """For work on the catalog that no merge may run beside. What it raises is raised here."""
        return await self._thread.run(work)

    @property
    def error(self) -> BaseException | None:
        """Why the last one failed; None when it did not."""
        return self._upkeep.error

    def check(self, _: Outbox | None = None) -> None:
        """Called after every batch: cheap."""
        if self._is_running:
            return
        if self._wal_grown() >= self._wal_bytes or self._changes.dirty_count >= self._dirty_streams:
            self._due.set()

    def _wal_grown(self) -> int:
        return self._engine.journal.stats.bytes_written - self._written_at_last

    def hurry(self, *, is_wanted: bool) -> None:
        """Takes one as soon as there is anything to tell, or anything at all when one `is_wanted`;
        what has failed is tried again now."""
        self._try_now.set()
        is_newer = self._engine.applied_lsn != self._lsn_of_last
        if not self._is_running and (self.has_news() or (is_wanted and is_newer)):
            self._due.set()

    def has_news(self) -> bool:
        """Whether a checkpoint now would tell the catalog anything."""
        machine, changes = self._engine.machine, self._changes
        return bool(
            changes.dirty_count
            or changes.segments
            or changes.replacements
            or changes.blobs
            or machine.names.changed_buckets
            or machine.subscriptions.changed
            or machine.access.changed
        )

    async def _run(self) -> None:
        """Ends with the last checkpoint of a stop, or as soon as there can be none any more.

        Cancelled, what it had captured is not stored: nothing may be captured after it.
        """
        try:
            while await self._wait_until_due():
                await self._serve_asked()
            if self._is_last_due():
                await self._serve_asked()
        except _GivenUp:
            pass
        except BaseException:
            self._is_interrupted = True
            raise
        finally:
            self._is_over = True
            _tell(self._asked)

    async def _wait_until_due(self) -> bool:
        """False: the server stops."""
        while not self.is_closing:
            is_due = await is_set_within(self._due, self._interval_seconds)
            # However little changed: copies of the catalog and the garbage wait for it.
            if is_due or self._engine.applied_lsn != self._lsn_of_last:
                break
        return not self.is_closing

    def _is_last_due(self) -> bool:
        return bool(self._asked) or self._wal_grown() >= CLOSING_WAL_BYTES or self.has_news()

    async def _serve_asked(self) -> None:
        """A checkpoint for all who asked before it began; who asks later wants another."""
        asked, self._asked = self._asked, []
        self._due.clear()
        self._is_running = True
        try:
            await self._checkpoint()
        finally:
            self._is_running = False
            _tell(asked)
        self._check()

    # How

    async def _checkpoint(self) -> None:
        """One, from the beginning to the end. Raises _GivenUp."""
        capture = await self._insist(self._begin)
        await self._insist(lambda: self._take(capture))
        size = await self._insist(lambda: self._store(capture))
        await self._insist(lambda: self._settle(capture))
        self.count += 1
        self._upkeep.worked()
        logger.info(
            "checkpoint",
            lsn=capture.lsn,
            bytes=size,
            streams=len(capture.streams),
            hot_streams=len(capture.hot),
        )
        for call in self.after:
            self._upkeep.tell(call, capture)

    async def _insist(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """What the step brings about: after an error it is done again. Raises _GivenUp: it failed
        while the server stops."""
        while True:
            try:
                return await step()
            except _GivenUp:
                raise
            except Exception as error:
                delay = self._upkeep.failed(error, "checkpoint failed; the log is kept")
                if self.is_closing:
                    raise _GivenUp from error
                self._try_now.clear()
                await is_set_within(self._try_now, delay)

    async def _begin(self) -> Capture:
        """Between two batches, so that everything up to `applied_lsn` is in and nothing else."""
        self._written_at_last = self._engine.journal.stats.bytes_written
        self._require_sound_state()
        await self._flusher.flush_floor(CHECKPOINT_FLUSH_BYTES)
        self._require_sound_state()
        self._untold.update(take_records(self._engine.machine))
        records = list(self._untold.items())
        capture = self._changes.begin_capture(self._engine.applied_lsn, records)
        self._untold = {}
        return capture

    async def _take(self, capture: Capture) -> None:
        """A few streams at a time, so that no request waits for it."""
        while not capture.is_complete:
            self._require_sound_state()
            capture.take_some(CAPTURE_STREAMS)
            await asyncio.sleep(0)
        self._changes.end_capture(capture)

    def _require_sound_state(self) -> None:
        """Else memory is not what the log says: nothing of it may get into the catalog."""
        if self._engine.failure is not None:
            raise _GivenUp from self._engine.failure

    async def _store(self, capture: Capture) -> int:
        """Both have it; the size of the file."""

        def work() -> int:
            changes, hot = capture.encode()
            blocks = encode_checkpoint(self._store_id, changes, hot)
            size = store_checkpoint(self._disk, self._folder, capture.lsn, blocks)
            self._catalog.merge(changes)
            return size

        return await self._thread.run(work)

    async def _settle(self, capture: Capture) -> None:
        self._changes.settle(capture)
        self._engine.journal.retire(capture.lsn)
        self._lsn_of_last = capture.lsn


def _tell(asked: list[asyncio.Future[None]]) -> None:
    for future in asked:
        if not future.done():
            future.set_result(None)
