"""What an object may be called, the same on every kind of store."""

from __future__ import annotations

from typing import NamedTuple

NAME_BYTES_MAX = 900  # S3 allows 1024 with the prefix of the store
SEGMENT_BYTES_MAX = 255  # what a file system takes


class ObjectInfo(NamedTuple):
    name: str
    size: int
    modified_ms: int


def check_name(name: str) -> str:
    """The name itself. Raises ValueError for one that some store would refuse or change."""
    if not name:
        raise ValueError("an object needs a name")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"object name {name!r} is longer than {NAME_BYTES_MAX} bytes")
    for segment in name.split("/"):
        _check_segment(name, segment)
    return name


def _check_segment(name: str, segment: str) -> None:
    if not segment:
        raise ValueError(f"object name {name!r} has an empty segment")
    if segment.startswith("."):
        raise ValueError(f"object name {name!r} has a segment that starts with a dot")
    if len(segment.encode()) > SEGMENT_BYTES_MAX:
        raise ValueError(f"object name {name!r} has a segment over {SEGMENT_BYTES_MAX} bytes")
    if "\\" in segment or not segment.isprintable():
        raise ValueError(f"object name {name!r} has a backslash or a control character")


def check_prefix(prefix: str) -> str:
    """A folder of names, without the slash at its end; the empty one holds everything."""
    folder = prefix.removesuffix("/")
    if prefix:
        check_name(folder)
    return folder
