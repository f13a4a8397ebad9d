"""Reads the log back. Damage to anything that was acknowledged is refused, a torn end is cut."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from typing import NamedTuple

from millstream.errors import DamagedData, StartupError, UnusableRecord
from millstream.formats.wal import (
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    decode_record,
    decode_segment_header,
    find_records,
)
from millstream.journal.disk import Disk
from millstream.journal.segments import SEGMENT_SUFFIX, Sealed, segment_name
from millstream.state.commands import decode_command


class Recovered(NamedTuple):
    """Where the log stands. Hand the fields to SegmentWriter to go on."""

    next_segment: int
    next_lsn: int
    sealed: list[Sealed]
    cut: str | None  # which file lost a torn end, and where; None after a clean stop


class _Found(NamedTuple):
    path: str
    number: int
    header: SegmentHeader


def recover_log(
    disk: Disk,
    folder: str,
    store_id: str,
    after_lsn: int,
    replay: Callable[[int, bytes], None],
) -> Recovered:
    """Calls `replay(lsn, payload)` for every record above `after_lsn`, then cuts the torn end.

    Raises DamagedData when acknowledged records do not check out, and UnusableRecord when `replay`
    fails on one that does; no record is changed then.
    """
    numbers = _segment_numbers(disk, folder)
    disk.sync_folder(folder)  # the names may be news to the disk as well
    segments = _load_headers(disk, folder, store_id, numbers)
    segments = _drop_covered(disk, folder, segments, after_lsn)
    sealed: list[Sealed] = []
    next_lsn = after_lsn + 1
    cut: str | None = None
    for index, segment in enumerate(segments):
        _check_follows(segment, segments[0].number + index, next_lsn, is_first=index == 0)
        data = disk.read(segment.path)
        end, next_lsn = _replay_segment(segment, data, after_lsn, replay)
        size = len(data)
        if index + 1 < len(segments):
            _refuse_if_following_counts_on_more(segment, data, end, next_lsn, segments[index + 1])
        else:
            _refuse_if_later_record_proves_more(segment, data, end, next_lsn)
            if data[end:].strip(b"\0"):
                cut = f"{segment.path} at byte {end}"
            size = _finish_file(disk, segment.path, end)
        sealed.append(Sealed(segment.number, next_lsn - 1, size))
    next_segment = segments[-1].number + 1 if segments else max(numbers, default=0) + 1
    if next_lsn <= after_lsn:  # the log lost records that the checkpoint holds: start behind them
        for dropped in sealed:
            disk.remove(os.path.join(folder, segment_name(dropped.segment)))
        disk.sync_folder(folder)
        sealed, next_lsn = [], after_lsn + 1
    return Recovered(next_segment, next_lsn, sealed, cut)


def holds_whole_log(disk: Disk, folder: str) -> bool:
    """Whether the log still begins with its very first record."""
    numbers = _segment_numbers(disk, folder)
    if not numbers:
        return False
    path = os.path.join(folder, segment_name(numbers[0]))
    header = decode_segment_header(disk.read(path, SEGMENT_HEADER_BYTES))
    return header is not None and header.first_lsn == 1


def _segment_numbers(disk: Disk, folder: str) -> list[int]:
    numbers = []
    for name in disk.list(folder):
        stem = name.removesuffix(SEGMENT_SUFFIX)
        if stem == name:
            continue
        if not (stem.isascii() and stem.isdigit() and segment_name(int(stem)) == name):
            raise DamagedData(os.path.join(folder, name), 0, "a log file's name", repr(name))
        numbers.append(int(stem))
    return numbers


def _load_headers(disk: Disk, folder: str, store_id: str, numbers: list[int]) -> list[_Found]:
    found = []
    for number in numbers:
        path = os.path.join(folder, segment_name(number))
        header = decode_segment_header(disk.read(path, SEGMENT_HEADER_BYTES))
        if header is None:
            if number == numbers[-1] and not disk.read(path)[SEGMENT_HEADER_BYTES:].strip(b"\0"):
                disk.remove(path)  # nothing was ever written behind the header
                disk.sync_folder(folder)
                break
            raise DamagedData(path, 0, "a segment header", "bytes whose checksum does not match")
        if header.store_id != store_id:
            raise DamagedData(path, 32, f"store {store_id}", f"a log of store {header.store_id}")
        if header.segment != number:
            raise DamagedData(path, 8, f"segment {number}", f"segment {header.segment}")
        found.append(_Found(path, number, header))
    return found


def _drop_covered(disk: Disk, folder: str, segments: list[_Found], after_lsn: int) -> list[_Found]:
    """Drops files the checkpoint covers; a crash came before they were retired."""
    while len(segments) > 1 and segments[1].header.first_lsn <= after_lsn + 1:
        disk.remove(segments[0].path)
        disk.sync_folder(folder)
        segments = segments[1:]
    return segments


def _check_follows(segment: _Found, number: int, next_lsn: int, *, is_first: bool) -> None:
    if segment.number != number:
        raise DamagedData(segment.path, 0, f"segment {number}", "a gap between the files")
    first = segment.header.first_lsn
    if first > next_lsn if is_first else first != next_lsn:
        raise DamagedData(
            segment.path,
            16,
            f"record {next_lsn}",
            f"record {first}: an older file or the checkpoint is missing",
        )


def _replay_segment(
    segment: _Found, data: bytes, after_lsn: int, replay: Callable[[int, bytes], None]
) -> tuple[int, int]:
    """(end of the sound records, lsn expected next)."""
    position, expected = SEGMENT_HEADER_BYTES, segment.header.first_lsn
    while True:
        record = decode_record(data, position, segment.header.salt)
        if record is None or record.lsn != expected:
            return position, expected
        if expected > after_lsn:
            try:
                replay(expected, record.payload)
            except StartupError:
                raise
            except OSError as error:
                place = f"{segment.path} at byte {position}"
                raise StartupError(f"cannot go on with the log, {place}: {error}") from error
            except Exception as error:
                raise _unusable(segment.path, record, error) from error
        position = record.end
        expected += 1


def _unusable(path: str, record: Record, error: Exception) -> UnusableRecord:
    try:
        command = type(decode_command(record.payload)).__name__
    except Exception:  # that is why
        command = "no command that this version knows"
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UnusableRecord(path, record.position, record.lsn, command, record.payload, reason)


def _refuse_if_following_counts_on_more(
    segment: _Found, data: bytes, end: int, next_lsn: int, following: _Found
) -> None:
    if following.header.first_lsn != next_lsn:
        raise DamagedData(
            segment.path,
            end,
            f"record {next_lsn}, because the next file begins with {following.header.first_lsn}",
            _describe(data, end),
        )


def _refuse_if_later_record_proves_more(
    segment: _Found, data: bytes, end: int, next_lsn: int
) -> None:
    """A batch is only written once everything before it is durable."""
    for record in find_records(data, end, segment.header.salt):
        if record.lsn - record.place > next_lsn:
            raise DamagedData(
                segment.path,
                end,
                f"record {next_lsn}, which record {record.lsn} at byte {record.position} follows",
                _describe(data, end),
            )


def _describe(data: bytes, position: int) -> str:
    found = data[position : position + 24]
    return f"bytes {found.hex()} whose checksum does not match" if found else "the end of the file"


def _finish_file(disk: Disk, path: str, end: int) -> int:
    """Nothing is written into this file again, so it ends where its records end.

    Made durable even when nothing is cut: the records may come from a process that was killed
    before its sync, and from now on they are served.
    """
    file = disk.open(path)
    try:
        file.truncate(end)
    finally:
        file.close()
    return end
