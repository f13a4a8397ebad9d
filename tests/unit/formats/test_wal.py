from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.wal import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    crc32c,
    decode_record,
    decode_segment_header,
    encode_batch,
    encode_segment_header,
    find_records,
)
from tests.unit.effort import brief

STORE_ID = "0123456789abcdef0123456789abcdef"
HEADER = SegmentHeader(7, 4711, STORE_ID)


def flips(data: bytes) -> list[tuple[int, bytes]]:
    """(position, data) with each byte changed in its lowest, its highest and all of its bits."""
    return [
        (position, data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :])
        for position in range(len(data))
        for mask in (0x01, 0x80, 0xFF)
    ]


def read_all(data: bytes) -> list[Record]:
    records, position = [], 0
    while (record := decode_record(data, position)) is not None:
        records.append(record)
        position = record.end
    return records


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283


# Segment headers


def test_a_segment_header_decodes_to_what_was_encoded() -> None:
    assert decode_segment_header(encode_segment_header(HEADER)) == HEADER


def test_a_segment_header_is_laid_out_as_documented() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == SEGMENT_HEADER_BYTES == 64
    assert data[0:8] == b"MSWAL001"
    assert int.from_bytes(data[8:16], "little") == 7
    assert int.from_bytes(data[16:24], "little") == 4711
    assert data[24:56] == STORE_ID.encode()
    assert int.from_bytes(data[56:60], "little") == crc32c(data[:56])
    assert data[60:64] == bytes(4)


def test_every_changed_byte_of_a_segment_header_is_noticed() -> None:
    data = encode_segment_header(HEADER)
    for position, changed in flips(data[:60]):  # the last four carry nothing
        assert decode_segment_header(changed + data[60:]) is None, position


@pytest.mark.parametrize("size", [0, 1, 59, 63])
def test_a_segment_header_cut_short_is_none(size: int) -> None:
    assert decode_segment_header(encode_segment_header(HEADER)[:size]) is None


def test_zeros_are_no_segment_header() -> None:
    assert decode_segment_header(bytes(64)) is None


def test_a_segment_header_reads_from_a_file_that_goes_on_behind_it() -> None:
    assert decode_segment_header(encode_segment_header(HEADER) + b"records") == HEADER


# Records


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 2**63))
@brief
def test_a_batch_decodes_to_its_payloads_numbered_in_order(
    payloads: list[bytes], first_lsn: int
) -> None:
    records = read_all(encode_batch(payloads, first_lsn) + bytes(100))
    assert [record.payload for record in records] == payloads
    assert [record.lsn for record in records] == [first_lsn + i for i in range(len(payloads))]
    assert [record.place for record in records] == list(range(len(payloads)))


def test_a_record_is_laid_out_as_documented() -> None:
    data = encode_batch([b"first", b"payload"], 4711)[RECORD_HEADER_BYTES + 5 :]
    assert len(data) == RECORD_HEADER_BYTES + 7 == 31
    assert data[0:4] == b"LRSM"
    assert int.from_bytes(data[4:8], "little") == 7
    assert int.from_bytes(data[8:12], "little") == crc32c(data[12:])
    assert int.from_bytes(data[12:16], "little") == 1
    assert int.from_bytes(data[16:24], "little") == 4712
    assert data[24:] == b"payload"


def test_every_changed_byte_of_a_batch_is_noticed_in_its_record_and_no_other() -> None:
    payloads = [b"first", b"", b"the third"]
    data = encode_batch(payloads, 9)
    begins = [record.position for record in read_all(data)]
    for position, changed in flips(data):
        hit = max(i for i, begin in enumerate(begins) if begin <= position)
        sound = [decode_record(changed, begin) is not None for begin in begins]
        assert sound == [i != hit for i in range(len(begins))], position


@pytest.mark.parametrize("cut", range(1, RECORD_HEADER_BYTES + 7))
def test_a_record_cut_short_anywhere_is_none(cut: int) -> None:
    data = encode_batch([b"payload"], 1)
    assert decode_record(data[:-cut], 0) is None
    assert decode_record(data[:-cut] + bytes(cut + 100), 0) is None


@pytest.mark.parametrize("position", [0, 1, 23, 24, 25, 1000])
def test_there_is_no_record_in_zeros_or_behind_the_end(position: int) -> None:
    assert decode_record(bytes(24), position) is None


def test_an_empty_batch_is_no_bytes() -> None:
    assert encode_batch([], 1) == b""


# Finding records behind damage


def test_records_are_found_behind_bytes_that_are_none() -> None:
    batch = encode_batch([b"a", b"bb"], 5)
    found = list(find_records(b"junk LRSM junk" + batch + b"LRSM", 3))
    assert [(record.lsn, record.place, record.payload) for record in found] == [
        (5, 0, b"a"),
        (6, 1, b"bb"),
    ]
    assert found[0].position == 14
    assert found[1].end == 14 + len(batch)


def test_records_before_the_position_are_not_found() -> None:
    batch = encode_batch([b"a", b"bb"], 5)
    assert [record.lsn for record in find_records(batch, 1)] == [6]
    assert list(find_records(batch, len(batch))) == []


def test_a_sound_record_is_found_inside_a_damaged_one() -> None:
    inner = encode_batch([b"inner"], 8)
    outer = bytearray(encode_batch([b"x" + inner + b"y"], 5))
    outer[4] ^= 1
    assert [record.lsn for record in find_records(bytes(outer), 0)] == [8]


def test_a_changed_record_is_not_found() -> None:
    for _, changed in flips(encode_batch([b"a"], 5)):
        assert list(find_records(changed, 0)) == []
