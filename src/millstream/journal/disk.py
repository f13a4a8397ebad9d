"""The file system as the journal sees it: a small port, so that tests can crash it at any point.

What has to be made durable is explicit: `datasync` keeps a file's bytes, `sync_folder` keeps the
names in a folder (creations, renames, removals).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol


class File(Protocol):
    def pwrite(self, data: bytes, position: int) -> None:
        """Writes all of it or raises OSError."""
        ...

    def datasync(self) -> None: ...

    def truncate(self, size: int) -> None:
        """Cuts (or extends with zeros) and makes the new size durable."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def list(self, folder: str) -> list[str]:
        """Names in the folder, sorted; creates the folder when it is missing."""
        ...

    def create_zeroed(self, path: str, size: int) -> None:
        """A new file of `size` written-out zeros, durable but for its name. Replaces a leftover."""
        ...

    def create(self, path: str, parts: Iterable[bytes]) -> int:
        """A new file of these parts, durable but for its name; its size. Replaces a leftover."""
        ...

    def open(self, path: str) -> File: ...

    def read(self, path: str, size: int = -1) -> bytes:
        """The first `size` bytes, or all of them."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_folder(self, folder: str) -> None: ...


ZERO_CHUNK = bytes(1 << 20)


def make_folder(folder: str) -> None:
    """The folder and those above it, durable with their names."""
    folder = os.path.abspath(folder)
    if not os.path.isdir(folder):
        make_folder(os.path.dirname(folder))
        os.mkdir(folder)
        OsDisk().sync_folder(os.path.dirname(folder))


class OsFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def pwrite(self, data: bytes, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        while written < len(data):
            written += os.pwrite(self._fd, memoryview(data)[written:], position + written)

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class OsDisk:
    def list(self, folder: str) -> list[str]:
        make_folder(folder)
        return sorted(os.listdir(folder))

    def create_zeroed(self, path: str, size: int) -> None:
        whole, rest = divmod(size, len(ZERO_CHUNK))
        self.create(path, [ZERO_CHUNK] * whole + [ZERO_CHUNK[:rest]])

    def create(self, path: str, parts: Iterable[bytes]) -> int:
        with open(path, "wb", buffering=1 << 20) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def open(self, path: str) -> OsFile:
        return OsFile(path)

    def read(self, path: str, size: int = -1) -> bytes:
        with open(path, "rb") as file:
            return file.read(size)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, folder: str) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
