"""Percentiles, spreads over repeats, and what the bare disk can do."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
RECORD_BYTES = 300
"""A 256-byte append with its frame, as a log would write it."""


@dataclass(frozen=True)
class Spread:
    """One figure over all repeats."""

    min: float
    median: float
    max: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        ends = (min(values), statistics.median(values), max(values))
        return cls(*(round(value, 3) for value in ends))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank in a sequence that is sorted already and not empty."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def filesystem_of(path: Path) -> str:
    """The type of the file system that holds `path`, as the kernel's mount table names it."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def require_real_disk(path: Path) -> None:
    """Refuse a directory in memory: fdatasync costs nothing there and every figure would lie."""
    filesystem = filesystem_of(path)
    if filesystem in MEMORY_FILESYSTEMS:
        raise BenchError(f"{path} is on {filesystem}, not on a disk; choose another --work-dir")


def fdatasync_p50_us(directory: Path, writes: int = 300) -> float:
    """Median of one small write and its fdatasync in a preallocated, zero-filled file."""
    path = directory / "fdatasync.probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, bytes(writes * RECORD_BYTES))
        os.fsync(descriptor)
        return statistics.median(_timed_writes(descriptor, writes)) / 1000
    finally:
        os.close(descriptor)
        path.unlink()


def _timed_writes(descriptor: int, writes: int) -> list[int]:
    record = b"r" * RECORD_BYTES
    nanoseconds = []
    for index in range(writes):
        started = time.perf_counter_ns()
        os.pwrite(descriptor, record, index * RECORD_BYTES)
        os.fdatasync(descriptor)
        nanoseconds.append(time.perf_counter_ns() - started)
    return nanoseconds
