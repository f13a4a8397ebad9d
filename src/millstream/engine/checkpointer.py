"""Writes the whole state now and then, so that the log stays short and a restart quick.

A checkpoint is due when the log has grown by the configured size, and by at least the size of the
checkpoint before it: what is written twice stays in proportion to what is written once.
"""

from __future__ import annotations

import asyncio

import structlog

from millstream.engine.engine import Engine
from millstream.journal.checkpoints import store_checkpoint
from millstream.journal.disk import Disk
from millstream.state.images import Capture, capture, encode_capture

log = structlog.get_logger("millstream.checkpoint")


class Checkpointer:
    def __init__(
        self,
        engine: Engine,
        disk: Disk,
        folder: str,
        store_id: str,
        wal_bytes: int,
        *,
        wal_bytes_recovered: int,
    ) -> None:
        self._engine = engine
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self._wal_bytes = wal_bytes
        self._written_at_last = -wal_bytes_recovered
        self._size_of_last = 0
        self._running: asyncio.Future[int] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._engine.after_batch.append(self.check)

    def check(self) -> None:
        """Called after every batch; starts a checkpoint when one is due."""
        if self._running is not None:
            return
        grown = self._engine.journal.stats.bytes_written - self._written_at_last
        if grown >= max(self._wal_bytes, self._size_of_last):
            self._begin()

    def _begin(self) -> None:
        self._written_at_last = self._engine.journal.stats.bytes_written
        lsn = self._engine.applied_lsn
        captured = capture(self._engine.machine)
        self._running = self._loop.run_in_executor(None, self._store, captured, lsn)
        self._running.add_done_callback(lambda done: self._finished(done, lsn))

    def _store(self, captured: Capture, lsn: int) -> int:
        blocks = encode_capture(captured, self._store_id, lsn)
        return store_checkpoint(self._disk, self._folder, lsn, blocks)

    def _finished(self, done: asyncio.Future[int], lsn: int) -> None:
        self._running = None
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.warning("checkpoint failed; the log is kept", error=str(error))
            return
        self._size_of_last = done.result()
        self._engine.journal.retire(lsn)
        log.info("checkpoint", lsn=lsn, bytes=self._size_of_last)

    async def close(self) -> None:
        if self.check in self._engine.after_batch:
            self._engine.after_batch.remove(self.check)
        if self._running is not None:
            await asyncio.wait([self._running])
