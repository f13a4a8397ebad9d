"""The files themselves: made, refused, damaged, full, copied, read beside a merge."""

from __future__ import annotations

import resource
import sqlite3
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from millstream.clock import SystemClock
from millstream.errors import DamagedData, StartupError
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.tier.catalog import Catalog, Changes, Replacement, StreamRow
from millstream.tier.catalog_changes import split
from tests.unit.tier.catalog_world import STORE, id_for, open_catalog

SHARDS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "catalog"


def rows(count: int, image: bytes = b"image") -> list[StreamRow]:
    paths = [b"stream %05d" % number for number in range(count)]
    return [
        StreamRow(StreamId(id_for(p, n, SHARDS)), p, None, True, n, image)
        for n, p in enumerate(paths)
    ]


@pytest.fixture
def used(folder: Path) -> Path:
    """A catalog that was merged into and closed."""
    catalog = open_catalog(folder)
    catalog.merge(Changes(9, streams=rows(500), records=[("a", b"1")]))
    catalog.close()
    return folder


def execute(path: Path, sql: str) -> None:
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()


def know_no_keys(path: Path) -> None:
    """As before format 4."""
    for column in ("first_ms", "last_ms", "keys"):
        execute(path, f"ALTER TABLE runs DROP COLUMN {column}")


def count_no_dead_rows(path: Path) -> None:
    """As before format 3."""
    know_no_keys(path)
    for trigger in ("run_added", "run_removed", "run_cut"):
        execute(path, f"DROP TRIGGER {trigger}")
    for table, column in (
        ("segments", "live_rows"),
        ("segments", "dead_since_ms"),
        ("runs", "dead"),
    ):
        execute(path, f"ALTER TABLE {table} DROP COLUMN {column}")
    for name, sign, row in (("added", "+", "new"), ("removed", "-", "old")):
        execute(
            path,
            f"CREATE TRIGGER run_{name} AFTER {'INSERT' if sign == '+' else 'DELETE'} ON runs BEGIN"
            f" UPDATE segments SET live_bytes = live_bytes {sign} {row}.size,"
            f" live_runs = live_runs {sign} 1 WHERE segment = {row}.segment; END",
        )


def test_a_catalog_that_counted_no_dead_rows_does_so_when_it_is_opened(used: Path) -> None:
    """What is dead already counts from then on."""
    [row, *_] = rows(1)
    catalog = open_catalog(used)
    pieces = [Run(row.stream_id, k, k, 1, 1, 0, k, 0) for k in range(4)]
    segment = Segment("x", row.stream_id % 3, 100, 7, 4, 77)
    catalog.merge(Changes(10, segments=[segment], runs=[pieces]))
    catalog.merge(Changes(11, trims=[(row.stream_id, 1)]))
    catalog.close()
    for path in used.glob("shard*.sqlite"):
        count_no_dead_rows(path)
        execute(path, "PRAGMA user_version = 2")
    for _ in range(2):
        catalog = open_catalog(used)
        [decay] = catalog.decayed()
        assert (decay.use.segment.name, decay.dead_rows) == ("x", 1)
        assert abs(decay.since_ms - SystemClock().now_ms()) < 60_000
        assert catalog.verify().problem is None
        catalog.close()


