from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.errors import StartupError
from millstream.journal.folder import DataFolder


def test_a_new_folder_gets_an_identity_and_its_parents(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "data")
    identity = json.loads((tmp_path / "a" / "data" / "millstream.json").read_text())
    assert identity == {"format": 2, "store_id": folder.store_id}
    assert len(folder.store_id) == 32
    assert folder.store_id.isascii()
    folder.close()


def test_the_identity_stays_from_run_to_run(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    first.close()
    second = DataFolder(tmp_path)
    second.close()
    assert first.store_id == second.store_id


def test_two_folders_are_two_stores(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "a"), DataFolder(tmp_path / "b")
    assert first.store_id != second.store_id
    first.close()
    second.close()


def test_log_and_checkpoints_live_inside(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.wal == str(tmp_path / "wal")
    assert folder.checkpoints == str(tmp_path / "checkpoints")
    folder.close()


def test_a_folder_in_use_is_refused_until_it_is_let_go(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    with pytest.raises(StartupError, match="in use by another process"):
        DataFolder(tmp_path)
    first.close()
    DataFolder(tmp_path).close()


@pytest.mark.parametrize(
    "identity",
    [
        b"",
        b"junk",
        b"[]",
        b"{}",
        b"null",
        b'{"format": 1}',
        b'{"store_id": "x"}',
        b'{"format": "x", "store_id": "y"}',
        b"\xff",
    ],
)
def test_a_junk_identity_is_refused_and_the_folder_let_go(tmp_path: Path, identity: bytes) -> None:
    (tmp_path / "millstream.json").write_bytes(identity)
    for _ in range(2):  # the second time it would be in use if the first had kept the lock
        with pytest.raises(StartupError, match="not a Millstream identity file"):
            DataFolder(tmp_path)
    assert (tmp_path / "millstream.json").read_bytes() == identity


@pytest.mark.parametrize("store_id", ["", "xyz", "ab", "0" * 64, "A" * 32])
def test_an_identity_that_no_log_can_carry_is_refused(tmp_path: Path, store_id: str) -> None:
    (tmp_path / "millstream.json").write_text(json.dumps({"format": 2, "store_id": store_id}))
    with pytest.raises(StartupError):
        DataFolder(tmp_path).close()


def test_a_folder_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "millstream.json").write_text(json.dumps({"format": 3, "store_id": "a" * 32}))
    with pytest.raises(StartupError, match="run a newer Millstream"):
        DataFolder(tmp_path)


def test_a_folder_from_before_the_cold_tier_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "millstream.json").write_text(json.dumps({"format": 1, "store_id": "a" * 32}))
    with pytest.raises(StartupError, match="from before there was a cold tier"):
        DataFolder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"millstream.json", "lock"}


@pytest.mark.parametrize("leftover", ["wal", "checkpoints", "catalog"])
def test_data_without_an_identity_is_not_taken_over(tmp_path: Path, leftover: str) -> None:
    (tmp_path / leftover).mkdir()
    with pytest.raises(StartupError, match=leftover):
        DataFolder(tmp_path)
    assert not (tmp_path / "millstream.json").exists()


def test_a_half_written_identity_is_no_identity(tmp_path: Path) -> None:
    (tmp_path / "millstream.json.new").write_bytes(b'{"for')
    folder = DataFolder(tmp_path)
    assert json.loads((tmp_path / "millstream.json").read_text())["store_id"] == folder.store_id
    folder.close()


def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "millstream.json").mkdir()
    with pytest.raises(StartupError, match="cannot read"):
        DataFolder(tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot use"):
        DataFolder(tmp_path / "file")
    with pytest.raises(StartupError, match="cannot use"):
        DataFolder(tmp_path / "file" / "below")
