"""The object store: a folder, S3, or what else there is, behind one set of calls.

Everything here blocks and may be called from any thread, and works the same in an executor of the
pipeline as in the server. Next door: remote_objects.py and object_folder.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from millstream.errors import ObjectMissing, ObjectTooShort, StoreRefused, StoreUnavailable
from millstream.tier.cold_settings import ColdSettings, cold_settings
from millstream.tier.object_folder import ObjectFolder
from millstream.tier.object_names import ObjectInfo, check_name, check_prefix
from millstream.tier.remote_objects import DELETE_NAMES_MAX, RemoteObjects

__all__ = [
    "ColdSettings",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectTooShort",
    "StoreRefused",
    "StoreUnavailable",
    "cold_settings",
]


class ObjectStore:
    """Objects by name. Raises StoreUnavailable, StoreRefused, ObjectMissing and ObjectTooShort,
    all of them OSErrors; a name no store should see is a ValueError."""

    def __init__(self, settings: ColdSettings) -> None:
        """Does not reach for the store yet. Raises StartupError for settings it cannot use."""
        self.settings = settings
        self.requests = dict.fromkeys(("put", "get", "head", "delete", "list"), 0)
        self.bytes_in = 0  # read from the store
        self.bytes_out = 0  # written to it
        self._counting = threading.Lock()
        folder = _folder_of(settings.url)
        self._objects: ObjectFolder | RemoteObjects
        if folder is None:
            self._objects = RemoteObjects(settings, self._count)
        else:
            self._objects = ObjectFolder(folder)
        self._is_folder = folder is not None

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[ColdSettings]]:
        return ObjectStore, (self.settings,)

    def put(self, name: str, data: bytes) -> None:
        """Durable when this returns, its size verified; no reader ever sees half of it."""
        check_name(name)
        self._count_local("put")
        self._objects.put(name, data)
        self._count_bytes(bytes_out=len(data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Whether the object is ours now; like `put` if so, unchanged if not.

        When an answer got lost and the object holds exactly `data`, it counts as ours: data that
        has to tell two writers apart must differ between them.
        """
        check_name(name)
        self._count_local("put")
        is_ours = self._objects.put_if_absent(name, data)
        self._count_bytes(bytes_out=len(data))
        return is_ours

    def get(self, name: str) -> bytes:
        check_name(name)
        self._count_local("get")
        data = self._objects.get(name)
        self._count_bytes(bytes_in=len(data))
        return data

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises ObjectTooShort when the object ends before."""
        check_name(name)
        if start < 0 or length < 0:
            raise ValueError(f"no range: start {start}, length {length}")
        if length == 0:
            return b""
        self._count_local("get")
        data = self._objects.get_range(name, start, length)
        assert len(data) == length, (name, start, length, len(data))
        self._count_bytes(bytes_in=length)
        return data

    def size(self, name: str) -> int | None:
        """None when there is no such object."""
        check_name(name)
        self._count_local("head")
        return self._objects.size(name)

    def delete(self, names: Iterable[str]) -> None:
        """Gone, also when they were gone already. When this raises, some of them may be."""
        remaining = map(check_name, names)
        while batch := list(itertools.islice(remaining, DELETE_NAMES_MAX)):
            self._count_local("delete")
            self._objects.delete(batch)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Everything below a folder of names (all of it for ""), in no promised order.

        The deadline is that of one page, not of the whole walk. What is put or deleted meanwhile
        may or may not show up.
        """
        folder = check_prefix(prefix)
        self._count_local("list")
        return self._objects.list(folder)

    def _count_local(self, kind: str) -> None:
        """A folder is asked once per operation; a remote store counts every try itself."""
        if self._is_folder:
            self._count(kind)

    def _count(self, kind: str) -> None:
        with self._counting:
            self.requests[kind] += 1

    def _count_bytes(self, bytes_in: int = 0, bytes_out: int = 0) -> None:
        with self._counting:
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out


def _folder_of(url: str) -> str | None:
    if url.startswith("fs:"):
        return url.removeprefix("fs:")
    if url.startswith("file://"):
        return unquote(url.removeprefix("file://"))
    return None
