"""The data folder: what it is, who uses it, and whether this program can read it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from pathlib import Path

from millstream.errors import FolderInUse, StartupError
from millstream.journal.disk import OsDisk, make_folder

FORMAT = 2
IDENTITY_FILE = "millstream.json"
LOCK_FILE = "lock"
_PARTS = ("wal", "checkpoints", "catalog")
_STORE_ID = re.compile("[0-9a-f]{32}")


class Places:
    """Where the parts of a data folder are."""

    path: Path
    store_id: str

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


class DataFolder(Places):
    """Locked for this process from construction to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = _lock(path)
        try:
            self.store_id = load_identity(path) or self._create_identity()
        except BaseException:
            os.close(self._lock_fd)
            raise

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

    def close(self) -> None:
        os.close(self._lock_fd)


class ReadFolder(Places):
    """To be looked at only. While it is open no server can start on it; nothing in it is changed.

    `store_id` is for the caller to set, once it is known.
    """

    def __init__(self, path: Path) -> None:
        """Raises StartupError when there is no store here, FolderInUse when a server uses it."""
        self.path = path
        self._lock_fd: int | None = None
        if not any((path / name).exists() for name in (IDENTITY_FILE, *_PARTS)):
            raise StartupError(f"{path} holds no store; check --data-dir")
        try:
            self._lock_fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # a copy of a folder: no server has it open
        except OSError as error:
            raise StartupError(f"cannot read {path / LOCK_FILE}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise FolderInUse(path) from error

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


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


def load_identity(path: Path) -> str | None:
    """Which store the folder says it holds; None: it does not say. Raises StartupError."""
    file = path / IDENTITY_FILE
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
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
            f"data folder {path} has format {written_format}, this program reads up to "
            f"{FORMAT}; run a newer Millstream"
        )
    if written_format < FORMAT:
        raise StartupError(
            f"data folder {path} has format {written_format} from before there was a "
            "cold tier; copy its streams with a Millstream of that time, or choose another "
            "--data-dir"
        )
    return store_id


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
        raise FolderInUse(path) from error
    return lock_fd


def _store_identity(path: Path, store_id: str) -> None:
    disk = OsDisk()
    identity = json.dumps({"format": FORMAT, "store_id": store_id}).encode() + b"\n"
    temporary = str(path / (IDENTITY_FILE + ".new"))
    disk.create(temporary, [identity])
    disk.rename(temporary, str(path / IDENTITY_FILE))
    disk.sync_folder(str(path))
