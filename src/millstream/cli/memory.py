"""How this process asks the system for memory, so that what is let go of goes back there.

Content comes in pieces of up to some MiB and passes through many threads. glibc would keep a heap
for each of them and, once it saw large pieces come and go, stop returning those too. What cold
reads decode must not lie between what stays: holes were half of the heap then. So Arrow has an
allocator of its own, jemalloc, which gives back what was not used for a while; mimalloc, Arrow's
first choice, held 30 MiB more after the same reads, and neither is slower than glibc.

To be imported before anything that loads Arrow: it looks at its variable once, when it is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from millstream.limits import MIB

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

LARGE_BYTES = 4 * MIB  # a piece of this size is mapped alone and unmapped when it is freed: with
# 256 KiB, page faults made encoding a segment take twice as long, to save another 35 MiB
UNUSED_BYTES_MAX = 16 * MIB  # free space at a heap's end beyond this is given back
HEAPS = 2  # one for the event loop, one for all threads beside it

# Not a setting of ours but of Arrow's, and it takes it from nowhere else.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")  # noqa: TID251


def return_freed_memory() -> None:
    """Before threads are started. Does nothing elsewhere than on glibc."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, HEAPS)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, UNUSED_BYTES_MAX)
