"""Blobs: snapshots, stored whole under a name before anything refers to them.

A blob that nothing refers to is garbage, whether it was never published or is superseded; the store
does not know, its user deletes. All calls may block: run them off the event loop.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from millstream.errors import ObjectMissing
from millstream.tier.object_kinds import SNAPSHOTS
from millstream.tier.object_names import check_prefix
from millstream.tier.objects import ObjectStore


def snapshot_digest(content_type: bytes, data: bytes) -> str:
    """What tells two snapshots apart: SHA-256 of content type, with its length, and data."""
    digest = hashlib.sha256(b"%d " % len(content_type) + content_type)
    digest.update(data)
    return digest.hexdigest()


class BlobStore(Protocol):
    def store(self, name: str, data: bytes) -> None:
        """Durable when this returns."""
        ...

    def load(self, name: str) -> bytes | None:
        """None when there is no such blob (any more)."""
        ...

    def delete(self, name: str) -> None:
        """Gone, also when it was gone already."""
        ...

    def names(self) -> list[str]: ...


class MemoryBlobs:
    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def store(self, name: str, data: bytes) -> None:
        self._blobs[name] = data

    def load(self, name: str) -> bytes | None:
        return self._blobs.get(name)

    def delete(self, name: str) -> None:
        self._blobs.pop(name, None)

    def names(self) -> list[str]:
        return list(self._blobs)


class ObjectBlobs:
    """One object per blob below a folder of names. Raises what the store raises: OSErrors."""

    def __init__(self, store: ObjectStore, prefix: str = SNAPSHOTS) -> None:
        self._store = store
        self._prefix = check_prefix(prefix) + "/"

    def store(self, name: str, data: bytes) -> None:
        self._store.put(self._prefix + name, data)

    def load(self, name: str) -> bytes | None:
        try:
            return self._store.get(self._prefix + name)
        except ObjectMissing:
            return None

    def delete(self, name: str) -> None:
        self._store.delete([self._prefix + name])

    def names(self) -> list[str]:
        found = self._store.list(self._prefix)
        return sorted(info.name.removeprefix(self._prefix) for info in found)
