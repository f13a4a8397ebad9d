"""What every place for blobs promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.tier.blobs import BlobStore, MemoryBlobs, ObjectBlobs
from millstream.tier.objects import ColdSettings, ObjectStore

KINDS: dict[str, Callable[[Path], BlobStore]] = {
    "memory": lambda folder: MemoryBlobs(),
    "object": lambda folder: ObjectBlobs(ObjectStore(ColdSettings(f"fs:{folder}"))),
}


@pytest.fixture(params=KINDS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return KINDS[request.param](tmp_path)


def test_a_blob_comes_back_as_it_was_stored(blobs: BlobStore) -> None:
    blobs.store("1-2-ab", b"one")
    blobs.store("1-3-cd", b"")
    assert blobs.load("1-2-ab") == b"one"
    assert blobs.load("1-3-cd") == b""
    assert sorted(blobs.names()) == ["1-2-ab", "1-3-cd"]


def test_storing_again_replaces(blobs: BlobStore) -> None:
    blobs.store("a", b"one")
    blobs.store("a", b"two")
    assert blobs.load("a") == b"two"
    assert blobs.names() == ["a"]


def test_there_is_nothing_before_and_after(blobs: BlobStore) -> None:
    assert blobs.load("a") is None
    assert blobs.names() == []
    blobs.store("a", b"one")
    blobs.delete("a")
    assert blobs.load("a") is None
    assert blobs.names() == []


def test_deleting_what_is_gone_is_fine(blobs: BlobStore) -> None:
    blobs.delete("a")
    blobs.store("a", b"one")
    blobs.delete("a")
    blobs.delete("a")


def test_object_blobs_survive_their_store(tmp_path: Path) -> None:
    KINDS["object"](tmp_path).store("a", b"one")
    assert KINDS["object"](tmp_path).load("a") == b"one"


def test_object_blobs_see_only_what_is_below_their_prefix(tmp_path: Path) -> None:
    store = ObjectStore(ColdSettings(f"fs:{tmp_path}"))
    store.put("segments/a", b"")
    store.put("snapshots-of-others/a", b"")
    blobs = ObjectBlobs(store, "snapshots/")
    blobs.store("b", b"one")
    assert blobs.names() == ["b"]
    assert store.get("snapshots/b") == b"one"
