from __future__ import annotations

import errno

import pytest

from millstream.errors import StorageFull
from millstream.formats.wal import SEGMENT_HEADER_BYTES, SegmentHeader, decode_segment_header
from millstream.journal.segments import SPARES_MAX
from tests.unit.journal.fake_disk import FakeDisk
from tests.unit.journal.log_files import (
    FOLDER,
    SEGMENT_BYTES,
    STORE_ID,
    contents,
    path_of,
    payload_of,
    records_in,
    recover,
    writer_on,
)

ROOM = SEGMENT_BYTES - SEGMENT_HEADER_BYTES
FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_batch_is_written_behind_the_header_of_the_first_segment() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    assert writer.write_batch([b"a", b"bb"]) == 51
    data = bytes(disk.files[path_of(1)].content)
    assert decode_segment_header(data) == SegmentHeader(1, 1, writer.salt, STORE_ID)
    assert records_in(disk, 1) == [(1, 0, b"a"), (2, 1, b"bb")]
    assert len(data) == SEGMENT_BYTES
    assert writer.next_lsn == 3


def test_batches_follow_each_other_and_count_their_places_from_zero() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([b"a", b"b"])
    writer.write_batch([b"c"])
    assert records_in(disk, 1) == [(1, 0, b"a"), (2, 1, b"b"), (3, 0, b"c")]


def test_a_batch_is_durable_when_the_call_returns() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    written: list[bytes] = []
    for number in range(12):
        batch = [b"%d:%d" % (number, place) * 5 for place in range(number % 3 + 1)]
        writer.write_batch(batch)
        written += batch
        assert list(recover(disk.crash())[1].values()) == written
    assert writer.segment > 3


def test_a_batch_that_just_fits_does_not_roll_and_the_next_does() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(ROOM - 30)])
    writer.write_batch([payload_of(30)])
    assert writer.segment == 1
    writer.write_batch([b""])
    assert writer.segment == 2
    header = decode_segment_header(bytes(disk.files[path_of(2)].content))
    assert header == SegmentHeader(2, 3, writer.salt, STORE_ID)
    assert records_in(disk, 2) == [(3, 0, b"")]


def test_a_batch_never_crosses_a_file() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(100)])
    writer.write_batch([payload_of(60), payload_of(60)])
    assert [lsn for lsn, _, _ in records_in(disk, 1)] == [1]
    assert [lsn for lsn, _, _ in records_in(disk, 2)] == [2, 3]


def test_a_batch_larger_than_a_segment_gets_a_file_as_large_as_it_needs() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    large = payload_of(10 * SEGMENT_BYTES)
    writer.write_batch([large])
    writer.write_batch([b"next"])
    assert len(disk.files[path_of(1)].content) == SEGMENT_HEADER_BYTES + 10 * SEGMENT_BYTES
    assert len(disk.files[path_of(2)].content) == SEGMENT_BYTES
    assert list(recover(disk.crash())[1].values()) == [large, b"next"]


def test_header_and_name_are_durable_before_the_first_record_is_written() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writes_seen = 0

    def look(operation: str) -> None:
        nonlocal writes_seen
        if operation == "pwrite" and path_of(writer.segment) in disk.files and writer.segment:
            writes_seen += 1
            found = disk.crash().files[path_of(writer.segment)]
            header = decode_segment_header(bytes(found.content))
            assert header is not None
            assert header.segment == writer.segment

    disk.before_step = look
    for _ in range(6):
        writer.write_batch([payload_of(100)])
    assert writer.segment == 6
    assert writes_seen >= 6


def test_the_log_goes_on_in_a_new_segment_after_a_restart() -> None:
    disk = FakeDisk()
    writer_on(disk).write_batch([b"a"])
    recovered, _ = recover(disk)
    writer = writer_on(disk, recovered)
    writer.write_batch([b"b"])
    assert (writer.segment, writer.next_lsn) == (2, 3)
    assert recover(disk.crash())[1] == {1: b"a", 2: b"b"}


def test_every_writer_draws_a_salt_of_its_own() -> None:
    assert len({writer_on(FakeDisk()).salt for _ in range(20)}) == 20


def test_log_bytes_counts_sealed_files_whole_and_the_current_as_far_as_written() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    assert writer.log_bytes == 0
    writer.write_batch([payload_of(100)])
    assert writer.log_bytes == SEGMENT_HEADER_BYTES + 100
    writer.write_batch([payload_of(150)])
    assert writer.log_bytes == SEGMENT_BYTES + SEGMENT_HEADER_BYTES + 150
    writer.retire(1)
    assert writer.log_bytes == SEGMENT_HEADER_BYTES + 150


# Spares


def spares(disk: FakeDisk) -> list[str]:
    return [name for name in disk.names(FOLDER) if name.startswith("spare-")]


def test_a_prepared_spare_becomes_the_next_segment() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.prepare_spare()
    assert len(spares(disk)) == 1
    writer.write_batch([b"a"])
    assert spares(disk) == []
    assert [operation for operation, _ in disk.steps].count("create_zeroed") == 1


def test_one_spare_is_enough() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.prepare_spare()
    writer.prepare_spare()
    assert len(spares(disk)) == 1


def test_an_oversize_batch_leaves_the_spare_for_later() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.prepare_spare()
    writer.write_batch([payload_of(1000)])
    assert len(spares(disk)) == 1


