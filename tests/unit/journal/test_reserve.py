"""Room that is kept for the day when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millstream.journal.reserve import Reserve

SIZE = 1 << 20


def kept(folder: Path) -> int:
    """Bytes that the disk has set aside for it, not only its length."""
    path = folder / "reserve"
    return path.stat().st_blocks * 512 if path.exists() else 0


def fail_with(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(fd: int, start: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)


def test_it_takes_room_and_gives_it_back(tmp_path: Path) -> None:
    reserve = Reserve(str(tmp_path), SIZE)
    reserve.release()
    reserve.take()
    reserve.take()
    assert kept(tmp_path) >= SIZE
    reserve.release()
    assert not (tmp_path / "reserve").exists()


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    Reserve(str(tmp_path), SIZE).take()
    again = Reserve(str(tmp_path), 2 * SIZE)
    again.take()
    assert kept(tmp_path) >= 2 * SIZE
    again.release()
    assert kept(tmp_path) == 0


def test_without_room_there_is_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(str(tmp_path), SIZE)
    fail_with(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        reserve.take()
    assert not (tmp_path / "reserve").exists()
    assert reserve.size == SIZE


def test_a_file_system_that_cannot_do_it_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(str(tmp_path), SIZE)
    fail_with(monkeypatch, errno.EOPNOTSUPP)
    reserve.take()
    assert reserve.size == 0
    assert not (tmp_path / "reserve").exists()


def test_none_is_kept_when_none_is_wanted(tmp_path: Path) -> None:
    Reserve(str(tmp_path), 0).take()
    assert not list(tmp_path.iterdir())


def test_a_start_gives_it_back_only_when_the_disk_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(str(tmp_path), SIZE)
    reserve.release_if_needed()
    reserve.take()
    reserve.release_if_needed()
    assert kept(tmp_path) >= SIZE
    monkeypatch.setattr(reserve, "free_bytes", lambda: SIZE - 1)
    reserve.release_if_needed()
    assert not (tmp_path / "reserve").exists()
