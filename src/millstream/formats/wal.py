"""The write-ahead log's bytes: segment headers and records (docs/formats/wal.md draws them).

segment  magic 8 | segment u64 | first_lsn u64 | store_id 32 | crc u32 | zero u32 | records …
record   magic u32 | length u32 | crc u32 | index u32 | lsn u64 | payload
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import google_crc32c

SEGMENT_MAGIC = b"MSWAL001"
SEGMENT_HEADER_BYTES = 64
RECORD_MAGIC = 0x4D53524C
RECORD_HEADER_BYTES = 24
STORE_ID_BYTES = 32

_SEGMENT = Struct("<8sQQ32s")
_CRC = Struct("<I")
_RECORD_LEAD = Struct("<III")
_RECORD_PLACE = Struct("<IQ")
_RECORD = Struct("<IIIIQ")
_MAGIC_BYTES = _CRC.pack(RECORD_MAGIC)


class SegmentHeader(NamedTuple):
    segment: int
    first_lsn: int
    store_id: str


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
        SEGMENT_MAGIC, header.segment, header.first_lsn, header.store_id.encode("ascii")
    )
    return (lead + _CRC.pack(crc32c(lead))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None when these are not the bytes of a header that was written whole."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, segment, first_lsn, store_id = _SEGMENT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or crc != crc32c(data[: _SEGMENT.size]):
        return None
    return SegmentHeader(segment, first_lsn, store_id.decode("ascii", "replace"))


def encode_batch(payloads: Sequence[bytes], first_lsn: int) -> bytes:
    """One batch as it is written: a record per payload, numbered from `first_lsn`."""
    parts: list[bytes] = []
    add = parts.append
    lead, place, checksum = _RECORD_LEAD.pack, _RECORD_PLACE.pack, google_crc32c.value
    for index, payload in enumerate(payloads):
        body = place(index, first_lsn + index) + payload
        add(lead(RECORD_MAGIC, len(payload), checksum(body)))
        add(body)
    return b"".join(parts)


def decode_record(data: bytes, position: int) -> Record | None:
    """The record that begins at `position`, or None when no whole and sound one does."""
    begin = position + RECORD_HEADER_BYTES
    if begin > len(data):
        return None
    magic, length, crc, place, lsn = _RECORD.unpack_from(data, position)
    if magic != RECORD_MAGIC or begin + length > len(data):
        return None
    body = data[position + _RECORD_LEAD.size : begin + length]
    if crc != crc32c(body):
        return None
    return Record(position, lsn, place, body[_RECORD_PLACE.size :])


def find_records(data: bytes, position: int) -> Iterator[Record]:
    """Every sound record anywhere at or behind `position`, in order of place."""
    position = data.find(_MAGIC_BYTES, position)
    while position >= 0:
        record = decode_record(data, position)
        if record is not None:
            yield record
        position = data.find(_MAGIC_BYTES, position + 1)
