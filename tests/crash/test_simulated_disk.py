"""The log on a disk that loses power at every step: what was acknowledged is there, in order.

Checkpoints take over from the log: a file first, then the catalog, part by part. Each record of the
log is a row of the catalog here, so what a restart finds can be compared record by record.

One test id is one block of seeds; MILLSTREAM_CRASH_SEED=n runs that single seed instead.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from millstream.errors import StorageFull
from millstream.formats.changes import Changes, StreamRow
from millstream.formats.images import HotContent
from millstream.formats.layout import StreamId
from millstream.formats.wal import encode_parts
from millstream.journal.checkpoints import encode_checkpoint, load_checkpoint, store_checkpoint
from millstream.journal.recovery import Recovered, recover_log
from millstream.journal.segments import SegmentWriter
from tests.crash.simulated_disk import PowerLoss, SimulatedDisk
from tests.support.memory_store import MemoryStore

WAL, CHECKPOINTS = "/data/wal", "/data/checkpoints"
STORE = "0123456789abcdef0123456789abcdef"
GENERATIONS = 6
BOOTS_MAX = 50
SEED_BLOCKS, SEEDS_PER_BLOCK = 10, 150


def changes_of(records: Sequence[bytes], after: int, lsn: int) -> Changes:
    """What a checkpoint at `lsn` tells a catalog that has everything up to `after`."""
    rows = [
        StreamRow(StreamId(number), b"%d" % number, None, True, 0, records[number - 1])
        for number in range(after + 1, lsn + 1)
    ]
    return Changes(lsn, rows, records=[("last", b"%d" % lsn)])


def hot_of(records: Sequence[bytes], lsn: int) -> list[HotContent]:
    return [HotContent(StreamId(lsn), [(records[lsn - 1], b"", 0)])]


def checkpoint_blocks(lsn: int) -> list[bytes]:
    """For a catalog that takes no part in the test."""
    return list(encode_checkpoint(STORE, Changes(lsn), []))


class Machine:
    """One simulated computer: its disk, what it acknowledged, what it was doing when it died."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = SimulatedDisk()
        self.store = MemoryStore(self.dice.choice([1, 2, 3]))
        self.segment_bytes = self.dice.choice([256, 512, 1024, 4096])
        self.acknowledged: list[bytes] = []  # by lsn - 1
        self.in_flight: list[bytes] = []
        self.made = 0
        self.checkpoint_lsn = 0
        self.in_chore = False

    # --- one life --------------------------------------------------------------------------

    def live(self) -> None:
        writer = self.boot()
        self.disk.steps_left = self.dice.randint(0, 400)
        self.disk.between_steps = lambda: self.interrupt(writer)
        try:
            while True:
                self.act(writer)
        except PowerLoss:
            self.crash()

    def crash(self) -> None:
        self.in_chore = False
        self.disk.is_full = False
        if self.dice.random() < 0.35:
            self.disk.restart_process()
        else:
            self.disk.lose_power(self.dice)

    def act(self, writer: SegmentWriter) -> None:
        what = self.dice.random()
        if what < 0.8:
            self.write(writer)
        elif what < 0.97:
            self.do_chore(writer)
        else:
            self.disk.is_full = not self.disk.is_full

    def write(self, writer: SegmentWriter) -> None:
        batch = [self.make_payload() for _ in range(self.dice.choice([1, 1, 2, 3, 8]))]
        self.in_flight = batch
        before = writer.next_lsn
        try:
            self.write_somehow(writer, batch)
        except StorageFull:
            assert writer.next_lsn == before
            self.in_flight = []  # nothing was written: it must never turn up
            self.disk.is_full = False
            return
        self.acknowledged += batch
        self.in_flight = []
        assert writer.next_lsn == len(self.acknowledged) + 1

    def write_somehow(self, writer: SegmentWriter, batch: list[bytes]) -> None:
        """In one piece, or as batches with large content are: one part after the other."""
        if self.dice.random() < 0.6:
            writer.write_batch(batch)
            return
        payloads = [self.split(payload) for payload in batch]
        parts = list(encode_parts(payloads, writer.next_lsn, writer.salt))
        writer.write_parts(parts, len(batch))

    def split(self, payload: bytes) -> list[bytes]:
        cuts = sorted(self.dice.randint(0, len(payload)) for _ in range(self.dice.randint(0, 3)))
        return [payload[a:b] for a, b in pairwise([0, *cuts, len(payload)])]

    def make_payload(self) -> bytes:
        self.made += 1
        size = self.dice.choice([0, 1, 20, 100, 600, 600, 3000])
        return f"{self.made}|".encode() + self.dice.randbytes(self.dice.randint(0, size))

    def checkpoint(self, writer: SegmentWriter) -> None:
        lsn = self.dice.randint(self.checkpoint_lsn, len(self.acknowledged))
        if lsn == 0 or self.disk.is_full:
            return
        changes = changes_of(self.acknowledged, self.checkpoint_lsn, lsn)
        blocks = encode_checkpoint(STORE, changes, hot_of(self.acknowledged, lsn))
        store_checkpoint(self.disk, CHECKPOINTS, lsn, blocks)
        self.merge(changes)
        self.checkpoint_lsn = lsn
        writer.retire(lsn)

    def merge(self, changes: Changes) -> None:
        """Each part is durable as a whole; the power may fail between any two."""
        for parts in range(1, len(self.store.parts) + 1):
            self.disk.step()
            self.store.merge(changes, parts)
        self.disk.step()

    def interrupt(self, writer: SegmentWriter) -> None:
        """The chores run on another thread: here they come between any two steps of the writer."""
        if not self.in_chore and self.dice.random() < 0.03:
            self.do_chore(writer)

    def do_chore(self, writer: SegmentWriter) -> None:
        self.in_chore = True
        if self.dice.random() < 0.5:
            writer.prepare_spare()
        else:
            self.checkpoint(writer)
        self.in_chore = False

    # --- coming back -----------------------------------------------------------------------

    def boot(self) -> SegmentWriter:
        """Recovers, dies during recovery now and then, and must always end in the same place."""
        for _ in range(BOOTS_MAX):
            if self.dice.random() < 0.4:
                self.disk.steps_left = self.dice.randint(0, 12)
            try:
                after, replayed, recovered = self.recover()
                if self.dice.random() < 0.3:
                    assert self.recover()[:2] == (after, replayed)
                self.checkpoint_lsn = after
                writer = SegmentWriter(
                    self.disk,
                    WAL,
                    STORE,
                    self.segment_bytes,
                    next_segment=recovered.next_segment,
                    next_lsn=recovered.next_lsn,
                    sealed=recovered.sealed,
                )
            except PowerLoss:
                self.crash()
                continue
            self.disk.steps_left = None
            self.check(after, replayed, recovered)
            return writer
        raise AssertionError(f"recovery did not get through in {BOOTS_MAX} tries")

    def recover(self) -> tuple[int, list[tuple[int, bytes]], Recovered]:
        replayed: list[tuple[int, bytes]] = []
        after = self.recover_checkpoint()
        recovered = recover_log(
            self.disk, WAL, STORE, after, lambda lsn, payload: replayed.append((lsn, payload))
        )
        return after, replayed, recovered

    def recover_checkpoint(self) -> int:
        """As recover.py does it."""
        checkpoint = load_checkpoint(self.disk, CHECKPOINTS, STORE, self.store.lsn)
        if checkpoint is None:
            assert self.store.lsn == 0, "the catalog is ahead of every checkpoint"
            return 0
        assert checkpoint.lsn >= self.store.lsn
        if self.store.lsn < checkpoint.lsn:
            self.merge(checkpoint.changes)
        assert checkpoint.hot == hot_of(self.acknowledged, checkpoint.lsn)
        return checkpoint.lsn

    def check(
        self, after: int, replayed: Sequence[tuple[int, bytes]], recovered: Recovered
    ) -> None:
        known = [*self.acknowledged, *self.in_flight]
        last = after + len(replayed)
        assert after <= len(self.acknowledged), "a checkpoint of the future"
        assert [lsn for lsn, _ in replayed] == list(range(after + 1, last + 1))
        assert len(self.acknowledged) <= last, (
            f"lost {len(self.acknowledged) - last} acknowledged records from {last + 1} on"
        )
        assert [payload for _, payload in replayed] == known[after:last]
        rows = sorted(self.store.rows(), key=lambda row: row.stream_id)
        assert [row.image for row in rows] == known[:after], "the catalog is not at its checkpoint"
        assert after == 0 or dict(self.store.records()) == {"last": b"%d" % after}
        assert recovered.next_lsn == last + 1
        # From here on readers may see what was recovered, so it counts as acknowledged.
        self.acknowledged, self.in_flight = known[:last], []


