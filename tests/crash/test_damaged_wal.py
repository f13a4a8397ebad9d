"""Damage to the log of a real server: every kind of it, at every place that matters.

Most cases run in memory on copies of one log; a sample goes through real processes.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from millstream.errors import DamagedData
from millstream.journal.recovery import recover_log
from millstream.journal.segments import SegmentWriter
from tests.crash.simulated_disk import SimulatedDisk
from tests.crash.stories import Story, leave_reference_store
from tests.crash.wal_files import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Files,
    Header,
    Record,
    Refused,
    Served,
    Verdict,
    build_header,
    build_record,
    judge,
    load_wal,
    parse_header,
    parse_records,
    segment_names,
)

WAL, CHECKPOINTS = "/data/wal", "/data/checkpoints"
SEGMENT_BYTES = 4096
FLAGS = ("--wal-segment-bytes", str(SEGMENT_BYTES))
HEADER_FIELDS = {"magic": 0, "length": 4, "crc": 8, "index": 12, "lsn": 16}
SEGMENT_FIELDS = {"magic": 0, "segment": 8, "first_lsn": 16, "salt": 24, "store_id": 32, "crc": 48}


@dataclass(frozen=True)
class Store:
    folder: Path
    story: Story
    store_id: str
    files: Files
    payloads: list[bytes]  # by lsn - 1

    @property
    def last_name(self) -> str:
        return segment_names(self.files)[-1]

    @property
    def last_records(self) -> list[Record]:
        return parse_records(self.files[self.last_name])

    def with_file(self, name: str, content: bytes) -> Files:
        return self.files | {name: content}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Whether requests share a batch is up to the clock, so it is tried until they did."""
    for _ in range(10):
        folder = tmp_path_factory.mktemp("reference") / "data"
        made = load_store(folder, leave_reference_store(folder, *FLAGS))
        if made.last_records[-1].index >= 1:
            return made
    raise AssertionError("requests sent at the same time never shared a batch")


def load_store(folder: Path, story: Story) -> Store:
    store_id: str = json.loads((folder / "millstream.json").read_bytes())["store_id"]
    files = load_wal(folder / "wal")
    names = segment_names(files)
    payloads = [r.payload for name in names for r in parse_records(files[name])]
    return Store(folder, story, store_id, {name: files[name] for name in names}, payloads)


def recover(disk: SimulatedDisk, store: Store) -> tuple[list[tuple[int, bytes]], SegmentWriter]:
    replayed: list[tuple[int, bytes]] = []
    recovered = recover_log(
        disk, WAL, store.store_id, 0, lambda lsn, payload: replayed.append((lsn, payload))
    )
    writer = SegmentWriter(
        disk,
        WAL,
        store.store_id,
        SEGMENT_BYTES,
        next_segment=recovered.next_segment,
        next_lsn=recovered.next_lsn,
        sealed=recovered.sealed,
    )
    return replayed, writer


def check_recovery(store: Store, files: Files, verdict: Verdict, what: str) -> None:
    """Recovery does what the verdict says; a log that is served goes on, over several crashes."""
    disk = SimulatedDisk()
    disk.put(WAL, files)
    if isinstance(verdict, Refused):
        check_refusal(store, disk, files, verdict, what)
        return
    expected = [(lsn, store.payloads[lsn - 1]) for lsn in range(1, verdict.last_lsn + 1)]
    for generation in range(3):
        replayed, writer = recover(disk, store)
        assert replayed == expected, f"{what}, generation {generation}"
        batch = [f"new {generation}.{i} ".encode() * 40 for i in range(generation + 1)]
        expected += [(len(expected) + i, p) for i, p in enumerate(batch, 1)]
        writer.write_batch(batch)
        disk.forget_unsynced()
    assert recover(disk, store)[0] == expected, what


def check_refusal(
    store: Store, disk: SimulatedDisk, files: Files, verdict: Refused, what: str
) -> None:
    with pytest.raises(DamagedData) as refused:
        recover(disk, store)
    assert Path(refused.value.file).name in verdict.names, f"{what}: {refused.value}"
    if verdict.position is not None:
        assert refused.value.position == verdict.position, f"{what}: {refused.value}"
    assert disk.get(WAL) == files, f"{what}: a refusal changed the files"


def check_as_judged(store: Store, files: Files, what: str) -> Verdict:
    verdict = judge(files, store.store_id)
    check_recovery(store, files, verdict, what)
    return verdict


def flip(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]


# --- the log itself --------------------------------------------------------------------------


