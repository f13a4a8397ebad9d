from __future__ import annotations

import errno

import msgspec
import pytest

from millstream.errors import DamagedData, StartupError
from millstream.formats.changes import Changes, StreamRow
from millstream.formats.checkpoint import CHANGES, FORMAT, HEADER, CheckpointHeader, encode_block
from millstream.formats.images import HotContent
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.journal.checkpoints import (
    Checkpoint,
    checkpoint_name,
    encode_checkpoint,
    load_checkpoint,
    store_checkpoint,
)
from tests.unit.journal.fake_disk import FakeDisk

FOLDER = "/data/checkpoints"
STORE_ID = "0123456789abcdef0123456789abcdef"


def path_of(lsn: int) -> str:
    return f"{FOLDER}/{checkpoint_name(lsn)}"


def changes_of(lsn: int, streams: int) -> Changes:
    rows = [StreamRow(StreamId(n), b"%d" % n, None, True, 5, b"image") for n in range(streams)]
    segment = Segment("segments/0000/1.parquet", 0, 1000, 100, 3, 5)
    run = Run(StreamId(0), 0, 0, 3, 30, 0, 0, 4711)
    return Changes(
        lsn,
        rows,
        [StreamId(99)],
        [segment],
        [[run]],
        [],
        [(StreamId(0), 1)],
        [("a", b"b"), ("c", None)],
    )


def hot_of(streams: int) -> list[HotContent]:
    return [
        HotContent(StreamId(number), [(b"content", b"", 5), (b"xy", b"ends", b"times")])
        for number in range(streams)
    ]


def blocks(lsn: int, streams: int, store_id: str = STORE_ID) -> list[bytes]:
    return list(encode_checkpoint(store_id, changes_of(lsn, streams), hot_of(streams)))


def load_whole(
    disk: FakeDisk, catalog_lsn: int = 0, *, may_start_over: bool = False
) -> Checkpoint | None:
    return load_checkpoint(disk, FOLDER, STORE_ID, catalog_lsn, may_start_over=may_start_over)


def load(disk: FakeDisk, catalog_lsn: int = 0) -> tuple[int, int]:
    """(lsn, streams with hot content) of what a restart would go on from."""
    loaded = load_whole(disk, catalog_lsn)
    return (0, 0) if loaded is None else (loaded.lsn, len(loaded.hot))


def damage(disk: FakeDisk, lsn: int) -> None:
    disk.files[path_of(lsn)].content[20] ^= 0xFF


def test_without_a_checkpoint_nothing_is_loaded() -> None:
    assert load(FakeDisk()) == (0, 0)


def test_a_stored_checkpoint_is_durable_and_loads_as_the_same_state() -> None:
    disk = FakeDisk()
    parts = blocks(7, 3)
    assert store_checkpoint(disk, FOLDER, 7, parts) == sum(map(len, parts))
    assert load_whole(disk.crash()) == Checkpoint(7, changes_of(7, 3), hot_of(3))


def test_a_new_checkpoint_replaces_the_older_ones() -> None:
    disk = FakeDisk()
    store_checkpoint(disk, FOLDER, 7, blocks(7, 1))
    store_checkpoint(disk, FOLDER, 9, blocks(9, 2))
    assert disk.names(FOLDER) == [checkpoint_name(9)]
    assert load(disk.crash()) == (9, 2)


def test_the_same_lsn_again_replaces_the_file() -> None:
    disk = FakeDisk()
    store_checkpoint(disk, FOLDER, 7, blocks(7, 1))
    store_checkpoint(disk, FOLDER, 7, blocks(7, 2))
    assert load(disk.crash()) == (7, 2)


def test_at_every_step_of_storing_a_crash_leaves_a_sound_checkpoint() -> None:
    disk = FakeDisk()
    store_checkpoint(disk, FOLDER, 7, blocks(7, 1))
    found: list[tuple[int, int]] = []
    disk.before_step = lambda operation: found.append(load(disk.crash()))
    store_checkpoint(disk, FOLDER, 9, blocks(9, 2))
    assert set(found) == {(7, 1), (9, 2)}
    assert found == sorted(found)


def test_a_full_disk_keeps_the_older_checkpoint() -> None:
    disk = FakeDisk()
    store_checkpoint(disk, FOLDER, 7, blocks(7, 1))
    disk.failing["create"] = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        store_checkpoint(disk, FOLDER, 9, blocks(9, 2))
    disk.failing.clear()
    assert load(disk) == (7, 1)


def test_a_checkpoint_whose_name_was_not_durable_is_once_it_is_loaded() -> None:
    disk = FakeDisk()
    disk.create(path_of(7), blocks(7, 1))
    assert load(disk) == (7, 1)
    assert load(disk.crash()) == (7, 1)


