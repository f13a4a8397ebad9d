"""A disk in memory: it keeps apart what was written and what is durable, and fails when told to.

`crash()` is the disk another process would find after a power cut that kept nothing unsynced.
tests/crash has the one that loses power in every ugly way.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable


class FakeInode:
    def __init__(self, path: str) -> None:
        self.path = path
        self.content = bytearray()
        self.durable = b""

    def sync(self) -> None:
        self.durable = bytes(self.content)


class FakeFile:
    def __init__(self, disk: FakeDisk, path: str) -> None:
        self._disk, self._inode = disk, disk.files[path]

    def _step(self, operation: str) -> None:
        self._disk.step(operation, self._inode.path)

    def pwrite(self, data: bytes, position: int) -> None:
        self._step("pwrite")
        content = self._inode.content
        content.extend(bytes(max(0, position + len(data) - len(content))))
        content[position : position + len(data)] = data

    def datasync(self) -> None:
        self._step("datasync")
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._step("truncate")
        self._inode.content[:] = self._inode.content[:size].ljust(size, b"\0")
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.content)

    def close(self) -> None:
        self._step("close")


class FakeDisk:
    def __init__(self) -> None:
        self.files: dict[str, FakeInode] = {}
        self.durable_names: dict[str, FakeInode] = {}
        self.steps: list[tuple[str, str]] = []  # operation and file name, in order
        self.failing: dict[str, OSError] = {}  # operation -> what it raises
        self.before_step: Callable[[str], None] | None = None

    def step(self, operation: str, path: str) -> None:
        if self.before_step is not None:
            self.before_step(operation)
        if operation in self.failing:
            raise self.failing[operation]
        self.steps.append((operation, os.path.basename(path)))

    def names(self, folder: str) -> list[str]:
        """What `list` says, without counting as a step."""
        return sorted(os.path.basename(p) for p in self.files if os.path.dirname(p) == folder)

    def crash(self) -> FakeDisk:
        after = FakeDisk()
        for path, inode in self.durable_names.items():
            found = FakeInode(path)
            found.content = bytearray(inode.durable)
            found.sync()
            after.files[path] = after.durable_names[path] = found
        return after

    # The port

    def list(self, folder: str) -> list[str]:
        self.step("list", folder)
        return self.names(folder)

    def create_zeroed(self, path: str, size: int) -> None:
        self.files[path] = FakeInode(path)  # a full disk still takes the name
        self.step("create_zeroed", path)
        self.files[path].content = bytearray(size)
        self.files[path].sync()

    def create(self, path: str, parts: Iterable[bytes]) -> int:
        self.files[path] = FakeInode(path)
        self.step("create", path)
        self.files[path].content = bytearray(b"".join(parts))
        self.files[path].sync()
        return len(self.files[path].content)

    def open(self, path: str) -> FakeFile:
        self.step("open", path)
        return FakeFile(self, path)

    def read(self, path: str, size: int = -1) -> bytes:
        self.step("read", path)
        content = bytes(self.files[path].content)
        return content if size < 0 else content[:size]

    def rename(self, old: str, new: str) -> None:
        self.step("rename", new)
        self.files[new] = self.files.pop(old)
        self.files[new].path = new

    def remove(self, path: str) -> None:
        self.step("remove", path)
        del self.files[path]

    def sync_folder(self, folder: str) -> None:
        self.step("sync_folder", folder)
        kept = {p: i for p, i in self.durable_names.items() if os.path.dirname(p) != folder}
        found = {p: i for p, i in list(self.files.items()) if os.path.dirname(p) == folder}
        self.durable_names = kept | found