def test_a_catalog_that_knew_no_keys_opens_and_gets_to_know_those_that_come(used: Path) -> None:
    """Of the runs that are there nothing is known; what comes later is kept."""
    [row, *_] = rows(1)
    catalog = open_catalog(used)
    place = Segment("x", row.stream_id % 3, 100, 7, 2, 77)
    known = [
        Run(row.stream_id, k, k, 1, 1, 0, k, 5, 70 + k, 71 + k, b"\x08abcdefg") for k in (0, 1)
    ]
    catalog.merge(Changes(10, segments=[place], runs=[known]))
    catalog.close()
    for path in used.glob("*.sqlite"):
        if path.name != "root.sqlite":
            know_no_keys(path)
        execute(path, "PRAGMA user_version = 3")
    for _ in range(2):
        catalog = open_catalog(used)
        found = catalog.runs_from(row.stream_id, ordinal=0, limit=9, with_keys=True)
        unknown = [Run(row.stream_id, k, k, 1, 1, 0, k, 5) for k in (0, 1)]
        assert [run for _, run in found] == unknown
        assert catalog.runs_in(place) == unknown
        assert catalog.verify().problem is None
        catalog.close()
    catalog = open_catalog(used)
    later = replace(known[0], first_ordinal=2, first_byte=2)
    catalog.merge(Changes(11, segments=[replace(place, name="y")], runs=[[later]]))
    found = catalog.runs_from(row.stream_id, ordinal=0, limit=9, with_keys=True)
    assert [run for _, run in found] == [*unknown, later]
    catalog.forget_index(later)
    found = catalog.runs_from(row.stream_id, ordinal=2, limit=9, with_keys=True)
    assert [run for _, run in found] == [Run(row.stream_id, 2, 2, 1, 1, 0, 0, 5)]
    catalog.close()


def test_what_was_merged_is_there_after_opening_again(used: Path) -> None:
    catalog = open_catalog(used)
    assert catalog.lsn == 9
    assert catalog.count_streams() == 500
    assert catalog.record("a") == b"1"
    catalog.close()


def test_a_catalog_without_checksums_gets_them_when_it_is_opened(used: Path) -> None:
    """As it was before: images and records as they are, format 1."""
    for path in used.glob("*.sqlite"):
        table, column = ("records", "value") if path.name == "root.sqlite" else ("streams", "image")
        execute(path, f"UPDATE {table} SET {column} = substr({column}, 1, length({column}) - 4)")
        if path.name != "root.sqlite":
            count_no_dead_rows(path)
        execute(path, "PRAGMA user_version = 1")
    for _ in range(2):
        catalog = open_catalog(used)
        assert [row.image for row in catalog.stream_rows()] == [b"image"] * 500
        assert list(catalog.records("")) == [("a", b"1")]
        catalog.close()


def test_a_value_that_is_not_what_was_stored_is_refused_by_file_and_stream(used: Path) -> None:
    [row, *_] = rows(1)
    for path in used.glob("shard*.sqlite"):
        execute(path, "UPDATE streams SET image = CAST(replace(image, 'mag', 'mog') AS BLOB)")
    execute(used / "root.sqlite", "UPDATE records SET key = 'b'")
    catalog = open_catalog(used)
    with pytest.raises(DamagedData, match=rf"shard-.*image of stream {row.stream_id}"):
        catalog.find_by_id(row.stream_id)
    with pytest.raises(DamagedData, match=r"shard-.*image of stream b'stream 00000'"):
        catalog.find(row.path)
    with pytest.raises(DamagedData, match=r"root\.sqlite.*record 'b'"):
        catalog.record("b")
    catalog.close()


@pytest.mark.parametrize("value", ["'image as text'", "12", "X'00'", "CAST(X'FFFE' AS TEXT)"])
def test_a_value_of_another_kind_is_damage_too(used: Path, value: str) -> None:
    [row, *_] = rows(1)
    for path in used.glob("shard*.sqlite"):
        execute(path, f"UPDATE streams SET image = {value}")
    catalog = open_catalog(used)
    with pytest.raises(DamagedData, match="shard-"):
        catalog.find_by_id(row.stream_id)
    catalog.close()


def test_another_number_of_shards_is_refused_with_the_number_to_give(used: Path) -> None:
    with pytest.raises(StartupError, match="leave out --shards, or start with --shards 3"):
        Catalog.open(used, 16, STORE)


def test_the_catalog_of_another_store_is_refused(used: Path) -> None:
    with pytest.raises(StartupError, match=f"belongs to store {STORE}"):
        Catalog.open(used, SHARDS, "77" * 16)


