"""The catalog in the cold store: copies of its files, and manifests that say which belong together.

    catalog/{lsn}-shard-0003.sqlite.zst   a copy of one file, compressed
    catalog/manifest-{lsn}.json           every file of the catalog as of that position

A manifest is stored last and names every file, so one that is there is whole. A file that did not
change since the manifest before is named again, not stored again. docs/formats/catalog.md has the
fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from millstream.errors import DamagedBackup, ObjectMissing
from millstream.formats.wal import crc32c
from millstream.limits import MIB
from millstream.tier.catalog_files import ROOT_NAME, shard_name
from millstream.tier.object_kinds import (
    CATALOG_COPIES,
    CopyName,
    ManifestName,
    copy_name,
    manifest_name,
    parse_name,
)
from millstream.tier.objects import ObjectStore

FORMAT = 1
MANIFESTS_KEPT = 2  # the newest, and the one before it in case an object of it is damaged


class BackedUpFile(msgspec.Struct, frozen=True):
    object: str
    size: int  # of the object
    crc32c: str  # of the object's bytes, eight hexadecimal digits


class Manifest(msgspec.Struct, frozen=True):
    format: int
    store_id: str
    lsn: int
    shards: int
    created_ms: int
    files: dict[str, BackedUpFile]  # by their name in the catalog's folder


_decoder = msgspec.json.Decoder(Manifest)


# Storing


def store_file(objects: ObjectStore, lsn: int, path: Path) -> BackedUpFile:
    """Uploads the copy at `path`, which keeps the name it has in the catalog."""
    data = _compress(path)
    name = copy_name(lsn, path.name)
    objects.put(name, data)
    return BackedUpFile(name, len(data), f"{crc32c(data):08x}")


def _compress(path: Path) -> bytes:
    sink = pa.BufferOutputStream()
    with path.open("rb") as file, pa.CompressedOutputStream(sink, "zstd") as compressed:
        while piece := file.read(MIB):
            compressed.write(piece)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def store_manifest(objects: ObjectStore, manifest: Manifest) -> None:
    """From now on the files it names can be restored together."""
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    objects.put(manifest_name(manifest.lsn), encoded + b"\n")


def delete_unused(objects: ObjectStore, kept: Sequence[Manifest]) -> None:
    """Older manifests go first: none that is there ever lacks a file."""
    named = {manifest_name(manifest.lsn) for manifest in kept}
    named |= {file.object for manifest in kept for file in manifest.files.values()}
    found = [info.name for info in objects.list(CATALOG_COPIES) if info.name not in named]
    objects.delete(name for name in found if isinstance(parse_name(name), ManifestName))
    objects.delete(name for name in found if isinstance(parse_name(name), CopyName))


# Loading


def list_manifests(objects: ObjectStore) -> list[int]:
    """Their positions, the newest first."""
    found = (parse_name(info.name) for info in objects.list(CATALOG_COPIES))
    return sorted((name.lsn for name in found if isinstance(name, ManifestName)), reverse=True)


def load_manifest(objects: ObjectStore, lsn: int, store_id: str) -> Manifest:
    """Raises DamagedBackup unless it is whole and of this store."""
    name = manifest_name(lsn)
    try:
        manifest = _decoder.decode(objects.get(name))
    except ObjectMissing:
        raise DamagedBackup(name, "the object", "there", "nothing") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedBackup(name, "the object", "a manifest", str(error)) from error
    expected = (FORMAT, store_id, lsn)
    found = (manifest.format, manifest.store_id, manifest.lsn)
    if found != expected:
        place = "format, store and position"
        raise DamagedBackup(name, place, _spaced(expected), _spaced(found))
    files = {shard_name(shard) for shard in range(manifest.shards)} | {ROOT_NAME}
    if manifest.files.keys() != files:
        raise DamagedBackup(name, "its files", _spaced(sorted(files)), _spaced(manifest.files))
    return manifest


def _spaced(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def load_file(objects: ObjectStore, file: BackedUpFile) -> bytes:
    """The object's bytes, once they are those that were stored. Raises DamagedBackup."""
    try:
        data = objects.get(file.object)
    except ObjectMissing:
        raise DamagedBackup(file.object, "the object", "there", "nothing") from None
    if len(data) != file.size:
        expected, found = f"of {file.size} bytes", f"{len(data)} bytes"
        raise DamagedBackup(file.object, "the object", expected, found)
    crc = f"{crc32c(data):08x}"
    if crc != file.crc32c:
        raise DamagedBackup(file.object, "the CRC32C of the object", file.crc32c, crc)
    return data


def extract_file(name: str, data: bytes, to: Path) -> None:
    """Writes what the object `name` holds, durably but for the name of the file."""
    try:
        with (
            pa.CompressedInputStream(pa.BufferReader(data), "zstd") as source,
            to.open("wb") as file,
        ):
            while piece := source.read(MIB):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except pa.ArrowException as error:
        raise DamagedBackup(name, "the object", "zstd", str(error)) from error
    except OSError as error:
        if error.errno is not None:  # the disk; Arrow's own have no number
            raise
        raise DamagedBackup(name, "the object", "zstd", str(error)) from error
