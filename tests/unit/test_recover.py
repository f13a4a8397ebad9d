"""What a restart makes of catalog, checkpoint and log, whichever of them is behind or missing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from millstream.clock import ManualClock
from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.errors import DamagedData
from millstream.formats.changes import Changes
from millstream.journal.checkpoints import encode_checkpoint, store_checkpoint
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.recover import recover
from millstream.state.commands import Append, CreateStream
from millstream.state.records import take_records
from millstream.tier.catalog import Catalog
from tests.unit.journal.log_files import folder_journal
from tests.unit.state.content import Contents

NOW_MS = ManualClock().now_ms()
SHARDS = 3


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


class Place:
    """A data folder with a log of eight records and a checkpoint at the fifth, nowhere merged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = Config(data_dir=path, shards=SHARDS, wal_segment_bytes=65_536)
        self.changes = asyncio.run(self._fill())

    async def _fill(self) -> Changes:
        folder = DataFolder(self.path)
        journal = folder_journal(folder)
        recovered = recover(self.config, folder, journal)
        engine = Engine(recovered.machine, journal, ManualClock(), 0)
        engine.start(asyncio.get_running_loop())
        paths = [b"b/%d" % number for number in range(5)]
        for path in paths:
            engine.submit_and_forget(CreateStream(NOW_MS, path, b"text/plain", data=b"x", count=1))
        await journal_idle(engine, 5)
        machine = recovered.machine
        capture = machine.changes.begin_capture(5, take_records(machine))
        capture.take_some(10)
        machine.changes.end_capture(capture)
        changes, hot = capture.encode()
        blocks = encode_checkpoint(folder.store_id, changes, hot)
        store_checkpoint(OsDisk(), folder.checkpoints, 5, blocks)
        for path in paths[:3]:
            stream = machine.find(path)
            assert stream is not None
            engine.submit_and_forget(Append(NOW_MS, stream.stream_id, b"y", b"", 1))
        await journal_idle(engine, 8)
        await journal.close()
        recovered.catalog.close()
        folder.close()
        return changes

    def merge(self, parts: int) -> None:
        """As far as a crash let it come."""
        before = self.path.parent / "catalog-before"
        shutil.copytree(self.path / "catalog", before)
        folder = DataFolder(self.path)
        catalog = Catalog.open(folder.catalog, SHARDS, folder.store_id)
        catalog.merge(self.changes)
        catalog.close()
        folder.close()
        names = [*(f"shard-{n:04d}.sqlite" for n in range(SHARDS)), "root.sqlite"]
        for name in names[parts:]:
            shutil.copy(before / name, self.path / "catalog" / name)

    @property
    def checkpoint(self) -> Path:
        [found] = (self.path / "checkpoints").glob("*.checkpoint")
        return found

    def damage_checkpoint(self) -> None:
        data = bytearray(self.checkpoint.read_bytes())
        data[len(data) // 2] ^= 0xFF
        self.checkpoint.write_bytes(data)

    def recovered(self) -> dict[bytes, list[bytes]]:
        folder = DataFolder(self.path)
        try:
            machine, catalog, lsn = recover(self.config, folder, folder_journal(folder))
            assert lsn == 8
            keys = list(machine.names.keys_from(b""))
            streams = [machine.find(key) for key in keys]
            assert machine.names.buckets[b"b"].streams == len(keys)
            contents = Contents(machine)
            found = {s.path: contents.messages(s) for s in streams if s is not None}
            catalog.close()
            return found
        finally:
            folder.close()


async def journal_idle(engine: Engine, lsn: int) -> None:
    async with asyncio.timeout(20):
        while engine.applied_lsn < lsn:
            await asyncio.sleep(0.001)


EVERYTHING = {b"b/%d" % n: [b"x", b"y"] if n < 3 else [b"x"] for n in range(5)}
merged = pytest.mark.parametrize("parts", range(SHARDS + 2))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data")


@merged
def test_a_checkpoint_is_merged_to_the_end_wherever_the_crash_came(
    place: Place, parts: int
) -> None:
    place.merge(parts)
    assert place.recovered() == EVERYTHING
    assert place.recovered() == EVERYTHING


def test_without_a_checkpoint_and_a_catalog_the_whole_log_is_replayed(place: Place) -> None:
    place.checkpoint.unlink()
    assert place.recovered() == EVERYTHING


def test_a_damaged_checkpoint_nobody_merged_does_no_harm_while_the_log_is_whole(
    place: Place,
) -> None:
    place.damage_checkpoint()
    assert place.recovered() == EVERYTHING


@pytest.mark.parametrize("parts", range(1, SHARDS + 2))
def test_a_damaged_checkpoint_that_was_merged_in_part_is_refused(place: Place, parts: int) -> None:
    """The log is whole, but a part of the catalog is ahead of its beginning."""
    place.merge(parts)
    place.damage_checkpoint()
    with pytest.raises(DamagedData, match=r"0005\.checkpoint"):
        place.recovered()


@pytest.mark.parametrize("parts", range(1, SHARDS + 2))
def test_a_missing_checkpoint_that_the_catalog_builds_on_is_refused(
    place: Place, parts: int
) -> None:
    """The newest content of its streams was in there."""
    place.merge(parts)
    place.checkpoint.unlink()
    with pytest.raises(DamagedData, match="checkpoint"):
        place.recovered()
