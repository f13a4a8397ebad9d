"""Objects as files below one folder.

obstore's own folder store never syncs, so this one is ours. An object is written under `.new`,
synced, and only then given its name, so that no reader sees half of it; what a crash leaves under
`.new` is cleared away later.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence

from millstream.errors import ObjectMissing, ObjectTooShort, StoreUnavailable
from millstream.tier.object_names import ObjectInfo

_NEW = ".new"
_GONE = (FileNotFoundError, NotADirectoryError)
LEFTOVER_SECONDS = 3600.0  # far longer than any write takes: other processes write here too


class ObjectFolder:
    """Raises ObjectMissing, ObjectTooShort and StoreUnavailable only; names are checked already."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._durable = set[str]()  # folders whose names, all the way up, are known to be on disk

    def put(self, name: str, data: bytes) -> None:
        with self._failures("put", name), self._written(data) as new:
            path = self._path_in_durable_folder(name)
            os.replace(new, path)
            sync_folder(os.path.dirname(path))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._failures("put", name), self._written(data) as new:
            path = self._path_in_durable_folder(name)
            try:
                os.link(new, path)
                is_ours = True
            except FileExistsError:
                is_ours = False
            sync_folder(os.path.dirname(path))  # also the other's name: the caller will rely on it
            return is_ours

    def get(self, name: str) -> bytes:
        with self._failures("get", name), open(self._path(name), "rb") as file:
            return file.read()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._failures("get", name), open(self._path(name), "rb", buffering=0) as file:
            data = _pread(file.fileno(), start, length)
            if len(data) < length:
                size = os.fstat(file.fileno()).st_size
                raise ObjectTooShort(
                    f"object {name} is too short: expected bytes {start} to {start + length}, "
                    f"found {size} bytes in all"
                )
            return data

    def size(self, name: str) -> int | None:
        try:
            with self._failures("head", name):
                return os.stat(self._path(name)).st_size
        except ObjectMissing:
            return None

    def delete(self, names: Iterable[str]) -> None:
        changed = set[str]()
        for name in names:
            path = self._path(name)
            with self._failures("delete", name), contextlib.suppress(*_GONE):
                os.unlink(path)
                changed.add(os.path.dirname(path))
        for folder in changed:
            with self._failures("delete", folder):
                sync_folder(folder)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folders = [prefix]
        while folders:
            folder = folders.pop()
            with self._failures("list", folder):
                found, inner = self._look_into(folder)
            folders += inner
            yield from found

    def _look_into(self, folder: str) -> tuple[Sequence[ObjectInfo], Sequence[str]]:
        """The objects of one folder, and the folders in it; none when there is no such folder."""
        found, inner = list[ObjectInfo](), list[str]()
        with contextlib.suppress(*_GONE), os.scandir(self._path(folder)) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner.append(name)
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    status = entry.stat()
                    modified_ms = status.st_mtime_ns // 1_000_000
                    found.append(ObjectInfo(name, status.st_size, modified_ms))
        return found, inner

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root

    def _path_in_durable_folder(self, name: str) -> str:
        path = self._path(name)
        self._make_durable(os.path.dirname(path))
        return path

    def _make_durable(self, folder: str) -> None:
        """The folder is there and its name is on disk, and so are those above it.

        A folder that exists may still be news to the disk: its maker of a moment ago may not
        have synced it yet. So the first use in this process syncs, always.
        """
        if folder in self._durable:
            return
        above = os.path.dirname(folder)
        if folder != self.root:
            self._make_durable(above)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            sync_folder(above)
        else:
            _make_root(folder)
        self._durable.add(folder)

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[str]:
        """The path of a new synced file with this content; gone after the block."""
        folder = os.path.join(self.root, _NEW)
        if folder not in self._durable:
            self._make_durable(folder)
            _clear_leftovers(folder)
        path = os.path.join(folder, secrets.token_hex(8))
        try:
            with open(path, "xb", buffering=0) as file:
                _write_all(file.fileno(), data)
                os.fsync(file.fileno())
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @contextlib.contextmanager
    def _failures(self, operation: str, name: str) -> Iterator[None]:
        try:
            yield
        except (ObjectMissing, ObjectTooShort, StoreUnavailable):
            raise
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if operation in ("get", "head"):
                raise ObjectMissing(f"there is no object {name} in {self.root}") from error
            self._durable.clear()  # a folder was removed; the next put makes it again
            raise self._unavailable(operation, name, error) from error
        except OSError as error:
            raise self._unavailable(operation, name, error) from error

    def _unavailable(self, operation: str, name: str, error: OSError) -> StoreUnavailable:
        ours = StoreUnavailable(
            f"cannot {operation} object {name} in {self.root}: {error.strerror or error}"
        )
        ours.errno = error.errno
        return ours


def _make_root(folder: str) -> None:
    above = os.path.dirname(folder)
    if not os.path.isdir(folder):
        if not os.path.isdir(above):
            _make_root(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    with contextlib.suppress(PermissionError):  # then it is not we who made the folder
        sync_folder(above)


def _clear_leftovers(folder: str) -> None:
    """Removes what writers that died left behind. No writer takes as long as this waits."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > LEFTOVER_SECONDS:
                    os.unlink(entry.path)


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def _pread(fd: int, start: int, length: int) -> bytes:
    """All of it, or less at the end of the file."""
    data = os.pread(fd, length, start)
    if len(data) == length:
        return data
    parts = [data]
    done = len(data)
    while data and done < length:
        data = os.pread(fd, length - done, start + done)
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
