from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cold import catalog_uploads
from millstream.engine.timings import Backoff
from millstream.tier.backup import Manifest, extract_file, list_manifests, load_file, load_manifest
from millstream.tier.objects import ColdSettings, ObjectStore
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


class Gate:
    """Calls of a function stop at it until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        original = getattr(owner, name)

        def gated(*args: Any) -> Any:
            self.reached.set()
            assert self._opened.wait(20)
            return original(*args)

        monkeypatch.setattr(owner, name, gated)

    def open(self) -> None:
        self._opened.set()


def test_a_stop_lets_an_upload_that_is_under_way_come_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, catalog_uploads, "store_manifest")

    async def story(world: TierWorld) -> None:
        await world.create(b"a/1")
        await world.checkpoint()
        await until(gate.reached.is_set)
        await world.create(b"a/2")  # for the last upload
        asyncio.get_running_loop().call_later(0.01, gate.open)

    play(tmp_path, story)
    assert list_manifests(ObjectStore(ColdSettings(f"fs:{tmp_path / 'cold'}"))) == [2, 1]


def test_an_upload_that_another_service_cut_short_spoils_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, catalog_uploads, "store_file")

    async def fail() -> None:
        raise KeyError("another service")

    async def story(world: TierWorld) -> None:
        await world.create(b"a/1")
        await world.checkpoint()
        await until(gate.reached.is_set)
        await world.create(b"a/2")
        back_up = world.catalog.back_up

        def open_and_back_up(shard: int | None, to: Path) -> int:
            lsn = back_up(shard, to)
            gate.open()  # the last upload makes its copies while the other still reads
            return lsn

        monkeypatch.setattr(world.catalog, "back_up", open_and_back_up)
        world.group.create_task(fail())
        asyncio.get_running_loop().call_later(0.3, gate.open)
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        play(tmp_path, story)
    assert raised.group_contains(KeyError, match="another service")
    objects = ObjectStore(ColdSettings(f"fs:{tmp_path / 'cold'}"))
    lsns = list_manifests(objects)
    assert lsns[0] == 1  # the upload begins anew; the checkpoints have ended with the service
    for lsn in lsns:
        for file in load_manifest(objects, lsn, STORE_ID).files.values():
            name = tmp_path / "extracted.sqlite"
            extract_file(file.object, load_file(objects, file), name)
            with contextlib.closing(sqlite3.connect(name)) as copy:
                assert copy.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_newer_position_is_brought_about_when_garbage_waits_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with tier(tmp_path, dataclasses.replace(HASTY, upload_nudge=0.005)) as world:
            await world.create(b"a/1")
            await world.upload()
            awaited = asyncio.Event()

            def is_awaited() -> bool:
                awaited.set()
                return True

            world.uploads.is_awaited = is_awaited
            await awaited.wait()
            await world.checkpoint()
            await until(lambda: world.uploads.newest_lsn >= 2)
            assert world.uploads.oldest_lsn >= 1

    asyncio.run(story())


def test_a_hurried_upload_does_not_wait_for_the_interval(tmp_path: Path) -> None:
    async def story(world: TierWorld) -> None:
        await world.create(b"a/1")
        await world.upload()
        world.uploads._not_before = asyncio.get_running_loop().time() + 3600.0
        await world.create(b"a/2")
        await world.checkpoint()
        assert world.uploads.newest_lsn == 1
        async with asyncio.timeout(20):
            while world.uploads.newest_lsn == 1:  # as on a full disk: until it has helped
                world.uploads.hurry()
                await asyncio.sleep(0.002)

    play(tmp_path, story)
