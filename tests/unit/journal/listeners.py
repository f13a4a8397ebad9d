"""What a journal tells its engine, written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from millstream.errors import StreamError
from millstream.formats.layout import StreamId
from millstream.journal.contract import Entry, Journal
from millstream.state.commands import Append
from millstream.state.outcomes import Outcome

PATIENCE_SECONDS = 10.0  # only ever waited for when a test is about to fail


def ignore(context: object, outcome: Outcome) -> None:
    pass


def entry(number: int) -> Entry:
    """A command that is told apart by its number."""
    return Append(number, StreamId(1), b"%d" % number, b"", 1), ignore, number


class Listener:
    """Stands in for the engine."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.lsns: list[int] = []
        self.refusals: list[tuple[list[int], StreamError]] = []
        self.entries: list[Entry] = []
        self.numbers_at_close: list[int] = []
        self.threads: set[int] = set()
        self.on_committed: Callable[[list[Entry], int], None] | None = None
        self._told = asyncio.Event()

    def start(self, journal: Journal) -> None:
        journal.start(asyncio.get_running_loop(), self.committed, self.refused)

    def committed(self, batch: list[Entry], last_lsn: int) -> None:
        self.batches.append([context for _, _, context in batch])
        self.lsns.append(last_lsn)
        self.entries += batch
        self._tell()
        if self.on_committed is not None:
            self.on_committed(batch, last_lsn)

    def refused(self, batch: list[Entry], error: StreamError) -> None:
        self.refusals.append(([context for _, _, context in batch], error))
        self._tell()

    def _tell(self) -> None:
        self.threads.add(threading.get_ident())
        self._told.set()

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached():
                self._told.clear()
                await self._told.wait()

    async def wait_for(self, number: int) -> None:
        await self.wait_until(lambda: number in self.numbers)