def test_a_newer_format_is_refused(used: Path) -> None:
    execute(used / "shard-0001.sqlite", "PRAGMA user_version = 99")
    with pytest.raises(StartupError, match=r"shard-0001.sqlite has format 99.*newer Millstream"):
        open_catalog(used)


@pytest.mark.parametrize("name", ["shard-0001.sqlite", "root.sqlite"])
def test_a_missing_file_is_named(used: Path, name: str) -> None:
    (used / name).unlink()
    with pytest.raises(DamagedData, match=name):
        open_catalog(used)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1000])
def test_a_file_that_is_no_catalog_is_named(used: Path, content: bytes) -> None:
    (used / "shard-0002.sqlite").write_bytes(content)
    with pytest.raises(DamagedData, match=r"shard-0002.sqlite"):
        open_catalog(used)


def test_a_file_cut_short_is_named(used: Path) -> None:
    file = used / "shard-0002.sqlite"
    file.write_bytes(file.read_bytes()[: 4096 * 3])
    with pytest.raises(DamagedData, match=r"shard-0002.sqlite"):
        open_catalog(used)


def test_the_file_of_another_shard_is_refused(used: Path) -> None:
    (used / "shard-0002.sqlite").write_bytes((used / "shard-0001.sqlite").read_bytes())
    with pytest.raises(DamagedData, match=r"expected the file of shard 2, found .* shard 1"):
        open_catalog(used)


