from __future__ import annotations

import pytest

from millstream.errors import DamagedData
from millstream.formats.wal import SegmentHeader, encode_batch, encode_segment_header
from millstream.journal.recovery import Recovered, holds_whole_log, recover_log
from millstream.journal.segments import Sealed
from tests.unit.journal.fake_disk import FakeDisk
from tests.unit.journal.log_files import (
    FOLDER,
    SEGMENT_BYTES,
    STORE_ID,
    contents,
    cut,
    flip,
    path_of,
    payload_of,
    recover,
    writer_on,
)


def log_of(*batches: list[bytes], segment_bytes: int = 4096) -> FakeDisk:
    """One segment of these batches, as a crash would leave it."""
    disk = FakeDisk()
    writer = writer_on(disk, segment_bytes=segment_bytes)
    for batch in batches:
        writer.write_batch(batch)
    return disk.crash()


def three_segments() -> FakeDisk:
    """Record n is alone in segment n."""
    return log_of(
        [payload_of(150, "a")],
        [payload_of(150, "b")],
        [payload_of(150, "c")],
        segment_bytes=SEGMENT_BYTES,
    )


def assert_damaged(disk: FakeDisk, after_lsn: int = 0) -> DamagedData:
    """Recovery refuses and leaves every byte where it is."""
    before = contents(disk)
    with pytest.raises(DamagedData) as refusal:
        recover(disk, after_lsn)
    assert contents(disk) == before
    return refusal.value


def test_an_empty_folder_starts_with_segment_one_and_record_one() -> None:
    assert recover(FakeDisk()) == (Recovered(1, 1, [], None), {})


def test_every_record_is_replayed_in_order() -> None:
    recovered, replayed = recover(log_of([b"a", b"b"], [b"c"]))
    assert replayed == {1: b"a", 2: b"b", 3: b"c"}
    assert (recovered.next_segment, recovered.next_lsn, recovered.cut) == (2, 4, None)


def test_records_that_the_checkpoint_covers_are_not_replayed() -> None:
    _, replayed = recover(log_of([b"a", b"b"], [b"c"]), after_lsn=2)
    assert replayed == {3: b"c"}


def test_the_last_segment_is_cut_to_its_records_and_sealed() -> None:
    disk = log_of([b"a"])
    end = 64 + 25
    recovered, _ = recover(disk)
    assert recovered.sealed == [Sealed(1, 1, end)]
    assert len(disk.files[path_of(1)].content) == end


def test_recovering_twice_finds_the_same() -> None:
    disk = three_segments()
    first, second = recover(disk), recover(disk)
    assert first == second
    assert [(s.segment, s.last_lsn) for s in first[0].sealed] == [(1, 1), (2, 2), (3, 3)]


# A torn end


@pytest.mark.parametrize("kept", range(64 + 51, 64 + 51 + 52))
def test_a_batch_torn_off_anywhere_is_cut_to_its_whole_records(kept: int) -> None:
    disk = log_of([b"a", b"bb"], [b"c", b"dd"])
    cut(disk, 1, kept)
    _, replayed = recover(disk)
    expected = [b"a", b"bb", b"c", b"dd"][: 2 + (kept >= 64 + 51 + 25) + (kept >= 64 + 51 + 51)]
    assert list(replayed.values()) == expected


def test_a_torn_end_is_named_and_gone_afterwards() -> None:
    disk = log_of([b"a"], [b"c"])
    flip(disk, 1, 64 + 25 + 24)
    recovered, replayed = recover(disk)
    assert replayed == {1: b"a"}
    assert recovered.cut == f"{path_of(1)} at byte {64 + 25}"
    assert recover(disk)[0].cut is None


def test_zeros_behind_the_records_are_no_torn_end() -> None:
    assert recover(log_of([b"a"]))[0].cut is None


def test_a_hole_inside_the_last_batch_cuts_the_rest_of_that_batch() -> None:
    disk = log_of([b"a"], [b"b", b"c", b"d"])
    flip(disk, 1, 64 + 25 + 25 + 24)  # the payload of c
    _, replayed = recover(disk)
    assert replayed == {1: b"a", 2: b"b"}


def test_a_hole_at_the_start_of_the_last_batch_cuts_all_of_that_batch() -> None:
    disk = log_of([b"a"], [b"b", b"c", b"d"])
    flip(disk, 1, 64 + 25 + 24)  # the payload of b
    _, replayed = recover(disk)
    assert replayed == {1: b"a"}


