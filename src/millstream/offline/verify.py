"""Checks everything that a start would read, and what it would serve, for `millstream verify`.

Nothing is changed: catalog files are copied, the log is replayed into a state that is thrown away.
Each difference says which file or object, where in it, whose content, what was expected and what
was found. What has to fit together is compared in consistency.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from millstream.config import Config
from millstream.errors import (
    DamagedBackup,
    DamagedSegment,
    ObjectMissing,
    ObjectTooShort,
    StartupError,
    StreamError,
)
from millstream.formats.blocks import Block
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.runs import (
    Run,
    Segment,
    index_problem,
    segment_name,
)
from millstream.journal.folder import IDENTITY_FILE, ReadFolder, load_identity
from millstream.journal.log_walk import Hole, list_log, walk_log
from millstream.journal.read_only import ReadOnlyDisk
from millstream.limits import MIB
from millstream.offline.consistency import Consistency, title
from millstream.offline.garbage_rows import garbage_problems
from millstream.offline.replica import copied_catalog, open_catalog, replay_folder, settle
from millstream.state.images import decode_image
from millstream.tier.backup import list_manifests, load_file, load_manifest
from millstream.tier.blobs import snapshot_digest
from millstream.tier.catalog import Catalog
from millstream.tier.identity import load_owner
from millstream.tier.object_kinds import snapshot_name
from millstream.tier.objects import ObjectStore, cold_settings
from millstream.tier.segments import SegmentReader

SEGMENT_THREADS = 4  # segments read at once: one is fetched while another is decoded
CACHE_BYTES = 64 * MIB  # row groups of one segment on their way; nothing is read twice


Progress = Callable[[str, int, int], None]  # what, how much of it is done, how much there is


class Verified(NamedTuple):
    streams: int
    messages: int  # each counted once, with the stream that it was written to
    records: int  # of the log
    segments: int
    runs: int
    run_bytes: int
    snapshots: int
    manifest_lsn: int | None  # None: the cold store holds no copy of the catalog yet
    differences: list[str]
    is_complete: bool  # False: there may be more than were listed


def verify(config: Config, differences_max: int, progress: Progress) -> Verified:
    """Raises FolderInUse beside a server, StartupError when there is nothing to look at."""
    folder = ReadFolder(config.data_dir)
    try:
        return _Walk(config, folder, differences_max, progress).run()
    except OSError as error:
        raise StartupError(f"cannot go on verifying: {error}") from error
    finally:
        folder.close()


class _Walk:
    def __init__(
        self, config: Config, folder: ReadFolder, differences_max: int, progress: Progress
    ) -> None:
        self._config = config
        self._folder = folder
        self._max = differences_max
        self._progress = progress
        self._disk = ReadOnlyDisk()
        self._objects = ObjectStore(cold_settings(config))
        self._reader = SegmentReader(self._objects, CACHE_BYTES)
        self._differences: list[str] = []
        self._copy: Path | None = None
        self._consistency = Consistency(progress)
        self._records = self._segments = self._runs = self._run_bytes = 0
        self._manifest_lsn: int | None = None

    def run(self) -> Verified:
        is_complete = self._collect(self._everything())
        return Verified(
            self._consistency.streams,
            self._consistency.messages,
            self._records,
            self._segments,
            self._runs,
            self._run_bytes,
            len(self._consistency.blobs),
            self._manifest_lsn,
            self._differences,
            is_complete,
        )

    def _collect(self, found: Iterator[str]) -> bool:
        """Whether all of it was looked at."""
        try:
            for difference in found:
                self._add(difference)
                if len(self._differences) >= self._max:
                    return False
        except (StartupError, StreamError, sqlite3.Error, ValueError) as error:
            self._add(str(error))  # what this says cannot be followed any further
            return False
        except OSError as error:
            if self._copy is None or str(self._copy) not in str(error.filename):
                raise
            self._add(str(error))
            return False
        except Exception as error:
            if not self._differences:
                raise
            self._add(f"what is damaged cannot be followed any further: {error!r}")
            return False
        return True

    def _add(self, difference: str) -> None:
        """A difference is named by its file, not by the copy of that."""
        text = difference
        if self._copy is not None:
            text = text.replace(str(self._copy), str(self._folder.catalog))
        if text not in self._differences:
            self._differences.append(text)

    def _everything(self) -> Iterator[str]:
        store_id = load_identity(self._folder.path)
        if store_id is None:
            yield f"{self._folder.path / IDENTITY_FILE}: expected a file, found none"
            return
        self._folder.store_id = store_id
        try:
            owner: str | None = load_owner(self._objects)
        except ObjectMissing:
            owner = None
        if owner not in (None, store_id):
            yield f"{self._objects.settings.url} belongs to store {owner}, the folder is {store_id}"
            return
        with copied_catalog(self._folder) as copy:
            self._copy = copy
            yield from self._check_log()
            with self._opened(copy) as catalog:
                yield from self._check_state(catalog, owner)
        yield from self._check_manifest()

    @contextmanager
    def _opened(self, copy: Path) -> Iterator[Catalog]:
        catalog = open_catalog(self._folder, copy, self._config.shards)
        try:
            yield catalog
        finally:
            catalog.close()

    # The log

    def _check_log(self) -> Iterator[str]:
        """Every file, also behind what would stop a start."""
        files = list_log(self._disk, self._folder.wal, self._folder.store_id)
        seen = dict.fromkeys((file.path for file in files), 0)
        for found in walk_log(self._disk, files):
            if isinstance(found, Hole):
                yield str(found)
                continue
            self._records += 1
            if not seen[found.file]:
                seen[found.file] = 1
                self._progress("reading the log", sum(seen.values()), len(files))

    # The state

    def _check_state(self, catalog: Catalog, owner: str | None) -> Iterator[str]:
        self._progress("checking the catalog", 0, 1)
        problems = list(catalog.problems())
        yield from problems
        self._progress("checking the catalog", 1, 1)
        hot: list[HotContent] = []
        try:
            machine, lsn = replay_folder(self._disk, self._folder, catalog)
            hot = settle(machine, catalog, lsn)
        except (StartupError, StreamError) as error:
            yield str(error)
            is_whole = False
        else:
            is_whole = True
            if not problems:
                yield from catalog.problems()
        if owner is None and catalog.segments():
            yield f"{self._objects.settings.url}: expected the cold data of this store, found none"
        yield from self._consistency.check(catalog, hot, is_whole=is_whole)
        yield from self._check_segments(catalog)
        yield from (text for _, text in garbage_problems(catalog, self._objects))
        yield from self._check_snapshots(catalog)

    # Segments

    def _check_segments(self, catalog: Catalog) -> Iterator[str]:
        uses = catalog.segments()

        def check(segment: Segment) -> tuple[list[Run], list[str]]:
            runs = catalog.runs_in(segment)
            return runs, list(self._check_segment(catalog, segment, runs))

        with ThreadPoolExecutor(SEGMENT_THREADS, thread_name_prefix="verify") as pool:
            try:
                for runs, differences in pool.map(check, (use.segment for use in uses)):
                    self._segments += 1
                    self._runs += len(runs)
                    self._run_bytes += sum(run.size for run in runs)
                    self._progress("reading segments", self._segments, len(uses))
                    yield from differences
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _check_segment(
        self, catalog: Catalog, segment: Segment, runs: Sequence[Run]
    ) -> Iterator[str]:
        if not segment.name.startswith(_name_start(segment)):
            made = f"shard {segment.shard} at {segment.created_ms}"
            yield f"{segment.name}: the catalog says it was made for {made}, its name does not"
        size = self._objects.size(segment.name)
        if size != segment.size:
            found = "no object" if size is None else f"{size} bytes"
            whose = _whose(catalog, runs)
            yield f"{segment.name}: expected {segment.size} bytes, found {found} ({whose})"
            return
        for row_group, its_runs in groupby(runs, key=lambda run: run.row_group):
            together = list(its_runs)
            loaded = self._load(segment, together)
            if not isinstance(loaded, Exception):
                yield from _check_indexes(catalog, segment, together, loaded)
                continue
            alone = [r for r in together if isinstance(self._load(segment, [r]), Exception)]
            again = self._load(segment, alone[:1])
            error = again if isinstance(again, Exception) else loaded
            if isinstance(error, DamagedSegment):
                text = f"{error.place} should be {error.expected}, found {error.found}"
            else:
                text = str(error)
            yield f"{segment.name}, row group {row_group}: {text} ({_whose(catalog, alone)})"

    def _load(self, segment: Segment, runs: Sequence[Run]) -> list[Block] | Exception:
        try:
            return self._reader.load_runs(segment, runs)
        except (DamagedSegment, ObjectMissing, ObjectTooShort) as error:
            return error

    # Snapshots

    def _check_snapshots(self, catalog: Catalog) -> Iterator[str]:
        blobs = self._consistency.blobs
        for number, use in enumerate(blobs.values(), 1):
            image = catalog.image_of(use.stream_id)
            assert image is not None
            yield from self._check_blob(decode_image(image))
            self._progress("reading snapshots", number, len(blobs))

    def _check_blob(self, image: StreamImage) -> Iterator[str]:
        assert image.snapshot is not None
        _, _, blob, content_type, size, digest = image.snapshot
        place = f"{snapshot_name(blob)} (the snapshot of {title(image)})"
        try:
            data = self._objects.get(snapshot_name(blob))
        except ObjectMissing:
            yield f"{place}: expected {size} bytes, found no object"
            return
        if len(data) != size:
            yield f"{place}: expected {size} bytes, found {len(data)} bytes"
            return
        found = snapshot_digest(content_type, data)
        if found != digest:
            yield f"{place}: expected SHA-256 {digest}, found {found}"

    # The copy of the catalog

    def _check_manifest(self) -> Iterator[str]:
        lsns = list_manifests(self._objects)
        if not lsns:
            return
        self._manifest_lsn = lsns[0]
        try:
            manifest = load_manifest(self._objects, lsns[0], self._folder.store_id)
        except DamagedBackup as error:
            yield str(error)
            return
        for number, file in enumerate(manifest.files.values(), 1):
            try:
                load_file(self._objects, file)
            except DamagedBackup as error:
                yield str(error)
            self._progress("reading the copy of the catalog", number, len(manifest.files))


def _check_indexes(
    catalog: Catalog, segment: Segment, runs: Sequence[Run], blocks: Sequence[Block]
) -> Iterator[str]:
    for run, block in zip(runs, blocks, strict=True):
        problem = index_problem(run, block)
        if problem is not None:
            place = f"the catalog's run at message {run.first_ordinal} in {segment.name}"
            yield f"{place}: {problem} ({_whose(catalog, [run])})"


def _whose(catalog: Catalog, runs: Iterable[Run]) -> str:
    """Whose content it was."""
    owners = list(dict.fromkeys(run.stream_id for run in runs))
    if not owners:
        return "no live content"
    image = catalog.image_of(owners[0])
    first = f"stream {owners[0]}" if image is None else title(decode_image(image))
    return f"content of {first}" + (f" and {len(owners) - 1} more" if len(owners) > 1 else "")


def _name_start(segment: Segment) -> str:
    return segment_name(segment.shard, segment.created_ms, "").removesuffix(".parquet")
