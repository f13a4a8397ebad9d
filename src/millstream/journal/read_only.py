"""A disk that is only read: recovery can run over it as over any other, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable


class UnchangedFile:
    """Takes what would be written, and writes nothing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def pwrite(self, data: bytes, position: int) -> None:
        raise AssertionError(f"{self._path} is only read")

    def datasync(self) -> None:
        pass

    def truncate(self, size: int) -> None:
        pass

    def size(self) -> int:
        return os.stat(self._path).st_size

    def close(self) -> None:
        pass


class ReadOnlyDisk:
    """What recovery clears away is not seen any more, and stays where it is."""

    def __init__(self) -> None:
        self._hidden: set[str] = set()

    def list(self, folder: str) -> list[str]:
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        return [name for name in names if os.path.join(folder, name) not in self._hidden]

    def create_zeroed(self, path: str, size: int) -> None:
        raise AssertionError(f"{path} is only read")

    def create(self, path: str, parts: Iterable[bytes]) -> int:
        raise AssertionError(f"{path} is only read")

    def open(self, path: str) -> UnchangedFile:
        return UnchangedFile(path)

    def read(self, path: str, size: int = -1) -> bytes:
        with open(path, "rb") as file:
            return file.read(size)

    def rename(self, old: str, new: str) -> None:
        raise AssertionError(f"{old} is only read")

    def remove(self, path: str) -> None:
        self._hidden.add(path)

    def sync_folder(self, folder: str) -> None:
        pass