def run_seed(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(GENERATIONS):
        machine.live()
    machine.boot()


def seeds_of(block: int) -> Sequence[int]:
    single = os.environ.get("MILLSTREAM_CRASH_SEED")
    if single is not None:
        return [int(single)] if block == 0 else []
    return range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK)


@pytest.mark.parametrize("block", range(SEED_BLOCKS))
def test_power_cuts_at_any_step_lose_nothing_acknowledged(block: int) -> None:
    for seed in seeds_of(block):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(
                f"seed {seed} (replay with MILLSTREAM_CRASH_SEED={seed}): {error!r}"
            ) from error


def loaded_lsn(disk: SimulatedDisk) -> int:
    checkpoint = load_checkpoint(disk, CHECKPOINTS, STORE, 0)
    return 0 if checkpoint is None else checkpoint.lsn


def open_writer(
    disk: SimulatedDisk, segment_bytes: int = 4096
) -> tuple[list[bytes], SegmentWriter]:
    """What recovery finds, and a writer that goes on behind it."""
    found = list[bytes]()
    after = loaded_lsn(disk)
    recovered = recover_log(disk, WAL, STORE, after, lambda _, payload: found.append(payload))
    writer = SegmentWriter(
        disk,
        WAL,
        STORE,
        segment_bytes,
        next_segment=recovered.next_segment,
        next_lsn=recovered.next_lsn,
        sealed=recovered.sealed,
    )
    return found, writer


