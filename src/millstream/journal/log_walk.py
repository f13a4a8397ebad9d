"""Walks over all log files, however damaged, and tells what is sound and what is not.

Recovery stops at the first thing that does not check out, because nothing behind it may be served.
This goes on behind it: `millstream verify` names every hole, `millstream salvage` lists what lies
behind the first one.
"""

from __future__ import annotations

import os.path
from collections.abc import Generator, Iterator
from struct import Struct
from typing import NamedTuple

from millstream.formats.wal import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    crc32c,
    decode_record,
    decode_segment_header,
    find_records,
)
from millstream.journal.disk import Disk
from millstream.journal.segments import SEGMENT_SUFFIX, segment_name

_LEAD = Struct("<III")  # mark, length, CRC of a record
_BODY_BYTES = 12  # of a record's header, which its CRC covers: place in the batch, lsn


class Hole(NamedTuple):
    """Bytes that should hold records and do not. A file that is not there is a hole as well."""

    file: str
    position: int
    end: int  # where the next sound record begins, or the file ends
    first_lsn: int | None  # of the records that are lost; None: not known
    last_lsn: int | None  # None: nothing tells how many there were
    problem: str

    @property
    def is_header(self) -> bool:
        """Only the header of a file is lost; what it said is told by the records behind it."""
        return self.first_lsn is None and self.end == SEGMENT_HEADER_BYTES

    def ends_before(self, lsn: int) -> bool:
        """Whether only records before this one are lost."""
        return self.last_lsn is not None and self.last_lsn < lsn

    def __str__(self) -> str:
        return f"{self.file} is damaged at byte {self.position}: {self.problem}"


class Found(NamedTuple):
    file: str
    record: Record


class LogFile(NamedTuple):
    path: str
    number: int
    header: SegmentHeader | None  # None: the file cannot be read at all
    problem: str | None  # what is wrong with the header; perhaps what follows it is sound


def list_log(disk: Disk, folder: str, store_id: str) -> list[LogFile]:
    """All files in order, with what their headers say or must have said."""
    stems = [name.removesuffix(SEGMENT_SUFFIX) for name in disk.list(folder)]
    numbers = [int(stem) for stem in stems if stem.isdecimal()]
    numbers = [number for number in numbers if segment_name(number) in disk.list(folder)]
    files: list[LogFile] = []
    salts: list[int] = []
    for number in numbers:
        path = os.path.join(folder, segment_name(number))
        header = decode_segment_header(disk.read(path, SEGMENT_HEADER_BYTES))
        if header is not None and (header.segment, header.store_id) == (number, store_id):
            salts.append(header.salt)
            files.append(LogFile(path, number, header, None))
        elif header is not None:
            found = f"segment {header.segment} of store {header.store_id}"
            problem = f"expected segment {number} of store {store_id}, found {found}"
            files.append(LogFile(path, number, None, problem))
        else:
            problem = "expected a segment header, found bytes whose checksum does not match"
            files.append(LogFile(path, number, None, problem))
    last = files[-1] if files else None
    if last is not None and last.header is None and _is_empty(disk, last):
        files.pop()  # nothing was ever written behind the header; a start removes it
    return [_with_header(disk, file, salts, store_id) for file in files]


def _is_empty(disk: Disk, file: LogFile) -> bool:
    return not disk.read(file.path)[SEGMENT_HEADER_BYTES:].strip(b"\0")


def _with_header(disk: Disk, file: LogFile, salts: list[int], store_id: str) -> LogFile:
    """A lost header can be told from the records: all files of one run have the same salt."""
    if file.header is not None:
        return file
    data = disk.read(file.path)
    own = _salt_of_first_record(data)
    for salt in [*dict.fromkeys(salts), own]:
        first = None if salt is None else decode_record(data, SEGMENT_HEADER_BYTES, salt)
        if first is None or salt is None:
            continue
        if salt in salts or _is_confirmed(data, first, salt):
            return file._replace(header=SegmentHeader(file.number, first.lsn, salt, store_id))
    return file


