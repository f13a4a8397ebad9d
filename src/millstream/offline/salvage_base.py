"""What a salvage can build on: the best of what is left of catalog, checkpoint and log.

Tried in this order, the first that is sound is taken:

1. catalog and checkpoint, as a start would; then the log up to where it is damaged
2. the whole log from its first record, and an empty catalog
3. the copy of the catalog in the cold store, if it is of the position of the checkpoint (a file
   of it that is damaged is taken from the folder); then the log
4. the catalog without its checkpoint: every stream ends where its content in segments ends
5. the newest sound copy of the catalog in the cold store, with the same cut

The last two stand for an older moment of which some content is missing; records of the log are
not applied to them, because a stream that lost its end must not go on with what came later.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.config import Config
from millstream.errors import DamagedBackup, DamagedData, StartupError, StreamError
from millstream.formats.images import HotContent
from millstream.journal.checkpoints import load_checkpoint
from millstream.journal.folder import ReadFolder
from millstream.journal.read_only import ReadOnlyDisk
from millstream.offline.replica import copy_catalog
from millstream.offline.restore import download_newest
from millstream.recover import load_state, restore_state
from millstream.state.machine import StateMachine
from millstream.tier.backup import extract_file, list_manifests, load_file, load_manifest
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import load_shards, set_lsn
from millstream.tier.objects import ObjectStore

UNSOUND = (StartupError, StreamError, sqlite3.Error, OSError, ValueError, AssertionError)


class Base(NamedTuple):
    name: str
    catalog: Catalog  # a copy; the caller closes it
    machine: StateMachine
    lsn: int
    takes_log: bool  # False: streams have to be cut to what segments hold


Progress = Callable[[str, int, int], None]


class Bases:
    """Builds bases in `work`, one at a time."""

    def __init__(
        self,
        config: Config,
        folder: ReadFolder,
        objects: ObjectStore,
        work: Path,
        first_record: int | None,
        progress: Progress,
    ) -> None:
        """`first_record`: the number of the first record in the log."""
        self._folder = folder
        self._objects = objects
        self._work = work
        self._first_record = first_record
        self._progress = progress
        self._disk = ReadOnlyDisk()
        self._shards = _find_shards(folder, work, config.shards)

    def kinds(self) -> list[Callable[[], Base]]:
        return [
            self._as_a_start,
            self._whole_log,
            self._copy_and_checkpoint,
            self._catalog_alone,
            self._copy_alone,
        ]

    def _as_a_start(self) -> Base:
        catalog = self._own_catalog()
        try:
            machine, lsn = load_state(self._disk, self._folder, catalog, catalog.shards)
        except BaseException:
            catalog.close()
            raise
        return Base("the catalog and the checkpoint", catalog, machine, lsn, True)

    def _whole_log(self) -> Base:
        if self._first_record != 1:
            raise StartupError("the log does not begin with its first record any more")
        self._empty()
        catalog = Catalog.open(self._work, self._shards, self._folder.store_id)
        machine = restore_state(self._folder, catalog, catalog.shards, ())
        return Base("the log from its first record on", catalog, machine, 0, True)

    def _copy_and_checkpoint(self) -> Base:
        checkpoint = load_checkpoint(self._disk, self._folder.checkpoints, self._folder.store_id, 0)
        if checkpoint is None:
            raise StartupError("there is no checkpoint")
        catalog = self._patched_catalog(checkpoint.lsn)
        machine = self._restored(catalog, checkpoint.hot)
        name = "the copy of the catalog in the cold store, and the checkpoint"
        return Base(name, catalog, machine, checkpoint.lsn, True)

    def _patched_catalog(self, lsn: int) -> Catalog:
        """Each file from the copy of that position, or else from the folder."""
        manifest = load_manifest(self._objects, lsn, self._folder.store_id)
        self._empty()
        for name, file in manifest.files.items():
            try:
                extract_file(file.object, load_file(self._objects, file), self._work / name)
                set_lsn(self._work / name, lsn)
            except DamagedBackup:
                for path in self._folder.catalog.glob(f"{name}*"):
                    shutil.copyfile(path, self._work / path.name)
        catalog = Catalog.open(self._work, manifest.shards, self._folder.store_id)
        problem = next(catalog.problems(), None)
        if problem is None and catalog.is_even and catalog.lsn == lsn:
            return catalog
        catalog.close()
        raise StartupError(problem or f"files of the catalog are of other positions than {lsn}")

    def _catalog_alone(self) -> Base:
        catalog = self._own_catalog()
        if not catalog.is_even:
            catalog.close()
            raise DamagedData(str(self._folder.catalog), 0, "files of one position", "several")
        machine = self._restored(catalog, [])
        return Base("the catalog without its checkpoint", catalog, machine, catalog.lsn, False)

    def _copy_alone(self) -> Base:
        lsns = list_manifests(self._objects)
        if not lsns:
            raise StartupError("the cold store has no copy of the catalog")
        catalog = self._copied_catalog(lsns)
        machine = self._restored(catalog, [])
        name = f"the copy of the catalog in the cold store, of position {catalog.lsn}"
        return Base(name, catalog, machine, catalog.lsn, False)

    def _own_catalog(self) -> Catalog:
        shutil.rmtree(self._work, ignore_errors=True)
        copy_catalog(self._folder, self._work)
        catalog = Catalog.open(self._work, self._shards, self._folder.store_id)
        problem = next(catalog.problems(), None)
        if problem is not None:
            catalog.close()
            raise StartupError(problem)
        return catalog

    def _copied_catalog(self, lsns: list[int]) -> Catalog:
        manifest, _ = download_newest(
            self._objects, self._folder.store_id, lsns, self._work, self._progress
        )
        return Catalog.open(self._work, manifest.shards, self._folder.store_id)

    def _restored(self, catalog: Catalog, hot: list[HotContent]) -> StateMachine:
        try:
            return restore_state(self._folder, catalog, catalog.shards, hot)
        except BaseException:
            catalog.close()
            raise

    def _empty(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()


def _find_shards(folder: ReadFolder, work: Path, default: int | None) -> int | None:
    """Any file of the catalog knows, and so does their number. Asks copies in `work`."""
    shutil.rmtree(work, ignore_errors=True)
    copy_catalog(folder, work)
    paths = sorted(work.glob("*.sqlite"))
    for path in paths:
        try:
            return load_shards(path)
        except UNSOUND:
            continue
    return sum(path.name.startswith("shard-") for path in paths) or default