def test_the_reference_log_is_what_the_format_says(store: Store) -> None:
    """One record per request in order, batches of several, several files: worth damaging."""
    assert len(store.payloads) == len(store.story.steps)
    names = segment_names(store.files)
    assert len(names) >= 3
    records = [r for name in names for r in parse_records(store.files[name])]
    assert [r.lsn for r in records] == list(range(1, len(records) + 1))
    assert max(r.index for r in records) >= 2, "no batch of several records"
    assert store.last_records[-1].index >= 1, "the last batch should have several records"
    assert len({r.lsn - r.index for r in store.last_records}) >= 3, "several batches in the last"
    for name in names[1:-1]:
        assert parse_header(store.files[name]) is not None
    assert check_as_judged(store, store.files, "no damage") == Served(len(records))


# --- (a) cut ---------------------------------------------------------------------------------


def test_a_cut_last_segment_serves_every_whole_record_before_the_cut(store: Store) -> None:
    content, records = store.files[store.last_name], store.last_records
    before = records[0].lsn - 1
    cuts = {0, 1, SEGMENT_HEADER_BYTES - 1, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 1}
    cuts |= {record.end for record in records}
    cuts |= set(range(records[-4].position, records[-1].end + 1))
    for cut in sorted(cuts):
        whole = sum(record.end <= cut for record in records)
        files = store.with_file(store.last_name, content[:cut])
        check_recovery(store, files, Served(before + whole), f"cut at {cut}")


def test_a_cut_in_an_earlier_segment_is_refused(store: Store) -> None:
    for name in segment_names(store.files)[:-1]:
        for record in parse_records(store.files[name]):
            files = store.with_file(name, store.files[name][: record.end - 1])
            check_recovery(store, files, Refused((name,), record.position), f"{name} {record.lsn}")


# --- (b) flip --------------------------------------------------------------------------------


def damaged_places(record: Record, dice: random.Random) -> Iterator[tuple[str, int]]:
    for field, offset in HEADER_FIELDS.items():
        yield field, record.position + offset + dice.randrange(8 if field == "lsn" else 4)
    for _ in range(2):
        yield "payload", dice.randrange(record.position + RECORD_HEADER_BYTES, record.end)


def test_a_flipped_bit_anywhere_is_found(store: Store) -> None:
    """Refused where something later proves the record, cut where nothing does; never served."""
    dice = random.Random(1)
    for name in segment_names(store.files):
        records = parse_records(store.files[name])
        last_batch = records[-1].lsn - records[-1].index
        for record in records:
            for field, position in damaged_places(record, dice):
                files = store.with_file(name, flip(store.files[name], position, dice.randrange(8)))
                if name == store.last_name and record.lsn >= last_batch:
                    verdict: Verdict = Served(record.lsn - 1)
                else:
                    verdict = Refused((name,), record.position)
                check_recovery(store, files, verdict, f"{name} record {record.lsn} {field}")


def test_a_record_longer_than_its_file_is_damage_and_not_a_crash(store: Store) -> None:
    record = store.last_records[-1]
    content = bytearray(store.files[store.last_name])
    for length in (2**32 - 1, 2**31, len(content), len(content) - record.position):
        content[record.position + 4 : record.position + 8] = length.to_bytes(4, "little")
        files = store.with_file(store.last_name, bytes(content))
        check_recovery(store, files, Served(record.lsn - 1), f"length {length}")


# --- (c) zero, (d) scribble ------------------------------------------------------------------


def test_zeros_from_a_boundary_to_the_end_are_a_torn_end(store: Store) -> None:
    content = store.files[store.last_name]
    for record in store.last_records:
        files = store.with_file(
            store.last_name, content[: record.position].ljust(len(content), b"\0")
        )
        check_recovery(store, files, Served(record.lsn - 1), f"zero from {record.position}")


def test_zeros_in_an_earlier_segment_are_refused(store: Store) -> None:
    """A sealed file with a zero tail must not be taken for the end of the log."""
    for name in segment_names(store.files)[:-1]:
        content = store.files[name]
        for record in parse_records(content):
            files = store.with_file(name, content[: record.position].ljust(len(content), b"\0"))
            check_recovery(store, files, Refused((name,), record.position), f"{name} {record.lsn}")


def test_random_bytes_over_the_tail_are_cut(store: Store) -> None:
    content = store.files[store.last_name]
    for seed in range(150):
        dice = random.Random(seed)
        begin = dice.randrange(SEGMENT_HEADER_BYTES, len(content))
        scribbled = content[:begin] + dice.randbytes(len(content) - begin)
        verdict = check_as_judged(store, store.with_file(store.last_name, scribbled), f"{seed}")
        whole = sum(record.end <= begin for record in store.last_records)
        assert verdict == Served(store.last_records[0].lsn - 1 + whole)


