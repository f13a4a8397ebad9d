"""Every kind of object in the cold store: what it is called, who refers to it, when it is garbage.

    store     millstream.json
              every server looks whose store it is; never garbage
    segment   segments/{shard}/{created_ms}-{random}.parquet
              runs in the catalog refer to it; garbage when no live run of it is left
    snapshot  snapshots/{stream id}-{ordinal}-{random}
              a stream refers to it, and forks that share it; garbage when none of them does
    manifest  catalog/manifest-{lsn}.json
              a restore begins with the newest that is whole; garbage when two newer ones are there
    copy      catalog/{lsn}-{file}.zst
              manifests refer to it; garbage when none that is kept does

Segments and snapshots are uploaded before anything refers to them, so a crash leaves orphans:
cold/garbage.py lists those folders. Manifests and copies are tidied up by the next upload of the
catalog (tier/backup.py). An object with any other name is not ours and stays where it is.
A new kind gets its lines above, its name below, and its rule in one of these two places.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.formats.runs import SEGMENTS, SegmentName, parse_segment_name

STORE_IDENTITY = "millstream.json"
SNAPSHOTS = "snapshots/"
CATALOG_COPIES = "catalog/"
FOLDERS_WITH_ORPHANS = (SEGMENTS, SNAPSHOTS)

_BLOB = re.compile(r"([0-9]+)-[0-9]+-[0-9a-f]+")
_MANIFEST = re.compile(r"manifest-([0-9]{16})\.json")
_COPY = re.compile(r"([0-9]{16})-((?:root|shard-[0-9]{4})\.sqlite)\.zst")


class SnapshotName(NamedTuple):
    stream_id: int  # who published it
    blob: str  # what the state calls it


class ManifestName(NamedTuple):
    lsn: int


class CopyName(NamedTuple):
    lsn: int
    file: str  # in the catalog's folder


def snapshot_blob(stream_id: int, ordinal: int, random_hex: str) -> str:
    """What the state calls a snapshot: the name of its object without the folder."""
    return f"{stream_id}-{ordinal}-{random_hex}"


def snapshot_name(blob: str) -> str:
    return SNAPSHOTS + blob


def manifest_name(lsn: int) -> str:
    return f"{CATALOG_COPIES}manifest-{lsn:016d}.json"


def copy_name(lsn: int, file: str) -> str:
    return f"{CATALOG_COPIES}{lsn:016d}-{file}.zst"


def parse_name(name: str) -> SegmentName | SnapshotName | ManifestName | CopyName | None:
    """Which object it is. None: one that is not garbage, whatever happens."""
    if name.startswith(SEGMENTS):
        return parse_segment_name(name)
    folder, _, rest = name.partition("/")
    if folder + "/" == SNAPSHOTS and (match := _BLOB.fullmatch(rest)):
        return SnapshotName(int(match[1]), rest)
    if folder + "/" == CATALOG_COPIES:
        if match := _MANIFEST.fullmatch(rest):
            return ManifestName(int(match[1]))
        if match := _COPY.fullmatch(rest):
            return CopyName(int(match[1]), match[2])
    return None
