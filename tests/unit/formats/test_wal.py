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
    encode_parts,
    encode_segment_header,
    find_records,
)
from tests.unit.effort import brief

STORE_ID = "0123456789abcdef0123456789abcdef"
SALT = 0x0123456789ABCDEF
MARK = 0x89ABCDEF.to_bytes(4, "little")
HEADER = SegmentHeader(7, 4711, SALT, STORE_ID)


def flips(data: bytes) -> list[tuple[int, bytes]]:
    """(position, data) with each byte changed in its lowest, its highest and all of its bits."""
    return [
        (position, data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :])
        for position in range(len(data))
        for mask in (0x01, 0x80, 0xFF)
    ]


def read_all(data: bytes) -> list[Record]:
    records, position = [], 0
    while (record := decode_record(data, position, SALT)) is not None:
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
    assert int.from_bytes(data[24:32], "little") == SALT
    assert data[32:48] == bytes.fromhex(STORE_ID)
    assert int.from_bytes(data[48:52], "little") == crc32c(data[:48])
    assert data[52:64] == bytes(12)


def test_every_changed_byte_of_a_segment_header_is_noticed() -> None:
    data = encode_segment_header(HEADER)
    for position, changed in flips(data[:52]):  # the last twelve carry nothing
        assert decode_segment_header(changed + data[52:]) is None, position


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
    records = read_all(encode_batch(payloads, first_lsn, SALT) + bytes(100))
    assert [record.payload for record in records] == payloads
    assert [record.lsn for record in records] == [first_lsn + i for i in range(len(payloads))]
    assert [record.place for record in records] == list(range(len(payloads)))


@given(st.lists(st.lists(st.binary(max_size=20), max_size=4), max_size=6), st.integers(1, 2**60))
@brief
def test_a_batch_in_parts_is_the_same_bytes(payloads: list[list[bytes]], first_lsn: int) -> None:
    whole = encode_batch([b"".join(parts) for parts in payloads], first_lsn, SALT)
    assert b"".join(encode_parts(payloads, first_lsn, SALT)) == whole


def test_a_record_is_laid_out_as_documented() -> None:
    data = encode_batch([b"first", b"payload"], 4711, SALT)[RECORD_HEADER_BYTES + 5 :]
    assert len(data) == RECORD_HEADER_BYTES + 7 == 31
    assert data[0:4] == MARK
    assert int.from_bytes(data[4:8], "little") == 7
    assert int.from_bytes(data[8:12], "little") == crc32c(data[12:]) ^ SALT >> 32
    assert int.from_bytes(data[12:16], "little") == 1
    assert int.from_bytes(data[16:24], "little") == 4712
    assert data[24:] == b"payload"


def test_every_changed_byte_of_a_batch_is_noticed_in_its_record_and_no_other() -> None:
    payloads = [b"first", b"", b"the third"]
    data = encode_batch(payloads, 9, SALT)
    begins = [record.position for record in read_all(data)]
    for position, changed in flips(data):
        hit = max(i for i, begin in enumerate(begins) if begin <= position)
        sound = [decode_record(changed, begin, SALT) is not None for begin in begins]
        assert sound == [i != hit for i in range(len(begins))], position


@pytest.mark.parametrize("cut", range(1, RECORD_HEADER_BYTES + 7))
def test_a_record_cut_short_anywhere_is_none(cut: int) -> None:
    data = encode_batch([b"payload"], 1, SALT)
    assert decode_record(data[:-cut], 0, SALT) is None
    assert decode_record(data[:-cut] + bytes(cut + 100), 0, SALT) is None


@pytest.mark.parametrize("position", [0, 1, 23, 24, 25, 1000])
def test_there_is_no_record_in_zeros_or_behind_the_end(position: int) -> None:
    assert decode_record(bytes(24), position, SALT) is None


def test_an_empty_record_at_the_very_end_of_the_data_is_read() -> None:
    assert decode_record(encode_batch([b""], 3, SALT), 0, SALT) == Record(0, 3, 0, b"")


def test_an_empty_batch_is_no_bytes() -> None:
    assert encode_batch([], 1, SALT) == b""


@pytest.mark.parametrize("other", [SALT ^ 1, SALT ^ 1 << 31, SALT ^ 1 << 32, SALT ^ 1 << 63, 0])
def test_a_record_of_another_salt_is_none(other: int) -> None:
    data = encode_batch([b"payload"], 1, SALT)
    assert decode_record(data, 0, other) is None
    assert list(find_records(data, 0, other)) == []


# Finding records behind damage


def test_records_are_found_behind_bytes_that_are_none() -> None:
    batch = encode_batch([b"a", b"bb"], 5, SALT)
    found = list(find_records(b"junk" + MARK + b"junk" + batch + MARK, 3, SALT))
    assert [(record.lsn, record.place, record.payload) for record in found] == [
        (5, 0, b"a"),
        (6, 1, b"bb"),
    ]
    assert found[0].position == 12
    assert found[1].end == 12 + len(batch)


def test_records_before_the_position_are_not_found() -> None:
    batch = encode_batch([b"a", b"bb"], 5, SALT)
    assert [record.lsn for record in find_records(batch, 1, SALT)] == [6]
    assert list(find_records(batch, len(batch), SALT)) == []


def test_a_sound_record_is_found_inside_a_damaged_one() -> None:
    inner = encode_batch([b"inner"], 8, SALT)
    outer = bytearray(encode_batch([b"x" + inner + b"y"], 5, SALT))
    outer[4] ^= 1
    assert [record.lsn for record in find_records(bytes(outer), 0, SALT)] == [8]


def test_a_record_is_found_where_its_mark_overlaps_a_false_one() -> None:
    salt = 0x01010101
    found = list(find_records(b"\x01" + encode_batch([b"a"], 5, salt), 0, salt))
    assert [record.position for record in found] == [1]


def test_a_changed_record_is_not_found() -> None:
    for _, changed in flips(encode_batch([b"a"], 5, SALT)):
        assert list(find_records(changed, 0, SALT)) == []
