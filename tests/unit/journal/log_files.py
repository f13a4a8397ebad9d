"""Writing, reading back and hurting a log on a fake disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.formats.wal import RECORD_HEADER_BYTES, decode_record, decode_segment_header
from millstream.journal.disk import Disk, OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.recovery import Recovered, recover_log
from millstream.journal.reserve import Reserve
from millstream.journal.segments import SegmentWriter, segment_name
from millstream.journal.wal import LogPlace, WalJournal
from tests.unit.journal.fake_disk import FakeDisk

FOLDER = "/data/wal"
STORE_ID = "0123456789abcdef0123456789abcdef"
SEGMENT_BYTES = 256


def path_of(segment: int) -> str:
    return f"{FOLDER}/{segment_name(segment)}"


def payload_of(batch_bytes: int, letter: str = "x") -> bytes:
    """A payload whose batch of one is exactly that large."""
    return letter.encode() * (batch_bytes - RECORD_HEADER_BYTES)


def writer_on(disk: Disk, recovered: Recovered | None = None, **options: Any) -> SegmentWriter:
    going_on: dict[str, Any] = {"next_segment": 1, "next_lsn": 1}
    if recovered is not None:
        going_on = {
            "next_segment": recovered.next_segment,
            "next_lsn": recovered.next_lsn,
            "sealed": recovered.sealed,
        }
    size = options.pop("segment_bytes", SEGMENT_BYTES)
    return SegmentWriter(disk, FOLDER, STORE_ID, size, **(going_on | options))


def journal_on(
    disk: Disk,
    failed: Callable[[OSError], None],
    reserve: Reserve | None = None,
    *,
    segment_bytes: int = SEGMENT_BYTES,
) -> WalJournal:
    """Has read what the disk holds, and may be started."""
    journal = WalJournal(LogPlace(disk, FOLDER, STORE_ID, segment_bytes), failed, reserve)
    journal.replay(0, lambda lsn, payload: None)
    return journal


def folder_journal(folder: DataFolder, segment_bytes: int = 1 << 20) -> WalJournal:
    """On a real folder. It has read nothing yet."""
    place = LogPlace(OsDisk(), folder.wal, folder.store_id, segment_bytes)
    return WalJournal(place, lambda error: None)


def recover(disk: Disk, after_lsn: int = 0) -> tuple[Recovered, dict[int, bytes]]:
    """Where the log stands, and the payloads it replayed by lsn."""
    replayed: dict[int, bytes] = {}

    def replay(lsn: int, payload: bytes) -> None:
        assert lsn == max(replayed, default=after_lsn) + 1
        replayed[lsn] = payload

    return recover_log(disk, FOLDER, STORE_ID, after_lsn, replay), replayed


def records_in(disk: FakeDisk, segment: int) -> list[tuple[int, int, bytes]]:
    """(lsn, place, payload) of each record from the start of the file."""
    data, position, found = bytes(disk.files[path_of(segment)].content), 64, []
    header = decode_segment_header(data)
    assert header is not None
    while (record := decode_record(data, position, header.salt)) is not None:
        found.append((record.lsn, record.place, record.payload))
        position = record.end
    return found


def flip(disk: FakeDisk, segment: int, position: int) -> None:
    inode = disk.files[path_of(segment)]
    inode.content[position] ^= 0xFF
    inode.sync()


def cut(disk: FakeDisk, segment: int, size: int) -> None:
    inode = disk.files[path_of(segment)]
    del inode.content[size:]
    inode.sync()


def contents(disk: FakeDisk) -> dict[str, bytes]:
    return {path: bytes(inode.content) for path, inode in disk.files.items()}
