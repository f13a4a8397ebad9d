"""Records that an operator decided to go on without.

The decision is written down before anything is built on it: from then on the same record is left
out at every start, with or without a flag, because what was logged behind it counts on that. One
line of JSON for each, in `skipped-records` beside the log; see docs/operations.md.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from pathlib import Path

import msgspec

from millstream.errors import StartupError, UnusableRecord
from millstream.formats.wal import crc32c
from millstream.journal.disk import Disk

SKIPPED_FILE = "skipped-records"


class SkippedRecord(msgspec.Struct, frozen=True):
    lsn: int
    crc: int  # CRC32C of the payload: another record of this number is not meant
    file: str
    position: int
    command: str
    error: str


def is_named(record: UnusableRecord, places: Iterable[tuple[str, int]]) -> bool:
    """Whether an operator means this one: by its file, with or without the folder, and place."""
    files = (record.file, os.path.basename(record.file))
    return any(file in files and position == record.position for file, position in places)


def load_skipped(path: Path) -> dict[int, SkippedRecord]:
    """By number. `path` is the data folder. Raises StartupError."""
    file = path / SKIPPED_FILE
    try:
        lines = file.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=SkippedRecord) for line in lines]
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"cannot read {file}: {error}; restore it from a backup") from error
    return {record.lsn: record for record in found}


def skip_record(disk: Disk, path: Path, record: UnusableRecord) -> None:
    """Durable when this returns."""
    known = load_skipped(path)
    known[record.lsn] = SkippedRecord(
        record.lsn,
        crc32c(record.payload),
        os.path.basename(record.file),
        record.position,
        record.command,
        record.reason,
    )
    temporary = str(path / (SKIPPED_FILE + ".new"))
    disk.create(temporary, _lines(known.values()))
    disk.rename(temporary, str(path / SKIPPED_FILE))
    disk.sync_folder(str(path))


def _lines(records: Iterable[SkippedRecord]) -> list[bytes]:
    return [msgspec.json.encode(record) + b"\n" for record in records]
