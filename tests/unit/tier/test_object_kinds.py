"""Every object is known by its name, and what is not ours is known not to be."""

from __future__ import annotations

import pytest

from millstream.formats.runs import SegmentName, segment_name
from millstream.tier.catalog_files import ROOT_NAME, shard_name
from millstream.tier.object_kinds import (
    FOLDERS_WITH_ORPHANS,
    STORE_IDENTITY,
    CopyName,
    ManifestName,
    SnapshotName,
    copy_name,
    manifest_name,
    parse_name,
    snapshot_blob,
    snapshot_name,
)
from millstream.tier.object_names import check_name

KINDS = {
    segment_name(3, 1_750_000_000_000, "0badcafe"): SegmentName(3, 1_750_000_000_000),
    segment_name(1023, 0, "00000000"): SegmentName(1023, 0),
    snapshot_name(snapshot_blob(7, 12, "0123456789abcdef")): SnapshotName(
        7, "7-12-0123456789abcdef"
    ),
    manifest_name(4711): ManifestName(4711),
    copy_name(4711, ROOT_NAME): CopyName(4711, ROOT_NAME),
    copy_name(4711, shard_name(3)): CopyName(4711, shard_name(3)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_name_tells_what_it_was_made_of(name: str) -> None:
    assert parse_name(check_name(name)) == KINDS[name]


def test_orphans_are_looked_for_where_segments_and_snapshots_are_stored() -> None:
    folders = {name[: name.index("/") + 1] for name in KINDS}
    assert set(FOLDERS_WITH_ORPHANS) == folders - {"catalog/"}


@pytest.mark.parametrize(
    "name",
    [
        STORE_IDENTITY,
        "segments/readme.txt",
        "segments/0001/1700000000000-0badcafe.parquet.bak",
        "segments/0001/1700000000000-0bad.parquet",
        "segments/0001/170000000000-0badcafe.parquet",
        "segments/٠٠٠١/1700000000000-0badcafe.parquet",
        "my/segments/0001/1700000000000-0badcafe.parquet",
        "snapshots/backup-of-mine",
        "snapshots/7-12-xyz",
        "snapshots/old/7-12-00",
        "catalog/manifest-4711.json",
        "catalog/manifest-0000000000004711.json.bak",
        "catalog/0000000000004711-notes.zst",
        "",
    ],
)
def test_what_is_not_ours_is_no_kind_of_object(name: str) -> None:
    assert parse_name(name) is None
