"""What this process has of the system's memory, and giving back what it does not use."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import NamedTuple

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


class ProcessMemory(NamedTuple):
    """In bytes, as the system counts them."""

    resident: int = 0
    resident_max: int = 0  # since the process began
    anonymous: int = 0  # of what is resident: the heap, stacks
    mapped_files: int = 0
    shared: int = 0


_FIELDS = {
    b"VmRSS": "resident",
    b"VmHWM": "resident_max",
    b"RssAnon": "anonymous",
    b"RssFile": "mapped_files",
    b"RssShmem": "shared",
}


def load_process_memory() -> ProcessMemory:
    """Zeros where the system does not tell."""
    found = {}
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in _STATUS.read_bytes().splitlines():
            name, _, value = line.partition(b":")
            if name in _FIELDS:
                found[_FIELDS[name]] = int(value.split()[0]) * 1024
    return ProcessMemory(**found)


def return_unused() -> None:
    """Freed pages anywhere in the heap, too, which glibc keeps otherwise. Some milliseconds."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return
    trim(0)
