from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.journal.disk import ZERO_CHUNK, OsDisk


def test_listing_a_missing_folder_creates_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert OsDisk().list(str(folder)) == []
    assert folder.is_dir()


def test_a_listing_is_sorted(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / name).touch()
    assert OsDisk().list(str(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("size", [0, 1, 4096, len(ZERO_CHUNK), len(ZERO_CHUNK) + 5])
def test_a_zeroed_file_is_written_out_to_its_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "zeros"
    OsDisk().create_zeroed(str(path), size)
    assert path.read_bytes() == bytes(size)


def test_a_file_is_made_of_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert OsDisk().create(str(path), iter([b"one", b"", b"two"])) == 6
    assert path.read_bytes() == b"onetwo"


def test_creating_replaces_a_longer_leftover(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a long leftover")
    OsDisk().create(str(path), [b"new"])
    assert path.read_bytes() == b"new"


def test_reading_gives_the_first_bytes_or_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    disk = OsDisk()
    assert disk.read(str(path)) == b"0123456789"
    assert disk.read(str(path), 4) == b"0123"
    assert disk.read(str(path), 99) == b"0123456789"


def test_writing_at_a_position_leaves_the_rest_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = OsDisk().open(str(path))
    file.pwrite(b"xyz", 4)
    file.datasync()
    assert file.size() == 10
    file.close()
    assert path.read_bytes() == b"0123xyz789"


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data[:3]), at))
    file = OsDisk().open(str(path))
    file.pwrite(b"12345678", 1)
    file.close()
    assert path.read_bytes() == b"\x0012345678\x00"


@pytest.mark.parametrize(("size", "expected"), [(4, b"0123"), (12, b"0123456789\0\0"), (0, b"")])
def test_truncating_cuts_or_extends(tmp_path: Path, size: int, expected: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = OsDisk().open(str(path))
    file.truncate(size)
    assert file.size() == size
    file.close()
    assert path.read_bytes() == expected


def test_renaming_replaces_and_removing_removes(tmp_path: Path) -> None:
    disk = OsDisk()
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    disk.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    disk.sync_folder(str(tmp_path))
    assert disk.list(str(tmp_path)) == ["b"]
    assert disk.read(str(tmp_path / "b")) == b"a"
    disk.remove(str(tmp_path / "b"))
    disk.sync_folder(str(tmp_path))
    assert disk.list(str(tmp_path)) == []


def test_a_missing_file_is_an_oserror_and_not_made(tmp_path: Path) -> None:
    disk, path = OsDisk(), str(tmp_path / "missing")
    for act in (disk.open, disk.read, disk.remove):
        with pytest.raises(FileNotFoundError):
            act(path)
    assert disk.list(str(tmp_path)) == []