def _salt_of_first_record(data: bytes) -> int | None:
    """The salt that would make the first record sound; others have to confirm it."""
    begin = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES
    if begin > len(data):
        return None
    mark, length, crc = _LEAD.unpack_from(data, SEGMENT_HEADER_BYTES)
    body = data[begin - _BODY_BYTES : begin + length]
    if len(body) != _BODY_BYTES + length:
        return None
    return int((crc ^ crc32c(body)) << 32 | mark)


def _is_confirmed(data: bytes, first: Record, salt: int) -> bool:
    """A salt made up for one record does not fit the next: half of it masks a checksum."""
    second = decode_record(data, first.end, salt)
    return second is not None and second.lsn == first.lsn + 1


def walk_log(disk: Disk, files: list[LogFile]) -> Iterator[Found | Hole]:
    """Every sound record in order, and every hole between them."""
    expected: int | None = None
    for index, file in enumerate(files):
        if index and file.number != files[index - 1].number + 1:
            missing = os.path.join(os.path.dirname(file.path), segment_name(file.number - 1))
            last_lsn = None if file.header is None else file.header.first_lsn - 1
            yield Hole(missing, 0, 0, expected, last_lsn, "expected a log file, found none")
            expected = None
        following = files[index + 1].header if index + 1 < len(files) else None
        last_lsn = None if following is None else following.first_lsn - 1
        if file.header is None:
            size = len(disk.read(file.path))
            assert file.problem is not None
            yield Hole(file.path, 0, size, expected, last_lsn, file.problem)
            expected = None
            continue
        first_lsn = file.header.first_lsn
        if file.problem is not None:
            yield Hole(file.path, 0, SEGMENT_HEADER_BYTES, None, None, file.problem)
        if expected is not None and first_lsn > expected:
            problem = f"expected record {expected}, found record {first_lsn}"
            yield Hole(file.path, 16, SEGMENT_HEADER_BYTES, expected, first_lsn - 1, problem)
        expected = yield from _walk_file(disk.read(file.path), file.path, file.header, last_lsn)


def _walk_file(
    data: bytes, path: str, header: SegmentHeader, last_lsn: int | None
) -> Generator[Found | Hole, None, int]:
    """`last_lsn` is what the file must end with, when another one follows. The lsn behind it."""
    position, expected, salt = SEGMENT_HEADER_BYTES, header.first_lsn, header.salt
    while True:
        record = decode_record(data, position, salt)
        if record is not None and record.lsn == expected:
            yield Found(path, record)
            position, expected = record.end, expected + 1
            continue
        # Records of an earlier use of the file are sound as well; their lsns are lower.
        later = next((r for r in find_records(data, position, salt) if r.lsn > expected), None)
        if later is None:
            break
        problem = f"expected record {expected}, found {_describe(data, position)}"
        yield Hole(path, position, later.position, expected, later.lsn - 1, problem)
        position, expected = later.position, later.lsn
    if last_lsn is not None and expected <= last_lsn:
        problem = f"expected record {expected}, found {_describe(data, position)}"
        yield Hole(path, position, len(data), expected, last_lsn, problem)
        return last_lsn + 1
    if last_lsn is None and _is_begun(data, position, salt, expected):
        problem = (
            f"expected record {expected} or unused space, found {_describe(data, position)}: "
            "the end of a batch that a power cut tore, which was never acknowledged, or damage to "
            "one that was. A start cuts the log here"
        )
        yield Hole(path, position, len(data), expected, None, problem)
    return expected


def _is_begun(data: bytes, position: int, salt: int, lsn: int) -> bool:
    """Whether a record was written here that is not sound, with one byte wrong at least."""
    mark = (salt & 0xFFFFFFFF).to_bytes(4, "little")
    found = data[position : position + 4]
    if found and mark.startswith(found):
        return decode_record(data, position, salt) is None
    healed = data[:position] + mark + data[position + 4 :]
    record = decode_record(healed, position, salt)
    return record is not None and record.lsn == lsn


def _describe(data: bytes, position: int) -> str:
    found = data[position : position + RECORD_HEADER_BYTES]
    return f"bytes {found.hex()} whose checksum does not match" if found else "the end of the file"