def test_random_sectors_of_the_last_batch_are_cut_to_whole_records(store: Store) -> None:
    """The last write was in flight: any of its bytes may be anything."""
    content, records = store.files[store.last_name], store.last_records
    begin = records[-1 - records[-1].index].position
    for seed in range(150):
        dice = random.Random(seed)
        torn = bytearray(content)
        for position in range(begin, records[-1].end, 64):
            stop = min(position + 64, records[-1].end)
            torn[position:stop] = dice.choice(
                [content[position:stop], bytes(stop - position), dice.randbytes(stop - position)]
            )
        files = store.with_file(store.last_name, bytes(torn))
        verdict = check_as_judged(store, files, f"seed {seed}")
        assert isinstance(verdict, Served)
        assert verdict.last_lsn >= records[-1 - records[-1].index].lsn - 1


# --- (e) what a recycled file still holds ----------------------------------------------------


def test_old_records_behind_the_tail_are_not_taken_for_new_ones(store: Store) -> None:
    content, end = store.files[store.last_name], store.last_records[-1].end
    old = store.files[segment_names(store.files)[0]]
    for shift in (0, 1, 23, 24, 64):
        for old_record in parse_records(old):
            stale = old[old_record.position :]
            recycled = (content[: end + shift] + stale)[: len(content)].ljust(len(content), b"\0")
            files = store.with_file(store.last_name, recycled)
            check_recovery(
                store, files, Served(len(store.payloads)), f"{old_record.lsn} at +{shift}"
            )


def test_an_old_record_where_the_torn_batch_was_is_not_replayed(store: Store) -> None:
    """The recycled file shows through where the last write did not arrive."""
    content, records = store.files[store.last_name], store.last_records
    old = store.files[segment_names(store.files)[0]]
    for record in records[-4:]:
        stale = parse_records(old)[2]
        torn = content[: record.position] + old[stale.position : stale.end]
        files = store.with_file(store.last_name, torn.ljust(len(content), b"\0"))
        check_recovery(store, files, Served(record.lsn - 1), f"instead of {record.lsn}")


@pytest.mark.parametrize("ahead", [1, 2, 1000])
def test_a_message_that_holds_log_records_proves_nothing_when_it_is_torn(
    store: Store, ahead: int
) -> None:
    """Somebody keeps copies of log files in a stream; the last such append is torn at a crash."""
    content, records = store.files[store.last_name], store.last_records
    end, lsn = records[-1].end, records[-1].lsn + 1
    header = parse_header(content)
    assert header is not None
    other = replace(header, salt=header.salt ^ 0x0000000100000001)
    of_another_log = build_record(other, 0, lsn + ahead, b"not a record of this log")
    torn = bytearray(build_record(header, 0, lsn, b"message: " + of_another_log + b" and more"))
    torn[0:20] = bytes(20)
    files = store.with_file(store.last_name, (content[:end] + torn).ljust(len(content), b"\0"))
    check_recovery(store, files, Served(lsn - 1), "a record inside a message")


# --- (f) whole files -------------------------------------------------------------------------


def test_a_damaged_segment_header_is_refused(store: Store) -> None:
    for name in segment_names(store.files):
        for field, offset in SEGMENT_FIELDS.items():
            files = store.with_file(name, flip(store.files[name], offset, 3))
            check_recovery(store, files, Refused((name,), 0), f"{name} {field}")


def test_a_last_segment_whose_header_never_arrived_is_dropped(store: Store) -> None:
    number = len(segment_names(store.files)) + 1
    name = f"{number:016d}.wal"
    torn = build_header(replace(parse_first(store), segment=number))[:40]
    for content in (b"", torn, torn.ljust(SEGMENT_BYTES, b"\0"), bytes(SEGMENT_BYTES)):
        files = store.with_file(name, content)
        check_recovery(store, files, Served(len(store.payloads)), f"{len(content)} bytes")


def parse_first(store: Store) -> Header:
    header = parse_header(store.files[segment_names(store.files)[0]])
    assert header is not None
    return header


def test_a_missing_segment_is_refused(store: Store) -> None:
    names = segment_names(store.files)
    for index, missing in enumerate(names[:-1]):
        files = {name: content for name, content in store.files.items() if name != missing}
        around = tuple(names[max(0, index - 1) : index + 2])
        check_recovery(store, files, Refused(around, None), f"without {missing}")


def test_swapped_segments_are_refused(store: Store) -> None:
    names = segment_names(store.files)
    for first, second in itertools.pairwise(names):
        files = store.files | {first: store.files[second], second: store.files[first]}
        check_recovery(store, files, Refused((first, second), None), f"{first} {second}")


def test_a_segment_of_another_store_is_refused(store: Store) -> None:
    for name in segment_names(store.files):
        header = parse_header(store.files[name])
        assert header is not None
        other = build_header(replace(header, store_id="f" * 32))
        files = store.with_file(name, other + store.files[name][SEGMENT_HEADER_BYTES:])
        check_recovery(store, files, Refused((name,), None), name)


def test_an_empty_wal_folder_is_an_empty_log(store: Store) -> None:
    check_recovery(store, {}, Served(0), "nothing there")
