"""The write-ahead log's bytes: segment headers and records (docs/formats/wal.md draws them).

segment  magic 8 | segment u64 | first_lsn u64 | salt u64 | store_id 16 | crc u32 | zero 12 | …
record   mark u32 | length u32 | crc u32 | index u32 | lsn u64 | payload

A record's mark and the mask of its CRC come from the salt, which no client ever sees: bytes of a
message can not pass for a record, wherever recovery looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import google_crc32c

SEGMENT_MAGIC = b"MSWAL001"
SEGMENT_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 24

_SEGMENT = Struct("<8sQQQ16s")
_CRC = Struct("<I")
_RECORD_LEAD = Struct("<III")
_RECORD_PLACE = Struct("<IQ")
_RECORD = Struct("<IIIIQ")
_U32 = 0xFFFFFFFF


class SegmentHeader(NamedTuple):
    segment: int
    first_lsn: int
    salt: int
    store_id: str  # 32 hexadecimal digits


class Record(NamedTuple):
    position: int  # of the record's first byte in its file
    lsn: int
    place: int  # in its batch, from 0
    payload: bytes

    @property
    def end(self) -> int:
        return self.position + RECORD_HEADER_BYTES + len(self.payload)


def crc32c(data: bytes) -> int:
    checksum: int = google_crc32c.value(data)
    return checksum


def encode_segment_header(header: SegmentHeader) -> bytes:
    lead = _SEGMENT.pack(
        SEGMENT_MAGIC,
        header.segment,
        header.first_lsn,
        header.salt,
        bytes.fromhex(header.store_id),
    )
    return (lead + _CRC.pack(crc32c(lead))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None when these are not the bytes of a header that was written whole."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, segment, first_lsn, salt, store_id = _SEGMENT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or crc != crc32c(data[: _SEGMENT.size]):
        return None
    return SegmentHeader(segment, first_lsn, salt, store_id.hex())


def encode_batch(payloads: Sequence[bytes], first_lsn: int, salt: int) -> bytes:
    """One batch as it is written: a record per payload, numbered from `first_lsn`."""
    mark, mask = salt & _U32, salt >> 32
    parts: list[bytes] = []
    add = parts.append
    lead, place, checksum = _RECORD_LEAD.pack, _RECORD_PLACE.pack, google_crc32c.value
    for index, payload in enumerate(payloads):
        body = place(index, first_lsn + index) + payload
        add(lead(mark, len(payload), checksum(body) ^ mask))
        add(body)
    return b"".join(parts)


def encode_parts(payloads: Sequence[Sequence[bytes]], first_lsn: int, salt: int) -> Iterator[bytes]:
    """The same for payloads that come in parts, and as parts: large ones are not copied."""
    mark, mask = salt & _U32, salt >> 32
    for index, parts in enumerate(payloads):
        place = _RECORD_PLACE.pack(index, first_lsn + index)
        checksum, length = crc32c(place), 0
        for part in parts:
            checksum = google_crc32c.extend(checksum, part)
            length += len(part)
        yield _RECORD_LEAD.pack(mark, length, checksum ^ mask) + place
        yield from parts


def decode_record(data: bytes, position: int, salt: int) -> Record | None:
    """The record that begins at `position`, or None when no whole and sound one does."""
    begin = position + RECORD_HEADER_BYTES
    if begin > len(data):
        return None
    mark, length, crc, place, lsn = _RECORD.unpack_from(data, position)
    if mark != salt & _U32 or begin + length > len(data):
        return None
    body = data[position + _RECORD_LEAD.size : begin + length]
    if crc ^ salt >> 32 != crc32c(body):
        return None
    return Record(position, lsn, place, body[_RECORD_PLACE.size :])


def find_records(data: bytes, position: int, salt: int) -> Iterator[Record]:
    """Every sound record anywhere at or behind `position`, in order of place."""
    mark = _CRC.pack(salt & _U32)
    position = data.find(mark, position)
    while position >= 0:
        record = decode_record(data, position, salt)
        if record is not None:
            yield record
        position = data.find(mark, position + 1)
