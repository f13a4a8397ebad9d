"""What the engine relies on, whichever journal it runs on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from millstream.errors import StreamError
from millstream.state.commands import AnyCommand
from millstream.state.outcomes import Outcome

# Called once, right after its command was applied or refused, with the context it came with.
Reply = Callable[[Any, Outcome], None]
Entry = tuple[AnyCommand, Reply, Any]
Replay = Callable[[int, bytes], None]  # the position of a command, and its bytes in the log


class JournalStats:
    """Plain numbers the journal keeps up and /metrics reads."""

    def __init__(self) -> None:
        self.batches = 0
        self.commands = 0
        self.bytes_written = 0
        self.commit_seconds = [0] * (len(COMMIT_SECONDS_BUCKETS) + 1)
        self.commit_seconds_sum = 0.0
        self.commit_log2 = [0] * 65  # batches by the bits of their nanoseconds
        self.recent_seconds: deque[float] = deque(maxlen=1024)  # of the newest batches


COMMIT_SECONDS_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)


class Journal(Protocol):
    """One log per process: one order of all commands, one position, whatever the shards."""

    stats: JournalStats

    def replay(self, after_lsn: int, apply: Replay) -> int:
        """Before `start`: hands over every command behind `after_lsn` that was ever acknowledged,
        once and in order. The position of the last one; the journal goes on behind it.

        Blocks. Raises StartupError when the log does not check out, UnusableRecord when `apply`
        fails on a command that does; nothing of the log is changed then, and it may be called
        again.
        """
        ...

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[list[Entry], int], None],
        refused: Callable[[list[Entry], StreamError], None],
    ) -> None:
        """`committed` gets every batch in order, once durable, with the lsn of its last entry.

        `refused` gets batches of which nothing was kept. Both run on the loop.
        """
        ...

    def submit(self, entry: Entry) -> None:
        """Takes the command; never blocks. Commands commit in the order they were submitted."""
        ...

    def submit_large(self, entry: Entry) -> None:
        """The same for a command whose content is in `pieces`; no other waits meanwhile."""
        ...

    @property
    def depth(self) -> int:
        """Entries taken and not committed yet."""
        ...

    def under_way(self) -> Iterator[Entry]:
        """Entries taken and not committed yet, in the order in which they were submitted."""
        ...

    @property
    def log_bytes(self) -> int:
        """Size of the log on disk."""
        ...

    def retire(self, lsn: int) -> None:
        """A checkpoint covers everything up to `lsn`: files that hold nothing newer may go."""
        ...

    @property
    def is_full(self) -> bool:
        """The disk is full: only commands that make room are taken until it has some again."""
        ...

    def declare_full(self) -> None:
        """Another service met the end of the disk that the log is on."""
        ...

    def refuse(self, error: StreamError) -> None:
        """From now on nothing is taken any more: whatever is not being written already is refused
        with this."""
        ...

    async def close(self) -> None:
        """Returns when everything submitted is committed and the files are let go."""
        ...
