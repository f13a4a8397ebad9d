from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from millstream.errors import DamagedBackup
from millstream.formats.layout import StreamId
from millstream.tier.backup import (
    FORMAT,
    Manifest,
    delete_unused,
    extract_file,
    list_manifests,
    load_file,
    load_manifest,
    store_file,
    store_manifest,
)
from millstream.tier.catalog import Changes, StreamRow
from millstream.tier.object_kinds import manifest_name
from millstream.tier.objects import ColdSettings, ObjectStore
from tests.unit.tier.catalog_world import STORE, id_for, open_catalog

SHARDS = 2


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(ColdSettings(f"fs:{tmp_path / 'cold'}"))


def back_up(objects: ObjectStore, folder: Path, lsn: int) -> Manifest:
    """A catalog with one stream at this position, and its manifest in the store."""
    catalog = open_catalog(folder / f"catalog-{lsn}", SHARDS)
    path = b"a/%d" % lsn
    row = StreamRow(StreamId(id_for(path, 1, SHARDS)), path, None, True, 0, b"image")
    catalog.merge(Changes(lsn, [row]))
    files = {}
    for name, shard in catalog.file_names().items():
        assert catalog.back_up(shard, folder / name) == lsn
        files[name] = store_file(objects, lsn, folder / name)
    catalog.close()
    manifest = Manifest(FORMAT, STORE, lsn, SHARDS, 1, files)
    store_manifest(objects, manifest)
    return manifest


def names(objects: ObjectStore) -> set[str]:
    return {info.name for info in objects.list("catalog")}


def test_what_was_stored_comes_back_byte_for_byte(objects: ObjectStore, tmp_path: Path) -> None:
    stored = back_up(objects, tmp_path, 7)
    manifest = load_manifest(objects, 7, STORE)
    assert manifest == stored
    for name, file in manifest.files.items():
        extract_file(file.object, load_file(objects, file), tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == (tmp_path / name).read_bytes()
    db = sqlite3.connect(tmp_path / "copy")
    assert db.execute("SELECT lsn FROM meta").fetchall() == [(7,)]
    db.close()


def test_manifests_are_listed_from_the_newest_on_and_strangers_are_not(
    objects: ObjectStore, tmp_path: Path
) -> None:
    for lsn in (5, 100, 20):
        back_up(objects, tmp_path, lsn)
    objects.put("catalog/manifest-latest.json", b"{}")
    assert list_manifests(objects) == [100, 20, 5]


def test_only_what_the_kept_manifests_name_is_left(objects: ObjectStore, tmp_path: Path) -> None:
    old, new = back_up(objects, tmp_path, 1), back_up(objects, tmp_path, 2)
    shared = {**new.files, "shard-0001.sqlite": old.files["shard-0001.sqlite"]}
    newest = Manifest(FORMAT, STORE, 3, SHARDS, 1, shared)
    store_manifest(objects, newest)
    objects.put("catalog/0000000000000009-shard-0000.sqlite.zst", b"of an upload cut short")
    objects.put("catalog/notes.txt", b"not ours")
    delete_unused(objects, [newest, new])
    kept = {file.object for manifest in (newest, new) for file in manifest.files.values()}
    assert names(objects) == kept | {manifest_name(3), manifest_name(2), "catalog/notes.txt"}


def test_a_manifest_that_is_not_whole_or_not_ours_is_refused(
    objects: ObjectStore, tmp_path: Path
) -> None:
    stored = back_up(objects, tmp_path, 4)
    data = objects.get(manifest_name(4))
    for damaged, problem in (
        (data[:-10], "should be a manifest"),
        (data.replace(b'"lsn": 4', b'"lsn": 5'), "should be 1 5a5a"),
        (data.replace(STORE.encode(), b"77" * 16), "found 1 7777"),
        (data.replace(b"root.sqlite", b"boot.sqlite", 1), "its files should be root.sqlite"),
        (b"\xff" * 10, "should be a manifest"),
    ):
        objects.put(manifest_name(4), damaged)
        with pytest.raises(DamagedBackup, match=problem) as raised:
            load_manifest(objects, 4, STORE)
        assert raised.value.name == manifest_name(4)
    with pytest.raises(DamagedBackup, match="should be there, found nothing"):
        load_manifest(objects, 6, STORE)
    assert stored.files


def test_a_file_that_is_missing_cut_or_changed_is_named(
    objects: ObjectStore, tmp_path: Path
) -> None:
    file = back_up(objects, tmp_path, 4).files["root.sqlite"]
    data = objects.get(file.object)
    objects.put(file.object, data[:-1])
    with pytest.raises(DamagedBackup, match=f"of {len(data)} bytes, found {len(data) - 1} bytes"):
        load_file(objects, file)
    objects.put(file.object, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedBackup, match=f"CRC32C of the object should be {file.crc32c}"):
        load_file(objects, file)
    objects.delete([file.object])
    with pytest.raises(DamagedBackup, match="found nothing"):
        load_file(objects, file)


def test_bytes_that_are_no_zstd_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedBackup, match="should be zstd"):
        extract_file("catalog/x.zst", b"plain text", tmp_path / "out")
