"""Room that is kept for the day when the disk is full.

A file in the data folder that is never read. Giving it back makes room for what frees more:
deletions in the log, the checkpoint that lets the log go, the catalog that knows what is garbage.
"""

from __future__ import annotations

import errno
import os
import threading

import structlog

logger = structlog.get_logger("millstream.journal")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOT_POSSIBLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # on this file system


class Reserve:
    """May be called from any thread."""

    def __init__(self, folder: str, bytes_wanted: int) -> None:
        """A small disk keeps a smaller one: an eighth of it at most."""
        self._folder = folder
        self._path = os.path.join(folder, "reserve")
        self._bytes_wanted = bytes_wanted
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        space = os.statvfs(self._folder)
        return min(self._bytes_wanted, space.f_blocks * space.f_frsize // 8)

    def free_bytes(self) -> int:
        """What the disk has left beside it."""
        space = os.statvfs(self._folder)
        return space.f_bavail * space.f_frsize

    def take(self) -> None:
        """Raises OSError when there is no room for it; then there is none of it.

        A file system that cannot set room aside goes without: everything else works as well.
        """
        size = self.size
        with self._lock:
            if not size or self._held_bytes() >= size:
                return
            try:
                fd = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(fd, 0, size)
                finally:
                    os.close(fd)
            except OSError as error:
                self._remove()
                if error.errno not in NOT_POSSIBLE:
                    raise
                self._bytes_wanted = 0
                logger.warning("no room can be kept for a full disk", error=str(error))

    def release(self) -> None:
        with self._lock:
            self._remove()

    def release_if_needed(self) -> None:
        """When the disk has less left than this: a start that may be refused changes nothing."""
        if os.path.exists(self._path) and self.free_bytes() < self.size:
            self.release()

    def _held_bytes(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _remove(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            pass
