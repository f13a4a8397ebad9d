"""A disk that is small enough to be filled: a tmpfs, so this needs root."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

BALLAST = ".ballast"
PIECE_BYTES = 4096


class SmallDisk:
    """Mounted at `folder`, which keeps what it held."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder, self.size_bytes = folder, size_bytes

    def mount(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        before = self.folder.with_name(self.folder.name + ".before")
        shutil.copytree(self.folder, before)
        options = f"size={self.size_bytes},mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)
        shutil.copytree(before, self.folder, dirs_exist_ok=True)
        shutil.rmtree(before)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def fill(self, free_bytes: int = 0) -> None:
        """Until only so much is left."""
        space = os.statvfs(self.folder)
        left = space.f_bavail * space.f_frsize - free_bytes
        with (self.folder / BALLAST).open("ab", buffering=0) as file:
            while left > 0:
                try:
                    left -= file.write(b"\1" * min(PIECE_BYTES, left))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def free(self) -> None:
        (self.folder / BALLAST).unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    disk = SmallDisk(folder, size_bytes)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()