def test_a_name_that_was_not_durable_is_once_its_records_are_served() -> None:
    disk = log_of([b"a"])
    disk.durable_names.clear()
    recover(disk)
    assert recover(disk.crash())[1] == {1: b"a"}


def test_the_log_goes_on_behind_a_cut_without_a_gap() -> None:
    disk = log_of([b"a"], [b"b", b"c"])
    flip(disk, 1, 64 + 25 + 25 + 24)
    recovered, _ = recover(disk)
    writer_on(disk, recovered).write_batch([b"new"])
    assert recover(disk.crash())[1] == {1: b"a", 2: b"b", 3: b"new"}


def test_records_that_were_never_synced_are_durable_once_they_are_served() -> None:
    """The process was killed between write and sync: the next one finds the bytes all the same."""
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([b"a"])
    disk.failing["datasync"] = OSError("killed")
    with pytest.raises(OSError, match="killed"):
        writer.write_batch([b"b"])
    disk.failing.clear()
    assert recover(disk)[1] == {1: b"a", 2: b"b"}
    assert recover(disk.crash())[1] == {1: b"a", 2: b"b"}


def test_a_last_segment_without_a_whole_header_was_never_used_and_goes() -> None:
    disk = log_of([b"a"])
    disk.create_zeroed(path_of(2), SEGMENT_BYTES)
    recovered, replayed = recover(disk)
    assert replayed == {1: b"a"}
    assert path_of(2) not in disk.files
    assert recovered.next_segment == 2


def test_a_last_segment_with_a_header_and_no_record_is_empty() -> None:
    disk = log_of([b"a"])
    header = encode_segment_header(SegmentHeader(2, 2, 0, STORE_ID))
    disk.create(path_of(2), [header, bytes(100)])
    recovered, replayed = recover(disk)
    assert replayed == {1: b"a"}
    assert (recovered.next_segment, recovered.next_lsn) == (3, 2)


# Damage to what was acknowledged


@pytest.mark.parametrize("position", range(64, 64 + 25))
def test_every_changed_byte_of_a_record_that_a_later_batch_proves_durable_is_damage(
    position: int,
) -> None:
    disk = log_of([b"a"], [b"b"])
    flip(disk, 1, position)
    damage = assert_damaged(disk)
    assert damage.file == path_of(1)
    assert damage.position == 64


def test_a_torn_record_before_a_batch_further_back_is_damage() -> None:
    disk = log_of([b"a"], [b"b"], [b"c"], [b"d"])
    for position in range(64 + 25, 64 + 75):
        disk.files[path_of(1)].content[position] = 0
    assert assert_damaged(disk).position == 64 + 25


@pytest.mark.parametrize("segment", [1, 2])
def test_damage_at_the_end_of_a_segment_that_another_follows_is_damage(segment: int) -> None:
    disk = three_segments()
    flip(disk, segment, 64 + 149)
    damage = assert_damaged(disk)
    assert (damage.file, damage.position) == (path_of(segment), 64)


def test_damage_that_the_checkpoint_covers_is_no_damage() -> None:
    disk = three_segments()
    flip(disk, 1, 64 + 149)
    assert list(recover(disk, after_lsn=1)[1]) == [2, 3]


def test_a_missing_segment_in_the_middle_is_damage() -> None:
    disk = three_segments()
    del disk.files[path_of(2)]
    assert_damaged(disk)


def test_a_missing_segment_is_damage_even_if_no_record_is_missing() -> None:
    disk = log_of([b"a"])
    disk.create(path_of(3), [encode_segment_header(SegmentHeader(3, 2, 0, STORE_ID))])
    assert assert_damaged(disk).file == path_of(3)


def test_a_missing_first_segment_without_a_checkpoint_is_damage() -> None:
    disk = three_segments()
    del disk.files[path_of(1)]
    assert assert_damaged(disk).file == path_of(2)


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_changed_header_of_a_segment_with_records_is_damage(segment: int) -> None:
    disk = three_segments()
    flip(disk, segment, 8)
    assert assert_damaged(disk).file == path_of(segment)


def test_a_log_of_another_store_is_refused() -> None:
    disk = three_segments()
    with pytest.raises(DamagedData, match="a log of store 0123"):
        recover_log(disk, FOLDER, "f" * 32, 0, lambda lsn, payload: None)


