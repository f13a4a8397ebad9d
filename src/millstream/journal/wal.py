"""The durable journal: group commit on one log.

Commands that arrive while a batch is being written form the next one. All flags belong to the
event loop's thread, and so do the commands; the writer thread gets bytes and tells when they are
durable. Batches with large content go there in parts: to copy them would hold everybody up.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple, TypeVar

import structlog

from millstream.errors import (
    AppendOutcomeUnknown,
    InvalidRequest,
    Overloaded,
    StorageFull,
    StreamError,
)
from millstream.faults import Faults
from millstream.formats.wal import encode_batch, encode_parts
from millstream.journal.contract import COMMIT_SECONDS_BUCKETS, Entry, JournalStats, Replay
from millstream.journal.disk import Disk
from millstream.journal.recovery import recover_log
from millstream.journal.reserve import NO_ROOM, Reserve
from millstream.journal.segments import SegmentWriter
from millstream.limits import COMMIT_COMMANDS_MAX, FULL_DISK_LOOK_SECONDS
from millstream.state.commands import (
    MAKES_ROOM,
    AnyCommand,
    encode_command,
    encode_in_parts,
)

logger = structlog.get_logger("millstream.journal")

Encoded = TypeVar("Encoded")
Work = tuple[bytes, int] | Sequence[Sequence[bytes]]  # a batch and its records, or its parts


class LogPlace(NamedTuple):
    """Where a log lies, and how large its files become."""

    disk: Disk
    folder: str
    store_id: str
    segment_bytes: int


class WalJournal:
    """Fails stop: `failed` is called when the disk errs and the outcome is unknown."""

    _writer: SegmentWriter  # since `replay`: only who has read the log can go on writing it

    def __init__(
        self,
        place: LogPlace,
        failed: Callable[[OSError], None],
        reserve: Reserve | None = None,
        faults: Faults | None = None,
    ) -> None:
        """`reserve` is room for commands that make room, when there is no other."""
        self._faults = faults or Faults()
        self.is_full = False
        self._reserve = reserve
        self._room_timer: asyncio.TimerHandle | None = None
        self.stats = JournalStats()
        self._place = place
        self._failed = failed
        self._pending: list[Entry] = []
        self._in_flight: list[Entry] = []
        self._scheduled = False
        self._broken: StreamError | None = None
        self._drained = asyncio.Event()
        self._has_large = False  # among the pending
        self._batches: SimpleQueue[Work | None] = SimpleQueue()
        self._chores: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._write_batches, name="wal-writer", daemon=True),
            threading.Thread(target=self._do_chores, name="wal-chores", daemon=True),
        ]

    def replay(self, after_lsn: int, apply: Replay) -> int:
        """Also cuts off what a crash left half-written behind the last acknowledged command."""
        disk, folder, store_id, segment_bytes = self._place
        recovered = recover_log(disk, folder, store_id, after_lsn, apply)
        if recovered.cut is not None:
            logger.warning("cut the torn end of the log", place=recovered.cut)
        self._writer = SegmentWriter(
            disk,
            folder,
            store_id,
            segment_bytes,
            next_segment=recovered.next_segment,
            next_lsn=recovered.next_lsn,
            sealed=recovered.sealed,
        )
        return recovered.next_lsn - 1

    def write_now(self, command: AnyCommand) -> None:
        """Durable when this returns: for a program that has no event loop, instead of `start`.

        Raises OSError or StorageFull; the journal is closed either way.
        """
        try:
            self._writer.write_batch([encode_command(command)])
        finally:
            self._writer.close()

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[list[Entry], int], None],
        refused: Callable[[list[Entry], StreamError], None],
    ) -> None:
        self._loop = loop
        self._committed = committed
        self._refused = refused
        for thread in self._threads:
            thread.start()
        self._chores.put(self._writer.prepare_spare)
        self._chores.put(self._take_reserve)

    # On the loop

    def submit(self, entry: Entry) -> None:
        self._pending.append(entry)
        if not self._scheduled:
            self._scheduled = True
            # Not now: the requests that arrived in the same round share the batch.
            self._loop.call_soon(self._start_batch)

    def submit_large(self, entry: Entry) -> None:
        self._has_large = True
        self.submit(entry)

    @property
    def depth(self) -> int:
        return len(self._pending) + len(self._in_flight)

    def under_way(self) -> Iterator[Entry]:
        return chain(self._in_flight, self._pending)

    @property
    def log_bytes(self) -> int:
        return self._writer.log_bytes

    def _start_batch(self) -> None:
        """`_scheduled` stays set until the batch is back, so that batches never overlap."""
        if self._broken is not None:
            refused, self._pending = self._pending, []
            self._scheduled = False
            self._refused(refused, self._broken)
            self._note_drained()
            return
        if self.is_full:
            self._refuse_what_takes_room()
        self._in_flight, self._pending = self._pending, []
        if len(self._in_flight) > COMMIT_COMMANDS_MAX:
            self._pending = self._in_flight[COMMIT_COMMANDS_MAX:]
            del self._in_flight[COMMIT_COMMANDS_MAX:]
        if self._has_large:
            self._has_large = bool(self._pending)
            if parts := self._encode_all(encode_in_parts):
                self._batches.put(parts)
            return
        # Encoded here, not on the writer's thread: that one holds the GIL as briefly as it can.
        payloads = self._encode_all(encode_command)
        if not payloads:
            return
        try:
            encoded = encode_batch(payloads, self._writer.next_lsn, self._writer.salt)
        except Exception as error:
            self._give_back(error)
            return
        self._batches.put((encoded, len(payloads)))

    def _encode_all(self, encode: Callable[[AnyCommand], Encoded]) -> list[Encoded]:
        """Of the batch in flight, without those that are refused; empty: none is in flight."""
        try:
            payloads = [encode(entry[0]) for entry in self._in_flight]
        except Exception:
            payloads = self._encode_one_by_one(encode)
        if not payloads:
            self._batch_back_empty()
        return payloads

    def _give_back(self, error: Exception) -> None:
        """Nothing of the batch was written; the next one must not wait for it for ever."""
        self._faults.report("journal", error)
        batch, self._in_flight = self._in_flight, []
        self._refused(batch, Overloaded("the log could not take this now; try again"))
        self._batch_back_empty()

    def _encode_one_by_one(self, encode: Callable[[AnyCommand], Encoded]) -> list[Encoded]:
        """Who cannot be written down is refused; the others must not wait for it for ever."""
        payloads: list[Encoded] = []
        kept: list[Entry] = []
        for entry in self._in_flight:
            try:
                payloads.append(encode(entry[0]))
                kept.append(entry)
            except Exception as error:
                kind = type(entry[0]).__name__
                logger.warning("a command cannot be written down", command=kind, error=str(error))
                refusal = InvalidRequest(f"a number in it is too large to be kept: {error}")
                self._refused([entry], refusal)
        self._in_flight = kept
        return payloads

    def _batch_back_empty(self) -> None:
        self._scheduled = False
        if self._pending:
            self._scheduled = True
            self._loop.call_soon(self._start_batch)
        self._note_drained()

    def _batch_back(self, error: StreamError | None) -> None:
        last_lsn = self._writer.next_lsn - 1
        batch, self._in_flight = self._in_flight, []
        if _says_full(error) and self._reserve is not None and not self.is_full:
            self.declare_full()
            self._pending[:0] = batch  # nothing was kept: what makes room is tried once more
            batch = []
        if self._pending:
            # After one more round of the loop: those answered now ask again and share the batch.
            # Twice the batch for half the syncs, at no loss of throughput (measured).
            self._loop.call_soon(self._loop.call_soon, self._start_batch)
        else:
            self._scheduled = False
        if error is not None:
            self._refused(batch, error)
        else:
            self._committed(batch, last_lsn)
        self._note_drained()

    def _note_drained(self) -> None:
        if not self.depth:
            self._drained.set()

    def _break(self, error: OSError) -> None:
        self._broken = AppendOutcomeUnknown(f"the log could not be written: {error}")
        self._batch_back(self._broken)
        self._failed(error)

    # A full disk

    def declare_full(self) -> None:
        if self._reserve is None or self.is_full:
            return
        self.is_full = self._writer.is_frugal = True
        logger.warning("the disk is full: only what makes room is taken until it has some again")
        self._reserve.release()
        self._look_for_room_soon()

    def _refuse_what_takes_room(self) -> None:
        refused = [entry for entry in self._pending if type(entry[0]) not in MAKES_ROOM]
        if refused:
            self._pending = [entry for entry in self._pending if type(entry[0]) in MAKES_ROOM]
            self._refused(refused, StorageFull("the disk is full; delete streams or make room"))

    def _look_for_room_soon(self) -> None:
        self._room_timer = self._loop.call_later(
            FULL_DISK_LOOK_SECONDS, self._chores.put, self._look_for_room
        )

    def _room_again(self) -> None:
        self.is_full = self._writer.is_frugal = False
        logger.info("the disk has room again: everything is taken")
        self._chores.put(self._writer.prepare_spare)

    def refuse(self, error: StreamError) -> None:
        self._broken = self._broken or error

    def retire(self, lsn: int) -> None:
        self._chores.put(lambda: self._writer.retire(lsn))

    async def close(self) -> None:
        while self.depth:
            self._drained.clear()
            await self._drained.wait()
        if self._room_timer is not None:
            self._room_timer.cancel()
        self._batches.put(None)
        self._chores.put(None)
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._writer.close()
        if self._reserve is not None:
            self._reserve.release()  # it is for those who run

    # On the writer's thread

    def _write_batches(self) -> None:
        while (work := self._batches.get()) is not None:
            began = perf_counter()
            try:
                size, records = self._write(work)
            except StorageFull as error:
                self._loop.call_soon_threadsafe(self._batch_back, error)
                continue
            except OSError as error:
                self._loop.call_soon_threadsafe(self._break, error)
                return
            except BaseException as error:  # as bad, and no other code would hear of it
                self._faults.report("journal", error)
                told = OSError(f"an unexpected {type(error).__name__}: {error}")
                self._loop.call_soon_threadsafe(self._break, told)
                return
            self._measure(records, size, perf_counter() - began)
            self._loop.call_soon_threadsafe(self._batch_back, None)

    def _write(self, work: Work) -> tuple[int, int]:
        """Its size, and the number of its records."""
        writer = self._writer
        segment_before = writer.segment
        if isinstance(work, tuple):
            encoded, records = work
            writer.write_encoded(encoded, records)
            size = len(encoded)
        else:
            parts, records = list(encode_parts(work, writer.next_lsn, writer.salt)), len(work)
            size = writer.write_parts(parts, records)
        if writer.segment != segment_before:
            self._chores.put(writer.prepare_spare)
        return size, records

    def _measure(self, commands: int, size: int, seconds: float) -> None:
        stats = self.stats
        stats.batches += 1
        stats.commands += commands
        stats.bytes_written += size
        stats.commit_seconds_sum += seconds
        stats.commit_seconds[bisect_left(COMMIT_SECONDS_BUCKETS, seconds)] += 1
        stats.recent_seconds.append(seconds)
        stats.commit_log2[min(int(seconds * 1e9).bit_length(), 64)] += 1

    # On the chores' thread

    def _do_chores(self) -> None:
        while (chore := self._chores.get()) is not None:
            try:
                chore()
            except OSError as error:
                logger.warning("log housekeeping failed", error=str(error))
            except Exception as error:  # the next chore is not to blame
                self._faults.report("journal", error)

    def _take_reserve(self) -> None:
        if self._reserve is None:
            return
        try:
            self._reserve.take()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._loop.call_soon_threadsafe(self.declare_full)

    def _look_for_room(self) -> None:
        """There has to be room for the reserve and for the next file of the log."""
        assert self._reserve is not None
        needed = 0 if self._writer.has_spare else self._writer.segment_bytes
        try:
            if self._reserve.free_bytes() >= self._reserve.size + needed:
                self._reserve.take()
                self._loop.call_soon_threadsafe(self._room_again)
                return
        except OSError as error:
            logger.debug("the disk is full still", error=str(error))
        self._loop.call_soon_threadsafe(self._look_for_room_soon)


def _says_full(error: StreamError | None) -> bool:
    """Of the disk: too many open files are another story."""
    cause = None if error is None else error.__cause__
    return isinstance(error, StorageFull) and isinstance(cause, OSError) and cause.errno in NO_ROOM
