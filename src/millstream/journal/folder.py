"""The data folder: what it is, who uses it, and whether this program can read it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from pathlib import Path

from millstream.errors import StartupError
from millstream.journal.disk import OsDisk, make_folder

FORMAT = 2
IDENTITY_FILE = "millstream.json"
LOCK_FILE = "lock"
_PARTS = ("wal", "checkpoints", "catalog")
_STORE_ID = re.compile("[0-9a-f]{32}")


class DataFolder:
    """Locked for this process from construction to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = _lock(path)
        try:
            self.store_id = self._load_identity()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _load_identity(self) -> str:
        file = self.path / IDENTITY_FILE
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return self._create_identity()
        except OSError as error:
            raise StartupError(f"cannot read {file}: {error.strerror}") from error
        try:
            identity = json.loads(text)
            written_format, store_id = int(identity["format"]), str(identity["store_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise StartupError(f"{file} is not a Millstream identity file: {error}") from error
        if not _STORE_ID.fullmatch(store_id):
            raise StartupError(f"{file} is damaged: store_id must be 32 hexadecimal digits")
        if written_format > FORMAT:
            raise StartupError(
                f"data folder {self.path} has format {written_format}, this program reads up to "
                f"{FORMAT}; run a newer Millstream"
            )
        if written_format < FORMAT:
            raise StartupError(
                f"data folder {self.path} has format {written_format} from before there was a "
                "cold tier; copy its streams with a Millstream of that time, or choose another "
                "--data-dir"
            )
        return store_id

    def _create_identity(self) -> str:
        leftovers = [name for name in _PARTS if (self.path / name).exists()]
        if leftovers:
            raise StartupError(
                f"{self.path} has a {leftovers[0]} folder but no {IDENTITY_FILE}; "
                "restore that file or choose another --data-dir"
            )
        store_id = secrets.token_hex(16)
        _store_identity(self.path, store_id)
        return store_id

    @property
    def wal(self) -> str:
        return str(self.path / "wal")

    @property
    def checkpoints(self) -> str:
        return str(self.path / "checkpoints")

    @property
    def catalog(self) -> Path:
        return self.path / "catalog"

    @property
    def cold(self) -> Path:
        return self.path / "cold"

    def close(self) -> None:
        os.close(self._lock_fd)


class NewFolder:
    """A data folder in the making, locked like one. A store is in it once `finish` returned."""

    def __init__(self, path: Path) -> None:
        """Raises StartupError when there is a store already, or something of one."""
        self.path = path
        self._lock_fd = _lock(path)
        for name in (IDENTITY_FILE, *_PARTS):
            if (path / name).exists():
                self.close()
                raise StartupError(f"{path} has a {name} already; choose an empty --data-dir")

    def finish(self, store_id: str) -> None:
        """Everything else is in place; durable when this returns."""
        _store_identity(self.path, store_id)

    def close(self) -> None:
        os.close(self._lock_fd)


def _lock(path: Path) -> int:
    """The file that holds the lock, until it is closed."""
    try:
        make_folder(str(path))
        lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StartupError(f"cannot use {path} as data folder: {error.strerror}") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock_fd)
        raise StartupError(
            f"data folder {path} is in use by another process; stop it or choose another --data-dir"
        ) from error
    return lock_fd


def _store_identity(path: Path, store_id: str) -> None:
    disk = OsDisk()
    identity = json.dumps({"format": FORMAT, "store_id": store_id}).encode() + b"\n"
    temporary = str(path / (IDENTITY_FILE + ".new"))
    disk.create(temporary, [identity])
    disk.rename(temporary, str(path / IDENTITY_FILE))
    disk.sync_folder(str(path))