def test_a_segment_under_another_ones_name_is_refused() -> None:
    disk = three_segments()
    disk.files[path_of(3)] = disk.files[path_of(2)]
    assert assert_damaged(disk).file == path_of(3)


@pytest.mark.parametrize(
    "name", ["x.wal", "1.wal", "00000000000000001.wal", "000000000000000١.wal"]
)
def test_a_log_file_of_a_strange_name_is_refused(name: str) -> None:
    disk = three_segments()
    disk.create(f"{FOLDER}/{name}", [b""])
    assert assert_damaged(disk).file == f"{FOLDER}/{name}"


def test_other_files_in_the_folder_are_not_looked_at() -> None:
    disk = three_segments()
    disk.create(f"{FOLDER}/spare-0000000000000001", [encode_batch([b"x"], 99, 0)])
    disk.create(f"{FOLDER}/notes.txt", [b"x"])
    assert list(recover(disk)[1]) == [1, 2, 3]


# A checkpoint ahead of the log


def test_segments_that_the_checkpoint_covers_are_dropped() -> None:
    disk = three_segments()
    recovered, replayed = recover(disk, after_lsn=2)
    assert list(replayed) == [3]
    assert path_of(1) not in disk.files
    assert path_of(2) not in disk.files
    assert [sealed.segment for sealed in recovered.sealed] == [3]


@pytest.mark.parametrize("covered", [3, 7])
def test_a_log_that_ends_before_the_checkpoint_starts_anew_behind_it(covered: int) -> None:
    disk = log_of([b"a"], [b"b"])
    recovered, replayed = recover(disk, after_lsn=covered)
    assert replayed == {}
    assert (recovered.next_lsn, recovered.sealed) == (covered + 1, [])
    assert disk.names(FOLDER) == []
    writer_on(disk, recovered).write_batch([b"new"])
    assert recover(disk.crash(), after_lsn=covered)[1] == {covered + 1: b"new"}


def test_a_checkpoint_without_any_log_starts_behind_it() -> None:
    recovered, _ = recover(FakeDisk(), after_lsn=7)
    assert (recovered.next_segment, recovered.next_lsn) == (1, 8)


def test_the_log_is_whole_as_long_as_it_begins_with_its_first_record() -> None:
    assert not holds_whole_log(FakeDisk(), FOLDER)
    disk = three_segments()
    assert holds_whole_log(disk, FOLDER)
    del disk.files[path_of(1)]
    assert not holds_whole_log(disk, FOLDER)


def test_a_log_whose_first_header_is_damaged_is_not_whole() -> None:
    disk = three_segments()
    flip(disk, 1, 16)
    assert not holds_whole_log(disk, FOLDER)


# What clients send is never taken for a record: the salt of the log is not known to them


FORGED = encode_batch([b"forged"], 10**12, 0x4D53524C)


def test_a_record_inside_a_payload_does_not_prove_anything() -> None:
    """A client uploads a log file; its segment is retired, reused, and the server restarts."""
    disk = FakeDisk()
    writer = writer_on(disk)
    writer.write_batch([FORGED.rjust(150, b"x")])
    writer.write_batch([payload_of(150)])
    writer.retire(1)
    writer.write_batch([payload_of(60)])  # into the reused file, and the forged record lies behind
    _, replayed = recover(disk.crash(), after_lsn=1)
    assert list(replayed) == [2, 3]


def test_a_record_inside_a_torn_batch_does_not_prove_anything() -> None:
    disk = log_of([b"a"], [b"x" + FORGED])
    flip(disk, 1, 64 + 25 + 24)
    assert recover(disk)[1] == {1: b"a"}


def test_a_record_inside_a_payload_is_never_replayed() -> None:
    """The reused file ends exactly where the forged record begins, and its lsn is the next."""
    disk = FakeDisk()
    writer = writer_on(disk)
    forged = encode_batch([b"forged"], 4, 0x4D53524C)
    writer.write_batch([forged.rjust(150, b"x")])
    writer.write_batch([payload_of(150)])
    writer.retire(1)
    writer.write_batch([payload_of(24 + 150 - len(forged))])
    _, replayed = recover(disk.crash(), after_lsn=1)
    assert list(replayed) == [2, 3]