@pytest.mark.parametrize("size", [100, 4096 - 64 - 24, 9000], ids=["small", "fills", "oversize"])
def test_a_batch_that_recovery_found_unsynced_survives_a_power_cut_afterwards(size: int) -> None:
    """kill -9 between write and sync: recovery serves the batch, so it has to sync it first."""
    disk = SimulatedDisk()
    _, writer = open_writer(disk)
    writer.write_batch([b"first"])
    disk.steps_left = 0
    while disk.steps_left is not None:
        try:
            steps = disk.steps_left
            open_writer(disk)[1].write_batch([b"x" * size])
        except PowerLoss:
            pass
        disk.restart_process()
        if b"x" * size in open_writer(disk)[0]:
            break
        disk.steps_left = steps + 1
    served = open_writer(disk)[0]
    assert served == [b"first", b"x" * size]
    disk.forget_unsynced()
    assert open_writer(disk)[0] == served


def test_a_checkpoint_that_recovery_found_unsynced_survives_a_power_cut_afterwards() -> None:
    """kill -9 between rename and folder sync: log files may only go once the name is durable."""
    disk = SimulatedDisk()
    _, writer = open_writer(disk, segment_bytes=256)
    for number in range(10):
        writer.write_batch([f"{number} ".encode() * 50])
    lsn = writer.next_lsn - 1
    store_checkpoint(disk, CHECKPOINTS, 1, checkpoint_blocks(1))
    new = f"{CHECKPOINTS}/{lsn:016d}.checkpoint"
    disk.create(new + ".new", checkpoint_blocks(lsn))
    disk.rename(new + ".new", new)
    disk.restart_process()
    assert open_writer(disk)[0] == []  # the checkpoint covers all
    disk.forget_unsynced()
    after = loaded_lsn(disk)
    found, _ = open_writer(disk)
    assert after + len(found) == lsn, "acknowledged records are neither here nor there"
