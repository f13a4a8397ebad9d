"""Takes the state down now and then, so that the log stays short and a restart quick.

A checkpoint is due when the log has grown by the configured size, or when so many streams changed
that memory would fill with them. First large pieces of hot content are flushed, then the state is
captured between two batches, a few streams at a time; the file and the catalog are written off the
loop. What a failed attempt captured is tried again until it is stored: later ones build on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from millstream.engine.engine import Engine
from millstream.engine.off_loop import OffLoop
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.formats.changes import Changes
from millstream.journal.checkpoints import encode_checkpoint, store_checkpoint
from millstream.journal.disk import Disk
from millstream.limits import (
    CAPTURE_STREAMS,
    CHECKPOINT_FLUSH_BYTES,
    CHECKPOINT_SECONDS_MAX,
    MIB,
)
from millstream.state.changes import Capture
from millstream.state.records import take_records

logger = structlog.get_logger("millstream.checkpoint")

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 15.0
CLOSING_WAL_BYTES = MIB  # a stop with less to replay needs no checkpoint

Result = TypeVar("Result")


class ChangesCatalog(Protocol):
    def merge(self, changes: Changes) -> None:
        """Durable when this returns; the same changes may come again."""
        ...


class HotFlusher(Protocol):
    def flush_floor(self, floor_bytes: int, done: Callable[[], None]) -> None: ...


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
        self._written_at_last = -wal_bytes_recovered
        self._thread = OffLoop("checkpoint", 1)
        self._lsn_of_last = engine.applied_lsn
        self._upkeep = Upkeep(
            engine.faults, "checkpoint", Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        )
        self._check = self._upkeep.guarded(self.check, "cannot see whether a checkpoint is due")
        self._untold: dict[str, bytes | None] = {}  # records on their way into a capture
        self._timer: asyncio.TimerHandle | None = None
        self._retry: tuple[asyncio.TimerHandle, Callable[[], None]] | None = None
        self._is_running = False
        self.is_closing = False
        self._is_given_up = False  # what was captured is not stored; later ones would build on it
        self._ended: asyncio.Event = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []
        self.after: list[Callable[[Capture], None]] = []  # called when one is on the store
        self.count = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start(loop)
        self._engine.after_batch.append(self._check)
        self._timer = loop.call_later(CHECKPOINT_SECONDS_MAX, self._on_time)

    def _on_time(self) -> None:
        """However little changed: copies of the catalog and the garbage wait for it."""
        self._timer = self._loop.call_later(CHECKPOINT_SECONDS_MAX, self._on_time)
        changed = self._engine.applied_lsn != self._lsn_of_last
        is_possible = not self.is_closing and self._engine.failure is None
        if changed and not self._is_running and is_possible:
            self._begin()

    def _wal_grown(self) -> int:
        return self._engine.journal.stats.bytes_written - self._written_at_last

    def check(self) -> None:
        """Called after every batch; starts a checkpoint when one is due."""
        if self._is_running or self.is_closing or self._engine.failure is not None:
            return
        if self._wal_grown() >= self._wal_bytes or self._changes.dirty_count >= self._dirty_streams:
            self._begin()

    def run(self, done: Callable[[], None]) -> None:
        """A checkpoint of all that is applied by now; `done` is called once it is stored."""
        if self._engine.failure is not None:
            return  # there will be none
        if self._is_running:
            self._waiting.append(lambda: self.run(done))
        else:
            self._waiting.append(done)
            self._begin()

    def run_in_thread(
        self, work: Callable[[], Result], done: Callable[[Result | Exception], None]
    ) -> None:
        """For work on the catalog that no merge may run beside."""
        self._thread.run(work, done)

    @property
    def error(self) -> BaseException | None:
        """Why the last one failed; None when it did not."""
        return self._upkeep.error

    def hurry(self, *, is_wanted: bool) -> None:
        """Somebody needs one as soon as there is anything to tell, or something `is_wanted`."""
        self._retry_now()
        is_newer = self._engine.applied_lsn != self._lsn_of_last
        if self._is_running or self.is_closing or self._engine.failure is not None:
            return
        if self.has_news() or (is_wanted and is_newer):
            self._begin()

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

    def _begin(self) -> None:
        self._is_running = True
        self._ended.clear()
        # Not at once: this may be called in the middle of a batch.
        self._loop.call_soon(self._do, self._flush)

    # The steps. Each may be done again after an error and ends by bringing about the next one.

    def _do(self, step: Callable[[], None]) -> None:
        """Every step runs in here: whatever it raises, it is done again after the back-off."""
        try:
            step()
        except Exception as error:
            self._do_again(step, error)

    def _do_again(self, step: Callable[[], None], error: Exception) -> None:
        delay = self._upkeep.failed(error, "checkpoint failed; the log is kept")
        if self.is_closing:
            self._is_given_up = True
            self._end()
        else:
            self._retry = (self._loop.call_later(delay, self._retry_now), step)

    def _retry_now(self) -> None:
        if self._retry is not None:
            (timer, step), self._retry = self._retry, None
            timer.cancel()
            self._do(step)

    def _flush(self) -> None:
        self._written_at_last = self._engine.journal.stats.bytes_written
        self._flusher.flush_floor(CHECKPOINT_FLUSH_BYTES, self._capture_soon)

    def _capture_soon(self) -> None:
        self._loop.call_soon(self._do, self._capture)

    def _capture(self) -> None:
        """Between two batches, so that everything up to `applied_lsn` is in and nothing else."""
        if self._engine.failure is not None:
            self._give_up()
            return
        self._untold.update(take_records(self._engine.machine))
        records = list(self._untold.items())
        capture = self._changes.begin_capture(self._engine.applied_lsn, records)
        self._untold = {}
        self._do(lambda: self._take(capture))

    def _give_up(self) -> None:
        """Memory is not what the log says: nothing of it may get into the catalog."""
        self._is_given_up = True
        self._is_running = False
        self._ended.set()

    def _take(self, capture: Capture) -> None:
        if self._engine.failure is not None:
            self._give_up()
            return
        capture.take_some(CAPTURE_STREAMS)
        if capture.is_complete:
            self._do(lambda: self._store(capture))
        else:
            self._loop.call_soon(self._do, lambda: self._take(capture))

    def _store(self, capture: Capture) -> None:
        self._changes.end_capture(capture)

        def work() -> int:
            changes, hot = capture.encode()
            blocks = encode_checkpoint(self._store_id, changes, hot)
            size = store_checkpoint(self._disk, self._folder, capture.lsn, blocks)
            self._catalog.merge(changes)
            return size

        def store() -> None:
            self._thread.run(work, stored)

        def stored(result: int | Exception) -> None:
            if isinstance(result, Exception):
                self._do_again(store, result)
            else:
                self._do(lambda: self._settle(capture, result))

        self._do(store)

    def _settle(self, capture: Capture, size: int) -> None:
        self._changes.settle(capture)
        self._engine.journal.retire(capture.lsn)
        self._lsn_of_last = capture.lsn
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
        self._end()

    def _end(self) -> None:
        self._is_running = False
        self._ended.set()
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._upkeep.tell(call)
        self._check()

    async def finish(self, *, is_wanted: bool = False) -> None:
        """The last checkpoint, unless there is next to nothing to replay and nobody wants it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._check in self._engine.after_batch:
            self._engine.after_batch.remove(self._check)
        self.is_closing = True  # what fails from now on is not tried again
        self._retry_now()
        if self._is_running:
            await self._ended.wait()
        is_due = self._wal_grown() >= CLOSING_WAL_BYTES or (is_wanted and self.has_news())
        if is_due and not self._is_given_up and self._engine.failure is None:
            self._is_running = True
            self._ended.clear()
            self._do(self._capture)
            await self._ended.wait()

    async def close(self) -> None:
        if not self.is_closing:
            await self.finish()
        await self._thread.wait_idle()
        self._thread.close()
