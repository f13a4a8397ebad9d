"""Damage of every kind is found by `millstream verify`, and named."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from tests.cold.backup_world import EAGER, Writer, run_command, serving


class Store:
    """A stopped server's folder with a bit of everything in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cold = folder / "cold"
        writer = Writer()
        with serving(writer, folder, *EAGER):
            writer.make_bucket()
            for number in range(6):
                writer.create(f"s{number}", b"first of %d;" % number * 50)
                writer.append(f"s{number}", b"second of %d;" % number * 50)
                writer.flush(f"s{number}")
            writer.snapshot("s5", b"everything so far")
            writer.fork("s5", "fork")

    def verify(self, *flags: str) -> tuple[int, str]:
        return run_command("verify", "--data-dir", str(self.folder), *flags)

    def segment_of(self, name: str) -> Path:
        """The only segment that holds the stream."""
        for path in (self.folder / "catalog").glob("shard-*.sqlite"):
            db = sqlite3.connect(path)
            found = db.execute(
                "SELECT s.name FROM segments s JOIN runs USING (segment)"
                " JOIN streams t USING (stream_id) WHERE path = ?",
                (f"bkt1/{name}".encode(),),
            ).fetchall()
            db.close()
            if found:
                return self.cold / str(found[0][0])
        raise AssertionError(f"{name} is in no segment")

    def snapshot(self) -> Path:
        [path] = (self.cold / "snapshots").iterdir()
        return path

    def backup_of(self, file: str) -> Path:
        newest = max((self.cold / "catalog").glob("manifest-*.json"))
        return self.cold / str(json.loads(newest.read_bytes())["files"][file]["object"])

    def name_of(self, path: Path) -> str:
        return str(path.relative_to(self.cold))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_what_is_sound_is_called_sound_with_a_summary(store: Store) -> None:
    code, output = store.verify()
    assert code == 0, output
    summary = output.splitlines()[-1]
    pattern = (
        r"sound: 7 streams with 10 messages, \d+ records? in the log, "
        r"5 segments with 5 runs of .+, 1 snapshot; copy of the catalog at"
    )
    assert re.match(pattern, summary), summary


def test_a_damaged_page_is_named_with_its_row_group_and_stream(store: Store) -> None:
    segment = store.segment_of("s2")
    flip(segment, 40)
    code, output = store.verify()
    assert code == 1
    [line] = [line for line in output.splitlines() if store.name_of(segment) in line]
    assert f"{store.name_of(segment)}, row group 0: the CRC32C of row group 0 should be" in line
    assert ", found " in line
    assert "bkt1/s2" in line
    assert "1 difference in 7 streams with 10 messages" in output


def test_a_missing_object_and_one_cut_short_are_both_named(store: Store) -> None:
    missing, short = store.segment_of("s1"), store.segment_of("s3")
    size = short.stat().st_size
    missing.unlink()
    short.write_bytes(short.read_bytes()[:-7])
    code, output = store.verify()
    assert code == 1
    assert re.search(rf"{store.name_of(missing)}: expected \d+ bytes, found no object", output)
    name = store.name_of(short)
    assert f"{name}: expected {size} bytes, found {size - 7} bytes (content of stream" in output
    assert "2 differences in" in output
    code, output = store.verify("--max-differences", "1")
    assert code == 1
    assert "1 difference, then stopped looking" in output


def test_a_damaged_footer_is_named(store: Store) -> None:
    segment = store.segment_of("s4")
    flip(segment, segment.stat().st_size - 20)
    code, output = store.verify()
    assert code == 1
    assert f"{store.name_of(segment)}, row group 0: the CRC32C of the footer should be" in output


def test_a_snapshot_that_is_missing_or_changed_is_named(store: Store) -> None:
    snapshot = store.snapshot()
    flip(snapshot, 3)
    code, output = store.verify()
    assert code == 1
    assert re.search(rf"{snapshot.name} \(.*bkt1/s5\): expected SHA-256 \w+, found \w+", output)
    snapshot.unlink()
    code, output = store.verify()
    assert code == 1
    assert f"{snapshot.name} (the snapshot of stream" in output
    assert "expected 17 bytes, found no object" in output


def test_a_cut_or_missing_copy_of_the_catalog_is_named(store: Store) -> None:
    cut, missing = store.backup_of("shard-0000.sqlite"), store.backup_of("root.sqlite")
    size = cut.stat().st_size
    cut.write_bytes(cut.read_bytes()[: size // 2])
    missing.unlink()
    code, output = store.verify()
    assert code == 1
    name = store.name_of(cut)
    assert f"{name} is damaged: the object should be of {size} bytes, found {size // 2}" in output
    assert f"{store.name_of(missing)} is damaged: the object should be there" in output


def test_a_catalog_that_lacks_a_run_is_found_out(store: Store) -> None:
    for path in (store.folder / "catalog").glob("shard-*.sqlite"):
        db = sqlite3.connect(path)
        db.execute(
            "DELETE FROM runs WHERE stream_id IN"
            " (SELECT stream_id FROM streams WHERE path = X'626B74312F7330')"  # bkt1/s0
        )
        db.commit()
        db.close()
    code, output = store.verify()
    assert code == 1
    assert re.search(r"stream \d+, bkt1/s0: expected runs of the messages 0 to 1", output)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ("last_ms = last_ms + 1", r"the append times should be from \d+ to \d+, found \d+ to \d+"),
        ("first_ms = first_ms - 1", "the append times should be from"),
        ("keys = x'08ffffffff00000000'", "the filter of its routing keys is damaged"),
    ],
)
def test_a_run_that_is_found_by_what_is_not_so_is_named_and_salvaged(
    store: Store, change: str, finding: str
) -> None:
    for path in (store.folder / "catalog").glob("shard-*.sqlite"):
        db = sqlite3.connect(path)
        db.execute(
            f"UPDATE runs SET {change} WHERE stream_id IN"
            " (SELECT stream_id FROM streams WHERE path = X'626B74312F7331')"  # bkt1/s1
        )
        db.commit()
        db.close()
    code, output = store.verify()
    assert code == 1
    name = re.escape(store.name_of(store.segment_of("s1")))
    assert re.search(rf"run at message 0 in {name}: {finding}.*bkt1/s1", output), output
    assert "1 difference in" in output
    out = store.folder.parent / "out"
    code, output = run_command("salvage", str(store.folder), str(out))
    assert code == 0, output
    assert run_command("verify", "--data-dir", str(out))[0] == 0


def test_a_damaged_catalog_file_is_named(store: Store) -> None:
    path = store.folder / "catalog" / "shard-0001.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)
    code, output = store.verify()
    assert code == 1
    assert "shard-0001.sqlite is damaged" in output


def test_a_running_server_or_an_empty_folder_cannot_be_verified(tmp_path: Path) -> None:
    with serving(Writer(), tmp_path / "data", *EAGER):
        code, output = run_command("verify", "--data-dir", str(tmp_path / "data"))
        assert (code, "in use by another process" in output) == (2, True)
    code, output = run_command("verify", "--data-dir", str(tmp_path / "nothing"))
    assert (code, "holds no store" in output) == (2, True)
    assert not (tmp_path / "nothing").exists()