def test_spares_of_an_earlier_process_are_thrown_away() -> None:
    disk = FakeDisk()
    writer_on(disk).prepare_spare()
    writer_on(disk)
    assert spares(disk) == []


# Retiring


def filled(disk: FakeDisk, segments: int) -> list[bytes]:
    """Record n is alone in segment n."""
    return [payload_of(150, chr(ord("a") + number)) for number in range(segments)]


def test_retiring_lets_go_of_what_is_covered_and_keeps_the_rest() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    for payload in filled(disk, 5):
        writer.write_batch([payload])
    writer.retire(2)
    assert [n for n in disk.names(FOLDER) if n.endswith(".wal")] == [
        path_of(number).rpartition("/")[2] for number in (3, 4, 5)
    ]
    assert list(recover(disk.crash(), after_lsn=2)[1]) == [3, 4, 5]


def test_a_segment_with_one_record_that_is_not_covered_stays() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([b"a", b"b"])
    writer.write_batch([payload_of(150)])
    writer.retire(1)
    assert path_of(1) in disk.files
    writer.retire(2)
    assert path_of(1) not in disk.files


def test_the_segment_being_written_is_never_retired() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([b"a"])
    writer.retire(10**9)
    assert path_of(1) in disk.files
    writer.write_batch([b"b"])
    assert recover(disk.crash())[1] == {1: b"a", 2: b"b"}


def test_retired_files_are_kept_as_spares_but_not_without_limit() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    for payload in filled(disk, 6):
        writer.write_batch([payload])
    writer.retire(5)
    assert len(spares(disk)) == SPARES_MAX
    assert len(disk.files) == 1 + SPARES_MAX
    for letter in "uvw":
        writer.write_batch([payload_of(150, letter)])
    assert list(recover(disk.crash(), after_lsn=5)[1]) == [6, 7, 8, 9]


def test_a_file_of_another_size_is_not_kept_as_a_spare() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(1000)])
    writer.write_batch([b"a"])
    writer.retire(1)
    assert disk.names(FOLDER) == [path_of(2).rpartition("/")[2]]


def test_a_reused_file_reads_as_its_new_segment_only() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    for payload in filled(disk, 3):
        writer.write_batch([payload])
    writer.retire(2)
    created = [operation for operation, _ in disk.steps].count("create_zeroed")
    writer.write_batch([payload_of(120, "n")])
    assert [operation for operation, _ in disk.steps].count("create_zeroed") == created
    recovered, replayed = recover(disk.crash(), after_lsn=2)
    assert list(replayed) == [3, 4]
    assert replayed[4] == payload_of(120, "n")
    assert recovered.next_lsn == 5


# A full disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_a_roll_is_told_and_nothing_is_written(code: int) -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(150)])
    before = contents(disk)
    disk.failing["create_zeroed"] = OSError(code, "full")
    for _ in range(3):
        with pytest.raises(StorageFull):
            writer.write_batch([payload_of(100)])
    assert contents(disk) == before
    assert writer.next_lsn == 2


def test_a_full_disk_is_told_though_the_half_made_file_cannot_be_removed() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    disk.failing["create_zeroed"] = FULL
    disk.failing["remove"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageFull):
        writer.write_batch([b"a"])


def test_writing_goes_on_without_a_gap_once_there_is_room_again() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(150)])
    disk.failing["create_zeroed"] = FULL
    with pytest.raises(StorageFull):
        writer.write_batch([payload_of(100)])
    disk.failing.clear()
    writer.write_batch([payload_of(100, "y")])
    assert recover(disk.crash())[1] == {1: payload_of(150), 2: payload_of(100, "y")}


def test_a_full_disk_before_the_first_segment_is_told_too() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    disk.failing["create_zeroed"] = FULL
    with pytest.raises(StorageFull):
        writer.write_batch([b"a"])
    disk.failing.clear()
    writer.write_batch([b"a"])
    assert recover(disk.crash())[1] == {1: b"a"}


def test_on_a_full_disk_what_fits_into_the_current_file_is_still_written() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([payload_of(100)])
    disk.failing["create_zeroed"] = FULL
    with pytest.raises(StorageFull):
        writer.write_batch([payload_of(150)])
    writer.write_batch([payload_of(50)])
    assert list(recover(disk.crash())[1]) == [1, 2]


def test_on_a_full_disk_a_prepared_spare_is_still_there() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.prepare_spare()
    disk.failing["create_zeroed"] = FULL
    writer.write_batch([b"a"])
    assert recover(disk.crash())[1] == {1: b"a"}


def test_preparing_a_spare_on_a_full_disk_is_quiet_and_leaves_nothing_behind() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    disk.failing["create_zeroed"] = FULL
    writer.prepare_spare()
    assert disk.files == {}


@pytest.mark.parametrize("operation", ["create_zeroed", "pwrite", "datasync", "rename", "open"])
def test_any_other_failure_is_not_taken_for_a_full_disk(operation: str) -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    disk.failing[operation] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output error"):
        writer.write_batch([b"a"])


def test_a_batch_whose_sync_failed_does_not_count_as_written() -> None:
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([b"a"])
    disk.failing["datasync"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output error"):
        writer.write_batch([b"b"])
    assert writer.next_lsn == 2
    assert recover(disk.crash())[1] == {1: b"a"}
