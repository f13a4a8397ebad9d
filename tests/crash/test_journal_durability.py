"""When the journal answers, and what has to be on the disk by then."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import time
from pathlib import Path

import pytest

from millstream.errors import AppendOutcomeUnknown, StreamError
from millstream.formats.layout import StreamId
from millstream.formats.wal import find_records
from millstream.journal.checkpoints import load_checkpoint
from millstream.journal.contract import Entry
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.recovery import recover_log
from millstream.journal.segments import SEGMENT_SUFFIX, SegmentWriter
from millstream.journal.wal import LogPlace, WalJournal
from millstream.state.commands import Append, NoOp, encode_command
from tests.crash.content import Kind
from tests.crash.simulated_disk import SimulatedDisk
from tests.crash.stories import Step, tell
from tests.crash.writers import BASE
from tests.support.server import ServerProcess, running_server

WAL = "/data/wal"
STORE = "0123456789abcdef0123456789abcdef"
CLOSE_SECONDS_MAX = 3
STOP_SECONDS_MAX = 15


class BreakingDisk(SimulatedDisk):
    """After so many steps every further one is an input/output error."""

    steps_until_broken = 10**9

    def step(self) -> None:
        self.steps_until_broken -= 1
        if self.steps_until_broken < 0:
            raise OSError(errno.EIO, "a simulated disk that broke")


class Witness:
    """Drives a journal and hears what it says, as the engine does."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.heard: list[bytes] = []
        self.refused: list[StreamError] = []
        self.failures: list[OSError] = []
        self.early: list[bytes] = []
        self.journal = WalJournal(LogPlace(disk, WAL, STORE, 2048), failed=self.failures.append)
        self.journal.replay(0, lambda lsn, payload: None)

    def hear_committed(self, entries: list[Entry], last_lsn: int) -> None:
        durable = self.durable_payloads()
        for command, _, _ in entries:
            payload = encode_command(command)
            self.heard.append(payload)
            if payload not in durable:
                self.early.append(payload)
        assert last_lsn == len(self.heard)

    def hear_refused(self, entries: list[Entry], error: StreamError) -> None:
        self.refused += [error] * len(entries)

    def durable_payloads(self) -> set[bytes]:
        """What a power cut right now would leave, at worst."""
        return {
            record.payload
            for name, inode in self.disk.folders[WAL].durable.items()
            if name.endswith(SEGMENT_SUFFIX)
            for record in find_records(inode.durable, 0, self.journal._writer.salt)
        }

    async def run(self, appends: int) -> None:
        journal = self.journal
        journal.start(asyncio.get_running_loop(), self.hear_committed, self.hear_refused)
        dice = random.Random(1)
        for number in range(appends):
            data = dice.randbytes(dice.choice([1, 50, 700, 3000]))
            journal.submit((Append(number, StreamId(1), data), lambda *_: None, None))
            if dice.random() < 0.3:
                await asyncio.sleep(0.0005)
        journal.submit((NoOp(appends), lambda *_: None, None))  # as a stop does
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await journal.close()

    def recover(self) -> list[bytes]:
        found = list[bytes]()
        recover_log(self.disk, WAL, STORE, 0, lambda _, payload: found.append(payload))
        return found


def test_the_journal_answers_nothing_before_it_is_durable() -> None:
    """Whoever hears of a batch, answered client or woken reader, hears of it from `committed`."""
    disk = SimulatedDisk()
    disk.between_steps = lambda: time.sleep(0.0005)  # so that an early answer would be seen
    witness = Witness(disk)
    asyncio.run(witness.run(300))
    assert len(witness.heard) == 301
    assert not witness.early
    assert not witness.refused
    assert witness.recover() == witness.heard


@pytest.mark.parametrize("steps", [0, 3, 8, 20, 45, 90])
def test_a_broken_disk_ends_the_journal_without_a_lie_and_without_a_hang(steps: int) -> None:
    """What was committed is kept, the rest is refused as unknown, and a stop still gets through."""
    disk = BreakingDisk()
    witness = Witness(disk)
    disk.steps_until_broken = steps
    asyncio.run(witness.run(60))
    assert not witness.early
    assert len(witness.failures) == 1
    assert len(witness.heard) + len(witness.refused) == 61
    assert all(isinstance(error, AppendOutcomeUnknown) for error in witness.refused)
    disk.steps_until_broken = 10**9
    disk.restart_process()
    assert witness.recover()[: len(witness.heard)] == witness.heard


def test_every_folder_on_the_way_to_the_log_is_durable_before_the_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's own sync does not keep the names above it: each new name needs its folder's."""
    dirty = set[str]()
    real_mkdir, real_rename, real_fsync = os.mkdir, os.rename, os.fsync

    def mkdir(path: str, mode: int = 0o777) -> None:
        real_mkdir(path, mode)
        dirty.add(os.path.dirname(os.path.abspath(path)))

    def rename(old: str, new: str) -> None:
        real_rename(old, new)
        dirty.add(os.path.dirname(os.path.abspath(new)))

    def fsync(fd: int) -> None:
        real_fsync(fd)
        dirty.discard(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "fsync", fsync)
    folder = DataFolder(tmp_path / "new" / "data")
    try:
        disk = OsDisk()
        load_checkpoint(disk, folder.checkpoints, folder.store_id, 0)
        recovered = recover_log(disk, folder.wal, folder.store_id, 0, lambda *_: None)
        writer = SegmentWriter(
            disk,
            folder.wal,
            folder.store_id,
            4096,
            next_segment=recovered.next_segment,
            next_lsn=recovered.next_lsn,
        )
        writer.write_batch([b"acknowledged"])
        writer.close()
    finally:
        folder.close()
    assert not dirty, f"names in {sorted(dirty)} may be gone after a power cut"


def test_a_server_whose_log_cannot_be_written_stops_and_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    """A limit on file sizes stands in for the broken disk: every write fails from one moment on."""
    created = Step("PUT", "log", Kind.TEXT, b"")
    kept = Step("POST", "log", Kind.TEXT, b"acknowledged;")
    server = ServerProcess(tmp_path / "data")
    try:
        tell(server, [[created], [kept]])
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, 1))
        client = server.client()
        reply = client.post(BASE + "log", b"nobody knows;", content_type="text/plain")
        client.close()
        assert reply.status >= 500, reply
        assert server.process.wait(STOP_SECONDS_MAX) == 1
    finally:
        server.kill()
    with running_server(tmp_path / "data") as again:
        client = again.client()
        body = client.get(BASE + "log?offset=-1").body
        client.close()
    assert body in (b"acknowledged;", b"acknowledged;nobody knows;")
