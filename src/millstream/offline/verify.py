"""Walks the catalog and everything it refers to in the cold store, for `millstream verify`.

Nothing is changed. Each difference says which object, where in it, whose content, what was
expected and what was found.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple

from millstream.config import Config
from millstream.errors import (
    DamagedBackup,
    DamagedData,
    DamagedSegment,
    ObjectMissing,
    ObjectTooShort,
    StartupError,
)
from millstream.formats.images import StreamImage
from millstream.formats.runs import Run, Segment
from millstream.journal.checkpoints import load_checkpoint
from millstream.journal.disk import OsDisk
from millstream.journal.folder import IDENTITY_FILE, DataFolder
from millstream.limits import MIB
from millstream.state.images import decode_image
from millstream.state.records import BLOB
from millstream.tier.backup import list_manifests, load_file, load_manifest
from millstream.tier.blobs import SNAPSHOTS
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import ROOT_NAME, load_shards
from millstream.tier.identity import load_owner
from millstream.tier.objects import ObjectStore, cold_settings
from millstream.tier.segments import SegmentReader

SEGMENT_THREADS = 4  # segments read at once: one is fetched while another is decoded
CACHE_BYTES = 64 * MIB  # row groups of one segment on their way; nothing is read twice

Progress = Callable[[str, int, int], None]  # what, how much of it is done, how much there is


class Verified(NamedTuple):
    streams: int
    segments: int
    runs: int
    run_bytes: int
    snapshots: int
    manifest_lsn: int | None  # None: the cold store holds no copy of the catalog yet
    differences: list[str]
    is_complete: bool  # False: there may be more than were listed


def verify(config: Config, differences_max: int, progress: Progress) -> Verified:
    """The server must be stopped. Raises StartupError when there is nothing to look at."""
    if not (config.data_dir / IDENTITY_FILE).exists():
        raise StartupError(f"{config.data_dir} holds no store; check --data-dir")
    folder = DataFolder(config.data_dir)
    try:
        return _Walk(config, folder, differences_max, progress).run()
    except OSError as error:
        raise StartupError(f"cannot go on verifying: {error}") from error
    finally:
        folder.close()


class _Walk:
    def __init__(
        self, config: Config, folder: DataFolder, differences_max: int, progress: Progress
    ) -> None:
        self._folder = folder
        self._max = differences_max
        self._progress = progress
        self._objects = ObjectStore(cold_settings(config))
        self._reader = SegmentReader(self._objects, CACHE_BYTES)
        self._differences: list[str] = []
        self._runs = self._run_bytes = self._segments = self._streams = 0
        self._blobs: Counter[str] = Counter()
        self._manifest_lsn: int | None = None

    def run(self) -> Verified:
        is_complete = self._collect(self._everything())
        return Verified(
            self._streams,
            self._segments,
            self._runs,
            self._run_bytes,
            len(self._blobs),
            self._manifest_lsn,
            self._differences,
            is_complete,
        )

    def _collect(self, found: Iterator[str]) -> bool:
        try:
            for difference in found:
                self._differences.append(difference)
                if len(self._differences) >= self._max:
                    return False
        except DamagedData as error:  # a file of the catalog: what it says cannot be followed
            self._differences.append(str(error))
            return False
        return True

    def _everything(self) -> Iterator[str]:
        owner, store_id = load_owner(self._objects), self._folder.store_id
        if owner != store_id:
            yield f"{self._objects.settings.url} belongs to store {owner}, the folder is {store_id}"
            return
        shards = load_shards(self._folder.catalog / ROOT_NAME)
        catalog = Catalog.open(self._folder.catalog, shards, store_id)
        try:
            yield from self._check_catalog(catalog)
            yield from self._check_segments(catalog)
            yield from self._check_snapshots(catalog)
        finally:
            catalog.close()
        yield from self._check_manifest()

    # The catalog

    def _check_catalog(self, catalog: Catalog) -> Iterator[str]:
        self._progress("checking the catalog", 0, 1)
        problem = catalog.verify().problem
        if problem is not None:
            yield problem
        self._progress("checking the catalog", 1, 1)
        total = catalog.count_streams()
        for row in catalog.stream_rows():
            self._streams += 1
            image = decode_image(row.image)
            yield from _check_extent(image, catalog.extent(row.stream_id))
            if self._streams % 1000 == 0 or self._streams == total:
                self._progress("checking streams", self._streams, total)
        try:
            load_checkpoint(OsDisk(), self._folder.checkpoints, self._folder.store_id, catalog.lsn)
        except DamagedData as error:
            yield str(error)

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
        size = self._objects.size(segment.name)
        if size != segment.size:
            found = "no object" if size is None else f"{size} bytes"
            whose = _whose(catalog, runs)
            yield f"{segment.name}: expected {segment.size} bytes, found {found} ({whose})"
            return
        for row_group, its_runs in groupby(runs, key=lambda run: run.row_group):
            together = list(its_runs)
            error = self._load(segment, together)
            if error is None:
                continue
            alone = [run for run in together if self._load(segment, [run]) is not None]
            error = self._load(segment, alone[:1]) or error
            if isinstance(error, DamagedSegment):
                place, expected, found = error.place, error.expected, error.found
                text = f"{place} should be {expected}, found {found}"
            else:
                text = str(error)
            yield f"{segment.name}, row group {row_group}: {text} ({_whose(catalog, alone)})"

    def _load(self, segment: Segment, runs: Sequence[Run]) -> Exception | None:
        try:
            self._reader.load_runs(segment, runs)
        except (DamagedSegment, ObjectMissing, ObjectTooShort) as error:
            return error
        return None

    # Snapshots

    def _check_snapshots(self, catalog: Catalog) -> Iterator[str]:
        for row in catalog.stream_rows():
            image = decode_image(row.image)
            if image.snapshot is None:
                continue
            self._blobs[image.snapshot[2]] += 1
            if self._blobs[image.snapshot[2]] == 1:
                yield from self._check_blob(image)
                self._progress("reading snapshots", len(self._blobs), len(self._blobs))
        if catalog.is_even:
            yield from self._check_shared(catalog)

    def _check_shared(self, catalog: Catalog) -> Iterator[str]:
        """Who counts too little will delete a blob that somebody needs."""
        for blob, users in self._blobs.items():
            record = catalog.record(BLOB + blob)
            counted = 1 if record is None else int(record)
            if counted != users:
                yield (
                    f"{SNAPSHOTS}{blob} is the snapshot of {users} streams, "
                    f"the catalog's record counts {counted}"
                )

    def _check_blob(self, image: StreamImage) -> Iterator[str]:
        assert image.snapshot is not None
        _, _, blob, content_type, size, digest = image.snapshot
        place = f"{SNAPSHOTS}{blob} (the snapshot of {_title(image)})"
        try:
            data = self._objects.get(SNAPSHOTS + blob)
        except ObjectMissing:
            yield f"{place}: expected {size} bytes, found no object"
            return
        if len(data) != size:
            yield f"{place}: expected {size} bytes, found {len(data)} bytes"
            return
        found = hashlib.sha256(b"%d " % len(content_type) + content_type + data).hexdigest()
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


def _check_extent(image: StreamImage, extent: tuple[int, int, int] | None) -> Iterator[str]:
    """All that a stream shows of its own cold content has to lie in runs."""
    start = max(image.first[0], image.own[0])
    if start >= image.cold[0]:
        return
    if extent is None:
        found = "no runs"
    else:
        first, end_ordinal, end_byte = extent
        if first <= start and (end_ordinal, end_byte) == image.cold:
            return
        found = f"runs of the messages {first} to {end_ordinal - 1} up to byte {end_byte}"
    expected = f"of the messages {start} to {image.cold[0] - 1} up to byte {image.cold[1]}"
    yield f"{_title(image)}: expected runs {expected}, found {found}"


def _title(image: StreamImage) -> str:
    return f"stream {image.stream_id}, {image.path.decode(errors='replace')}"


def _whose(catalog: Catalog, runs: Iterable[Run]) -> str:
    """Whose content it was."""
    owners = list(dict.fromkeys(run.stream_id for run in runs))
    if not owners:
        return "no live content"
    image = catalog.image_of(owners[0])
    first = f"stream {owners[0]}" if image is None else _title(decode_image(image))
    return f"content of {first}" + (f" and {len(owners) - 1} more" if len(owners) > 1 else "")
