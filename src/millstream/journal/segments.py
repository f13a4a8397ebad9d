"""The log files: write a batch, roll to the next file, retire what a checkpoint covers, reuse it.

Everything here is synchronous and runs on the journal's own threads. The layout is drawn in
docs/formats/wal.md.
"""

from __future__ import annotations

import errno
import os.path
import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import StorageFull
from millstream.formats.wal import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
)
from millstream.journal.disk import Disk, File
from millstream.limits import FULL_DISK_LOG_BYTES

SEGMENT_SUFFIX = ".wal"
SPARE_PREFIX = "spare-"
SPARES_MAX = 2  # one to roll into while the next is prepared; more only holds disk space


class Sealed(NamedTuple):
    """A segment nothing is written to any more."""

    segment: int
    last_lsn: int
    size: int


def segment_name(segment: int) -> str:
    return f"{segment:016d}{SEGMENT_SUFFIX}"


class SegmentWriter:
    """Appends batches to the log. One thread writes; preparing and retiring may run beside it."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        store_id: str,
        segment_bytes: int,
        *,
        next_segment: int,
        next_lsn: int,
        sealed: Sequence[Sealed] = (),
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self.salt = secrets.randbits(64)  # of every segment this writer starts
        self._segment_bytes = segment_bytes
        self._next_segment = next_segment
        self.next_lsn = next_lsn
        self._sealed = list(sealed)
        self._file: File | None = None
        self._position = 0
        self._size = 0
        self._lock = threading.Lock()  # guards the spares, the sealed list and the spare numbers
        self._spares: list[str] = []
        self._next_spare = 1
        self.is_frugal = False  # the disk is full: no file is made larger than it has to be
        for name in disk.list(folder):
            if name.startswith(SPARE_PREFIX):
                disk.remove(self._path(name))  # may be half-zeroed; making a new one is cheap

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    @property
    def segment(self) -> int:
        """Number of the segment written last; 0 before the first."""
        return self._next_segment - 1

    @property
    def log_bytes(self) -> int:
        """Size of all segments, the current one up to where it is written."""
        with self._lock:
            return sum(sealed.size for sealed in self._sealed) + self._position

    def write_batch(self, payloads: Sequence[bytes]) -> int:
        """Makes the payloads durable as one batch; its size. The last lsn is next_lsn - 1.

        Raises StorageFull when there is no room for the next file: then nothing was written and the
        batch may be tried again. Any other OSError leaves the outcome unknown: stop and recover.
        """
        batch = encode_batch(payloads, self.next_lsn, self.salt)
        self.write_encoded(batch, len(payloads))
        return len(batch)

    def write_encoded(self, batch: bytes, records: int) -> None:
        """The same for a batch that was encoded with `next_lsn` and `salt` before."""
        if self._file is None or self._position + len(batch) > self._size:
            self._roll(len(batch))
        assert self._file is not None
        self._file.pwrite(batch, self._position)
        self._file.datasync()
        self._position += len(batch)
        self.next_lsn += records

    def write_parts(self, parts: Sequence[bytes], records: int) -> int:
        """The same for a batch in parts, which are not copied together; its size."""
        size = sum(map(len, parts))
        if self._file is None or self._position + size > self._size:
            self._roll(size)
        assert self._file is not None
        position = self._position
        for part in parts:
            self._file.pwrite(part, position)
            position += len(part)
        self._file.datasync()
        self._position = position
        self.next_lsn += records
        return size

    def _roll(self, batch_bytes: int) -> None:
        """Starts the next segment. Every record before it is durable already."""
        spare, size = self._find_file(SEGMENT_HEADER_BYTES + batch_bytes)
        name = segment_name(self._next_segment)
        file = self._disk.open(self._path(spare))
        header = SegmentHeader(self._next_segment, self.next_lsn, self.salt, self._store_id)
        file.pwrite(encode_segment_header(header), 0)
        file.datasync()
        self._disk.rename(self._path(spare), self._path(name))
        self._disk.sync_folder(self._folder)
        self._seal_current()
        self._file, self._size = file, size
        self._position = SEGMENT_HEADER_BYTES
        self._next_segment += 1

    def _find_file(self, bytes_min: int) -> tuple[str, int]:
        """A zeroed file that the next segment can be, and its size."""
        if bytes_min <= self._segment_bytes:
            with self._lock:
                if self._spares:
                    return self._spares.pop(0), self._segment_bytes
        usual = self._segment_bytes
        if self.is_frugal:
            usual = min(usual, FULL_DISK_LOG_BYTES)
        size = max(usual, bytes_min)
        return self._create_spare(size), size

    @property
    def has_spare(self) -> bool:
        with self._lock:
            return bool(self._spares)

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    def _create_spare(self, size: int) -> str:
        with self._lock:
            name = f"{SPARE_PREFIX}{self._next_spare:016d}"
            self._next_spare += 1
        try:
            self._disk.create_zeroed(self._path(name), size)
        except OSError as error:
            self._remove_quietly(name)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
                raise StorageFull(
                    f"no room for the next log file ({error.strerror}); free some disk space"
                ) from error
            raise
        return name

    def _remove_quietly(self, name: str) -> None:
        try:
            self._disk.remove(self._path(name))
        except OSError:
            pass

    def _seal_current(self) -> None:
        if self._file is not None:
            self._file.close()
            with self._lock:
                self._sealed.append(Sealed(self._next_segment - 1, self.next_lsn - 1, self._size))
            self._file = None

    def prepare_spare(self) -> None:
        """Zeroes a file ahead of the next roll, so that the roll does not wait for it."""
        if self.has_spare or self.is_frugal:
            return
        try:
            name = self._create_spare(self._segment_bytes)
        except StorageFull:
            return  # the roll will try again and tell its caller
        with self._lock:
            self._spares.append(name)

    def retire(self, lsn: int) -> None:
        """Lets go of sealed segments that hold nothing above `lsn`, oldest first."""
        while True:
            with self._lock:
                if not self._sealed or self._sealed[0].last_lsn > lsn:
                    return
                oldest = self._sealed.pop(0)
                reuse = oldest.size == self._segment_bytes and len(self._spares) < SPARES_MAX
                name = f"{SPARE_PREFIX}{self._next_spare:016d}"
                self._next_spare += 1
            path = self._path(segment_name(oldest.segment))
            if not reuse:
                self._disk.remove(path)
                self._disk.sync_folder(self._folder)
                continue
            # Its old records stay inside; their lsns are lower than any that recovery will expect.
            self._disk.rename(path, self._path(name))
            self._disk.sync_folder(self._folder)
            with self._lock:
                self._spares.append(name)

    def close(self) -> None:
        self._seal_current()
