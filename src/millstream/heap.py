"""Gives memory that was freed back to the system."""

from __future__ import annotations

import ctypes


def return_unused() -> None:
    """Whole pages inside the heap, too; a few milliseconds. Only glibc keeps them otherwise."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return
    trim(0)
