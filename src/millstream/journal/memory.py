"""A journal that only orders. For tests, caches and throw-away servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from millstream.errors import StreamError
from millstream.journal.contract import Entry, JournalStats, Replay
from millstream.limits import COMMIT_COMMANDS_MAX


class MemoryJournal:
    def __init__(self) -> None:
        self.stats = JournalStats()
        self._pending: list[Entry] = []
        self._refusal: StreamError | None = None
        self._lsn = 0
        self.log_bytes = 0
        self.is_full = False

    def replay(self, after_lsn: int, apply: Replay) -> int:
        self._lsn = after_lsn
        return after_lsn

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[list[Entry], int], None],
        refused: Callable[[list[Entry], StreamError], None],
    ) -> None:
        self._loop = loop
        self._committed = committed
        self._refused = refused

    def submit(self, entry: Entry) -> None:
        self._pending.append(entry)
        if len(self._pending) == 1:
            self._loop.call_soon(self._commit)

    def submit_large(self, entry: Entry) -> None:
        self.submit(entry)

    @property
    def depth(self) -> int:
        return len(self._pending)

    def under_way(self) -> Iterator[Entry]:
        return iter(self._pending)

    def _commit(self) -> None:
        batch, self._pending = self._pending, []
        if len(batch) > COMMIT_COMMANDS_MAX:
            self._pending = batch[COMMIT_COMMANDS_MAX:]
            del batch[COMMIT_COMMANDS_MAX:]
            self._loop.call_soon(self._commit)
        if batch and self._refusal is not None:
            self._refused(batch, self._refusal)
        elif batch:
            self._lsn += len(batch)
            self.stats.batches += 1
            self.stats.commands += len(batch)
            self._committed(batch, self._lsn)

    def declare_full(self) -> None:
        pass

    def refuse(self, error: StreamError) -> None:
        self._refusal = error

    def retire(self, lsn: int) -> None:
        pass

    async def close(self) -> None:
        while self._pending:
            self._commit()
