"""The log's files as docs/formats/wal.md draws them, read by a second, independent reader.

`judge` is the specification's recovery section as a function of bytes: what must be served, or
where the damage is that must be refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

SEGMENT_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 24
Files = dict[str, bytes]  # the wal folder: name to content


@dataclass(frozen=True)
class Header:
    segment: int
    first_lsn: int
    salt: int
    store_id: str

    @property
    def mark(self) -> bytes:
        return struct.pack("<Q", self.salt)[:4]

    @property
    def mask(self) -> int:
        return self.salt >> 32


@dataclass(frozen=True)
class Record:
    position: int
    end: int
    index: int
    lsn: int
    payload: bytes


@dataclass(frozen=True)
class Served:
    """The log ends with record `last_lsn`."""

    last_lsn: int


@dataclass(frozen=True)
class Refused:
    """The server must not start, and must name one of these files."""

    names: tuple[str, ...]
    position: int | None  # None: it is about files as a whole


Verdict = Served | Refused


def load_wal(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def segment_names(files: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".wal"))


def parse_header(data: bytes) -> Header | None:
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, segment, first_lsn, salt, store_id, crc = struct.unpack_from("<8sQQQ16sI", data)
    if magic != b"MSWAL001" or crc != google_crc32c.value(data[:48]):
        return None
    return Header(segment, first_lsn, salt, store_id.hex())


def build_header(header: Header) -> bytes:
    lead = struct.pack(
        "<8sQQQ16s",
        b"MSWAL001",
        header.segment,
        header.first_lsn,
        header.salt,
        bytes.fromhex(header.store_id),
    )
    return lead + struct.pack("<I12x", google_crc32c.value(lead))


def parse_record(header: Header, data: bytes, position: int) -> Record | None:
    if position + RECORD_HEADER_BYTES > len(data) or data[position : position + 4] != header.mark:
        return None
    length, crc, index, lsn = struct.unpack_from("<IIIQ", data, position + 4)
    end = position + RECORD_HEADER_BYTES + length
    if end > len(data) or crc ^ header.mask != google_crc32c.value(data[position + 12 : end]):
        return None
    return Record(position, end, index, lsn, data[position + RECORD_HEADER_BYTES : end])


def build_record(header: Header, index: int, lsn: int, payload: bytes) -> bytes:
    body = struct.pack("<IQ", index, lsn) + payload
    crc = google_crc32c.value(body) ^ header.mask
    return header.mark + struct.pack("<II", len(payload), crc) + body


def parse_records(data: bytes) -> list[Record]:
    """The unbroken run of records from the segment's start."""
    header = parse_header(data)
    records = list[Record]()
    if header is None:
        return records
    position, expected = SEGMENT_HEADER_BYTES, header.first_lsn
    while (record := parse_record(header, data, position)) is not None and record.lsn == expected:
        records.append(record)
        position, expected = record.end, expected + 1
    return records


def scan_records(header: Header, data: bytes, position: int) -> list[Record]:
    """Every sound record at any byte from `position` on."""
    found = list[Record]()
    while (position := data.find(header.mark, position)) >= 0:
        record = parse_record(header, data, position)
        if record is not None:
            found.append(record)
        position += 1
    return found


def judge(files: Mapping[str, bytes], store_id: str, after_lsn: int = 0) -> Verdict:
    """What recovery must do with these segments when a checkpoint covers `after_lsn`."""
    names = segment_names(files)
    headers = list[Header]()
    for name in list(names):
        header = parse_header(files[name])
        if header is None:
            if name == names[-1] and not files[name][SEGMENT_HEADER_BYTES:].strip(b"\0"):
                names.remove(name)  # nothing was ever written behind the header
                continue
            return Refused((name,), 0)
        if header.store_id != store_id:
            return Refused((name,), 32)
        if f"{header.segment:016d}.wal" != name:
            return Refused((name,), 8)
        headers.append(header)
    while len(headers) > 1 and headers[1].first_lsn <= after_lsn + 1:
        names, headers = names[1:], headers[1:]
    expected = after_lsn + 1
    for number, (name, header) in enumerate(zip(names, headers, strict=True)):
        if header.first_lsn > expected if number == 0 else header.first_lsn != expected:
            return Refused((name,), None)
        records = parse_records(files[name])
        end = records[-1].end if records else SEGMENT_HEADER_BYTES
        expected = header.first_lsn + len(records)
        if number + 1 < len(names):
            if headers[number + 1].segment != header.segment + 1:
                missing = f"{header.segment + 1:016d}.wal"
                return Refused((name, missing, names[number + 1]), None)
            if headers[number + 1].first_lsn != expected:
                return Refused((name,), end)
        elif any(r.lsn - r.index > expected for r in scan_records(header, files[name], end)):
            return Refused((name,), end)
    return Served(max(expected - 1, after_lsn))
