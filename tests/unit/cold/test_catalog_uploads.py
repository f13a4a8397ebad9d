from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.engine.timings import Backoff
from millstream.tier.backup import Manifest, list_manifests, load_file, load_manifest
from tests.unit.cold.cold_office import until
from tests.unit.cold.tier_world import PATIENCE, STORE_ID, TierWorld, tier

HASTY = dataclasses.replace(PATIENCE, upload_retry=Backoff(0.01, 0.01))


def play(folder: Path, story: Callable[[TierWorld], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with tier(folder, HASTY) as world:
            await story(world)

    asyncio.run(whole())


def manifests(world: TierWorld) -> list[Manifest]:
    found = list_manifests(world.objects)
    return [load_manifest(world.objects, lsn, STORE_ID) for lsn in found]


def test_the_newest_two_manifests_are_kept_with_their_files(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        for number in range(4):
            await world.create(b"a/%d" % number)
            await world.upload()
        found = manifests(world)
        assert [manifest.lsn for manifest in found] == [4, 3]
        assert (world.uploads.newest_lsn, world.uploads.oldest_lsn) == (4, 3)
        named = {file.object for manifest in found for file in manifest.files.values()}
        kept = {name for name in world.names("catalog") if name.endswith(".zst")}
        assert kept == named

    play(tmp_path, story)


def test_a_file_that_did_not_change_is_named_again_and_not_stored_again(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        first = await world.create(b"a/first")
        await world.upload()
        shard = first.stream_id % 2
        await world.append(first, b"more")
        await world.upload()
        newest, older = manifests(world)
        changed, same = f"shard-000{shard}.sqlite", f"shard-000{1 - shard}.sqlite"
        assert newest.files[same] == older.files[same]
        assert newest.files[changed] != older.files[changed]
        for file in newest.files.values():
            load_file(world.objects, file)

    play(tmp_path, story)


def test_a_clean_stop_uploads_what_the_last_upload_lacks_and_no_more(tmp_path: Path) -> None:
    async def write(world: TierWorld) -> None:
        await world.create(b"a/1")

    async def stop_again(world: TierWorld) -> None:
        assert [manifest.lsn for manifest in manifests(world)] == [1]

    play(tmp_path, write)
    play(tmp_path, stop_again)
    play(tmp_path, stop_again)
    assert not (tmp_path / "uploads").exists()


def test_manifests_of_an_earlier_run_are_known(tmp_path: Path) -> None:
    async def write(world: TierWorld) -> None:
        await world.create(b"a/1")

    async def look(world: TierWorld) -> None:
        await until(lambda: world.uploads.newest_lsn)
        assert world.uploads.oldest_lsn == 1

    play(tmp_path, write)
    play(tmp_path, look)


def test_a_failed_upload_leaves_the_manifest_before_it_and_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(world: TierWorld) -> None:
        await world.create(b"a/1")
        await world.upload()
        (tmp_path / "cold").rename(tmp_path / "away")
        (tmp_path / "cold").write_bytes(b"in the way")
        await world.create(b"a/2")
        await world.checkpoint()
        await world.create(b"a/3")
        await world.checkpoint()  # nobody waits for the store
        await until(lambda: world.uploads._upkeep.failures > 2)
        (tmp_path / "cold").unlink()
        (tmp_path / "away").rename(tmp_path / "cold")
        assert list_manifests(world.objects) == [1]
        await until(lambda: world.uploads.newest_lsn == 3)
        newest, older = manifests(world)
        # A try that had made its copies at 2 may have got through first.
        assert (newest.lsn, older.lsn) in ((3, 1), (3, 2))

    play(tmp_path, story)
    assert "".join(capsys.readouterr()).count("cannot upload the catalog") == 1