def test_a_half_written_checkpoint_is_not_read_and_goes() -> None:
    disk = FakeDisk()
    store_checkpoint(disk, FOLDER, 7, blocks(7, 1))
    disk.create(path_of(9) + ".new", blocks(9, 2))
    assert load(disk) == (7, 1)
    assert disk.names(FOLDER) == [checkpoint_name(7)]


def with_two(disk: FakeDisk) -> FakeDisk:
    """A crash came between the new file's name and the removal of the old one."""
    disk.create(path_of(7), blocks(7, 1))
    disk.create(path_of(12), blocks(12, 2))
    return disk


def test_of_two_checkpoints_the_newest_is_loaded() -> None:
    assert load(with_two(FakeDisk())) == (12, 2)


def test_a_damaged_newest_checkpoint_falls_back_to_the_older() -> None:
    disk = with_two(FakeDisk())
    damage(disk, 12)
    assert load(disk) == (7, 1)


def test_every_changed_byte_of_a_checkpoint_is_noticed() -> None:
    whole = b"".join(blocks(12, 1))
    for position in range(len(whole)):
        disk = with_two(FakeDisk())
        disk.create(path_of(12), [whole])
        disk.files[path_of(12)].content[position] ^= 0xFF
        assert load(disk) == (7, 1), position


def test_when_all_are_damaged_the_newest_is_named() -> None:
    disk = with_two(FakeDisk())
    damage(disk, 7)
    damage(disk, 12)
    with pytest.raises(DamagedData) as refusal:
        load(disk)
    assert refusal.value.file == path_of(12)
    assert refusal.value.position == 0


def test_damaged_checkpoints_are_passed_over_while_the_whole_log_is_there() -> None:
    disk = with_two(FakeDisk())
    damage(disk, 7)
    damage(disk, 12)
    assert load_whole(disk, may_start_over=True) is None


def test_damaged_checkpoints_are_not_passed_over_once_the_catalog_has_merged_one() -> None:
    disk = with_two(FakeDisk())
    damage(disk, 12)
    with pytest.raises(DamagedData) as refusal:
        load(disk, catalog_lsn=12)
    assert refusal.value.file == path_of(12)
    damage(disk, 7)
    with pytest.raises(DamagedData):
        load_whole(disk, 7, may_start_over=True)


def test_an_older_checkpoint_will_do_while_the_catalog_is_not_past_it() -> None:
    disk = with_two(FakeDisk())
    damage(disk, 12)
    assert load(disk, catalog_lsn=7) == (7, 1)


def test_a_sound_checkpoint_is_loaded_even_when_the_whole_log_is_there() -> None:
    disk = with_two(FakeDisk())
    loaded = load_whole(disk, may_start_over=True)
    assert loaded is not None
    assert loaded.lsn == 12


def test_the_place_of_damage_is_the_damaged_block() -> None:
    disk = FakeDisk()
    parts = blocks(7, 1)
    store_checkpoint(disk, FOLDER, 7, parts)
    disk.files[path_of(7)].content[len(parts[0]) + 10] ^= 0xFF
    with pytest.raises(DamagedData) as refusal:
        load(disk)
    assert refusal.value.position == len(parts[0])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="empty"),
        pytest.param(blocks(7, 1)[:-1], id="without its end"),
        pytest.param(blocks(7, 1)[1:], id="without its header"),
        pytest.param([*blocks(7, 1)[:1], *blocks(7, 1)[2:]], id="without its changes"),
        pytest.param(blocks(7, 2)[:-2] + blocks(7, 2)[-1:], id="without one stream's content"),
        pytest.param([*blocks(7, 0)[:1], *blocks(8, 0)[1:]], id="with changes of another position"),
        pytest.param(
            [*blocks(7, 0)[:1], encode_block(CHANGES, b"junk"), *blocks(7, 0)[2:]],
            id="with junk changes",
        ),
        pytest.param([encode_block(9, b"")], id="of an unknown kind"),
        pytest.param([encode_block(HEADER, b"junk"), *blocks(7, 1)[1:]], id="with a junk header"),
        pytest.param(blocks(7, 1, store_id="f" * 32), id="of another store"),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(parts: list[bytes]) -> None:
    disk = FakeDisk()
    disk.create(path_of(7), parts)
    with pytest.raises(DamagedData) as refusal:
        load(disk)
    assert refusal.value.file == path_of(7)


def test_a_checkpoint_of_a_newer_program_is_refused_as_such() -> None:
    disk = FakeDisk()
    header = msgspec.msgpack.encode(CheckpointHeader(FORMAT + 1, STORE_ID, 7))
    disk.create(path_of(7), [encode_block(HEADER, header), *blocks(7, 1)[1:]])
    with pytest.raises(StartupError, match="run a newer Millstream"):
        load(disk)