def test_a_damaged_page_is_reported_by_the_reads_that_need_it(used: Path) -> None:
    file = used / "shard-0000.sqlite"
    content = bytearray(file.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    file.write_bytes(content)
    catalog = open_catalog(used)
    with pytest.raises(DamagedData, match=r"shard-0000.sqlite"):
        [catalog.find(row.path) for row in rows(500)]
    catalog.close()


def test_a_first_start_that_was_cut_short_is_begun_again(folder: Path) -> None:
    open_catalog(folder).close()
    (folder / "root.sqlite").unlink()
    (folder / "shard-0002.sqlite").unlink()
    (folder / "shard-0001.sqlite").rename(folder / "shard-0001.sqlite.new")
    catalog = open_catalog(folder)
    assert catalog.verify().problem is None
    catalog.close()
    assert sorted(path.name for path in folder.iterdir()) == [
        "root.sqlite",
        "shard-0000.sqlite",
        "shard-0001.sqlite",
        "shard-0002.sqlite",
    ]


def test_a_folder_that_cannot_be_made_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot use the catalog"):
        open_catalog(tmp_path / "file" / "catalog")


def test_the_wal_files_are_emptied_though_readers_are_open(folder: Path) -> None:
    catalog = open_catalog(folder)
    names = catalog.names(b"")
    for lsn in range(1, 4):
        catalog.merge(Changes(lsn, streams=rows(3000, b"%d" % lsn)))
        next(names, None)
    assert {path.stat().st_size for path in folder.glob("*-wal")} == {0}
    catalog.close()


def test_a_full_disk_leaves_the_files_as_they_were_and_merging_again_works(used: Path) -> None:
    catalog = open_catalog(used)
    changes = Changes(10, streams=rows(3000, b"x" * 200), removed=[])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"shard-0000.sqlite"):
            catalog.merge(changes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert catalog.lsn == 9
    assert catalog.count_streams() == 500
    assert catalog.find(b"stream 00007") == b"image"
    catalog.merge(changes)
    assert catalog.lsn == 10
    assert catalog.verify() == (3000, 0, 0, None)
    catalog.close()


def test_other_changes_must_wait_for_those_that_were_cut_short(used: Path) -> None:
    catalog = open_catalog(used)
    changes = Changes(12, streams=rows(600))
    catalog._merge_file(0, split(changes, SHARDS)[0])
    with pytest.raises(AssertionError, match="changes up to 13 before those up to 12"):
        catalog.merge(Changes(13))
    catalog.merge(changes)
    catalog.merge(Changes(13))
    assert catalog.lsn == 13
    catalog.close()


def test_backups_make_the_same_catalog(used: Path, tmp_path: Path) -> None:
    catalog = open_catalog(used)
    copies = tmp_path / "copies"
    copies.mkdir()
    for shard in range(SHARDS):
        assert catalog.back_up(shard, copies / f"shard-{shard:04d}.sqlite") == 9
    assert catalog.back_up(None, copies / "root.sqlite") == 9
    assert len(list(copies.iterdir())) == SHARDS + 1
    copy = open_catalog(copies)
    assert copy.verify().problem is None
    assert list(copy.names(b"")) == list(catalog.names(b""))
    copy.close()
    catalog.close()


def test_reads_beside_merges_see_all_of_a_merge_or_nothing(folder: Path) -> None:
    catalog = open_catalog(folder)
    [row] = rows(1)
    shard = row.stream_id % SHARDS

    def replace(lsn: int) -> Changes:
        new = Segment(f"{lsn}", shard, 1, 1, 1, lsn)
        pieces = [Run(row.stream_id, n, n, 1, 1, 0, n, lsn) for n in range(40)]
        return Changes(lsn, replacements=[Replacement([f"{lsn - 1}"], [new], [pieces])])

    first = replace(1).replacements[0]
    catalog.merge(Changes(1, streams=[row], segments=first.segments, runs=first.runs))

    def merge_all() -> None:
        for lsn in range(2, 40):
            catalog.merge(replace(lsn))

    worker = threading.Thread(target=merge_all)
    worker.start()
    seen = set()
    while worker.is_alive():
        found = catalog.runs_from(row.stream_id, ordinal=0, limit=99)
        assert [run.first_ordinal for _, run in found] == list(range(40))
        versions = {run.crc for _, run in found} | {segment.created_ms for segment, _ in found}
        assert len(versions) == 1
        seen |= versions
    worker.join()
    assert len(seen) > 1
    assert catalog.lsn == 39
    catalog.close()


@pytest.mark.parametrize(
    ("sql", "finding"),
    [
        ("DELETE FROM runs WHERE first_ordinal = 5", "expected a run at message 5, byte 50, found"),
        ("UPDATE runs SET count = 6 WHERE first_ordinal = 0", "expected a run at message 6"),
        ("UPDATE runs SET first_byte = 51 WHERE first_ordinal = 5", "found one at message 5, by"),
        ("UPDATE segments SET live_bytes = 1", "counts 3 live runs of 1 bytes, found 3 of 150"),
        ("UPDATE runs SET segment = 99", "segment number 99, which does not exist"),
        ("DELETE FROM streams", "does not exist but has a run at message 0"),
        ("UPDATE meta SET streams = 5", "meta counts 5 streams, found 1"),
        ("UPDATE streams SET stream_id = stream_id + 1", "does not belong to shard"),
        ("UPDATE streams SET listed = 0, deadline_ms = 5", "must have no deadline, found 5"),
        ("INSERT INTO garbage SELECT name, 1, 1 FROM segments", "live and garbage at once"),
    ],
)
def test_verify_describes_the_first_difference(folder: Path, sql: str, finding: str) -> None:
    catalog = open_catalog(folder)
    [row] = rows(1)
    shard = row.stream_id % SHARDS
    runs = [Run(row.stream_id, n, n * 10, 5, 50, 0, 0, 1) for n in (0, 5, 10)]
    one = Segment("one", shard, 1, 1, 1, 1)
    catalog.merge(Changes(1, streams=[row], segments=[one], runs=[runs]))
    assert catalog.verify() == (1, 1, 3, None)
    execute(folder / f"shard-{shard:04d}.sqlite", sql)
    problem = catalog.verify().problem
    assert problem is not None
    assert f"shard-{shard:04d}.sqlite" in problem
    assert finding in problem
    catalog.close()
