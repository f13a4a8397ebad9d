"""What is readable of a damaged folder, in a new one, for `millstream salvage`.

The old folder is only read. Nothing uncertain gets into the new one: it holds a state that was
once, exactly, less what can be proven to be lost. These are the rules:

- The log counts up to the first place where it is damaged. Behind that nothing tells which
  streams the lost records were about, so what follows is not applied, but listed.
- A stream whose content in a segment is damaged begins behind that, as if it had been trimmed.
  Offsets keep their meaning, and none is given a second time. So do forks that showed it.
- A snapshot that is damaged is gone, and so is one that leads to content that is gone.

What is readable and could not be placed that way is written to a file beside the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from millstream.config import Config
from millstream.errors import (
    DamagedSegment,
    ObjectMissing,
    ObjectTooShort,
    StartupError,
)
from millstream.formats.images import HotContent
from millstream.formats.runs import Run, Segment, index_problem
from millstream.journal.checkpoints import encode_checkpoint, store_checkpoint
from millstream.journal.disk import OsDisk
from millstream.journal.folder import NewFolder, Places, ReadFolder
from millstream.journal.log_walk import Found, Hole, LogFile, list_log, walk_log
from millstream.journal.read_only import ReadOnlyDisk
from millstream.journal.skipped import load_skipped
from millstream.limits import MIB
from millstream.offline.consistency import Consistency
from millstream.offline.garbage_rows import garbage_problems
from millstream.offline.leftovers import Leftovers
from millstream.offline.replica import settle
from millstream.offline.salvage_base import UNSOUND, Base, Bases
from millstream.offline.salvage_edits import BadRun, Edits, cut_to_segments
from millstream.offline.salvage_report import Behind, Damage, Loss, Report
from millstream.offline.store_votes import find_candidates
from millstream.recover import Replay
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    RevokeKey,
    decode_command,
)
from millstream.state.images import decode_image
from millstream.tier.backup import list_manifests
from millstream.tier.blobs import snapshot_digest
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import sync_path
from millstream.tier.identity import claim_store
from millstream.tier.object_kinds import snapshot_name
from millstream.tier.objects import ColdSettings, ObjectStore, cold_settings
from millstream.tier.segments import SegmentReader

UNFINISHED = "salvaging"  # folder in the new folder until all is in place
LEFTOVERS = "leftovers.jsonl"
SEGMENT_THREADS = 4
CACHE_BYTES = 64 * MIB

Progress = Callable[[str, int, int], None]  # what, how much of it is done, how much there is


def salvage(config: Config, out: Path, progress: Progress) -> Report:
    """Raises FolderInUse beside a server, StartupError when nothing can be built on."""
    folder = ReadFolder(config.data_dir)
    try:
        _check_out(config.data_dir, out)
        new = NewFolder(out)
        try:
            return _Salvage(config, folder, new, progress).run()
        except BaseException as error:
            shutil.rmtree(out, ignore_errors=True)  # it was empty before
            if isinstance(error, OSError):
                raise StartupError(f"cannot go on salvaging: {error}") from error
            raise
        finally:
            shutil.rmtree(out / UNFINISHED, ignore_errors=True)
            new.close()
    finally:
        folder.close()


def _check_out(data_dir: Path, out: Path) -> None:
    old, new = data_dir.resolve(), out.resolve()
    if new.is_relative_to(old) or old.is_relative_to(new):
        raise StartupError(f"{out} and {data_dir} lie inside of each other; choose another folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StartupError(f"{out} is not an empty folder; choose another one")


class _Unusable(Exception):
    """A sound record that the state cannot take; what it began to change is to be thrown away."""

    def __init__(self, found: Found, reason: Exception) -> None:
        super().__init__(str(reason))
        self.found = found


class _Reached(NamedTuple):
    """A base with all of the log that counts."""

    base: Base
    lsn: int
    hot: list[HotContent]
    holes: list[Hole]  # where it stopped, and what is lost behind that
    behind: list[Found]
    losses: list[Loss]


class _Salvage:
    def __init__(
        self, config: Config, folder: ReadFolder, new: NewFolder, progress: Progress
    ) -> None:
        self._config = config
        self._folder = folder
        self._new = new
        self._progress = progress
        self._disk = ReadOnlyDisk()
        self._objects = ObjectStore(cold_settings(config))
        self._reader = SegmentReader(self._objects, CACHE_BYTES)
        self._report = Report(str(folder.path), str(new.path))
        self._leftovers = Leftovers(new.path / LEFTOVERS)
        self._work = new.path / UNFINISHED / "catalog"
        # Sound runs that the catalog tells wrong times or keys of.
        self._misleading: list[tuple[Segment, Run, str]] = []
        self._until: int | None = None  # the last record that may be applied; None: all
        self._copies: ObjectStore | None = None  # where objects go; None: they stay where they are
        if _is_inside(self._objects.settings.url, folder.path):
            self._copies = ObjectStore(ColdSettings(f"fs:{new.path / 'cold'}"))

    def run(self) -> Report:
        report = self._report
        self._work.parent.mkdir()
        reached = self._reach_state_of_any_store()
        catalog = reached.base.catalog
        try:
            report.base, report.lsn = reached.base.name, reached.lsn
            report.lost += reached.losses
            self._list_behind(reached)
            edits = Edits(catalog, report)
            self._take_segments(catalog, edits)
            self._take_snapshots(edits)
            self._store(reached, edits)
        finally:
            catalog.close()
        self._finish()
        return report

    # The state

    def _reach_state_of_any_store(self) -> _Reached:
        """Of the likeliest one with a state; when there is none, the likeliest one's reasons."""
        refusal: StartupError | None = None
        for candidate in find_candidates(self._disk, self._folder, self._objects):
            self._folder.store_id, self._until = candidate.store_id, None
            damaged = len(self._report.damaged)
            if candidate.damage is not None:
                self._report.damaged.append(candidate.damage)
            try:
                return self._reach_state()
            except StartupError as error:
                refusal = refusal or error
                del self._report.damaged[damaged:]
        assert refusal is not None
        raise refusal

    def _reach_state(self) -> _Reached:
        files = list_log(self._disk, self._folder.wal, self._folder.store_id)
        first_record = None
        for found in walk_log(self._disk, files):
            if isinstance(found, Hole):
                self._report.damaged.append(Damage(found.file, found.position, found.problem))
            elif first_record is None:
                first_record = found.record.lsn
        bases = Bases(
            self._config,
            self._folder,
            self._objects,
            self._work,
            first_record,
            self._progress,
        )
        reasons: list[str] = []
        for build in bases.kinds():
            try:
                reached = self._reach(build, files)
            except UNSOUND as error:
                reasons.append(str(error).replace(str(self._work), str(self._folder.catalog)))
                continue
            if reasons:
                self._report.damaged.append(Damage(str(self._folder.path), None, reasons[0]))
            return reached
        raise StartupError("there is nothing to build on: " + "; ".join(reasons))

    def _reach(self, build: Callable[[], Base], files: list[LogFile]) -> _Reached:
        while True:
            base = build()
            try:
                lsn, holes, behind = self._apply_log(base, files)
                hot = settle(base.machine, base.catalog, lsn)
                losses: list[Loss] = []
                if not base.takes_log:
                    losses = cut_to_segments(base.catalog)
                _check(base.catalog, hot)
                return _Reached(base, lsn, hot, holes, behind, losses)
            except _Unusable as error:
                base.catalog.close()
                self._until = error.found.record.lsn - 1
                problem = f"record {error.found.record.lsn} cannot be applied: {error}"
                place = error.found.file, error.found.record.position
                self._report.damaged.append(Damage(*place, problem))
            except BaseException:
                base.catalog.close()
                raise

    def _apply_log(self, base: Base, files: list[LogFile]) -> tuple[int, list[Hole], list[Found]]:
        """The position that was reached, what is lost of the log, what is sound behind that."""
        replay = Replay(base.machine, load_skipped(self._folder.path))
        expected, is_open = base.lsn + 1, base.takes_log
        holes: list[Hole] = []
        behind: list[Found] = []
        for found in walk_log(self._disk, files):
            if isinstance(found, Hole):
                if not found.is_header and not found.ends_before(expected):
                    is_open = False
                    holes.append(found)
                continue
            lsn = found.record.lsn
            if lsn <= base.lsn:
                continue
            is_open = is_open and lsn == expected and lsn != (self._until or -1) + 1
            if not is_open:
                command = _decode(found.record.payload)
                if isinstance(command, RevokeKey):  # holds whatever came before it
                    base.machine.access.remove(command.key_id)
                else:
                    behind.append(found)
                continue
            try:
                replay(lsn, found.record.payload)
            except Exception as error:
                raise _Unusable(found, error) from error
            expected += 1
        return expected - 1, holes, behind

    def _list_behind(self, reached: _Reached) -> None:
        for hole in reached.holes:
            first = reached.lsn + 1 if hole.first_lsn is None else hole.first_lsn
            last = "on" if hole.last_lsn is None else f"to {hole.last_lsn}"
            place = f"{hole.file} at byte {hole.position}"
            self._report.lost_otherwise.append(f"records {first} {last} of the log: {place}")
        for found in reached.behind:
            behind = _behind(found, reached.base.catalog)
            self._report.behind.append(behind)
            command = _decode(found.record.payload)
            if isinstance(command, Append | CreateStream) and command.count:
                source = {"file": found.file, "position": found.record.position}
                self._leftovers.add_command(behind.stream, source, command)

    # Content

    def _take_segments(self, catalog: Catalog, edits: Edits) -> None:
        uses = catalog.segments()

        def take(segment: Segment) -> list[BadRun]:
            bad = list(self._bad_runs(segment, catalog.runs_in(segment)))
            if self._copies is not None and len(bad) < len(catalog.runs_in(segment)):
                self._copies.put(segment.name, self._objects.get(segment.name)[: segment.size])
            return bad

        bad: list[BadRun] = []
        with ThreadPoolExecutor(SEGMENT_THREADS, thread_name_prefix="salvage") as pool:
            for number, found in enumerate(pool.map(take, (use.segment for use in uses)), 1):
                bad += found
                self._progress("bringing segments along", number, len(uses))
        for segment, runs in groupby(bad, key=lambda each: each.segment):
            whole = list(runs)
            problem = whole[0].reason
            self._report.damaged.append(Damage(segment.name, None, problem))
        for segment, run, problem in self._misleading:
            place = f"the catalog's run at message {run.first_ordinal} in {segment.name}"
            self._report.damaged.append(Damage(place, None, problem))
            catalog.forget_index(run)
        edits.begin_behind(bad)
        self._keep_what_is_before(catalog, edits, bad)

    def _bad_runs(self, segment: Segment, runs: list[Run]) -> Iterator[BadRun]:
        size = self._objects.size(segment.name)
        if size is None or size < segment.size:
            found = "no object" if size is None else f"{size} bytes"
            reason = f"{segment.name}: expected {segment.size} bytes, found {found}"
            yield from (BadRun(segment, run, reason) for run in runs)
            return
        for row_group, its_runs in groupby(runs, key=lambda run: run.row_group):
            together = list(its_runs)
            if self._load(segment, together) is None:
                continue
            for run in together:
                problem = self._load(segment, [run])
                if problem is not None:
                    reason = f"{segment.name}, row group {row_group}: {problem}"
                    yield BadRun(segment, run, reason)

    def _load(self, segment: Segment, runs: list[Run]) -> str | None:
        try:
            blocks = self._reader.load_runs(segment, runs)
        except DamagedSegment as error:
            return f"{error.place} should be {error.expected}, found {error.found}"
        except (ObjectMissing, ObjectTooShort) as error:
            return error.message
        for run, block in zip(runs, blocks, strict=True):
            problem = index_problem(run, block)
            if problem is not None:
                self._misleading.append((segment, run, problem))
        return None

    def _keep_what_is_before(self, catalog: Catalog, edits: Edits, bad: list[BadRun]) -> None:
        """Sound runs before a damaged one belong to no stream any more."""
        unreadable = {(each.run.stream_id, each.run.first_ordinal) for each in bad}
        for stream_id, cutoff in edits.cutoffs.items():
            image = edits.image(stream_id)
            place = 0
            while place < cutoff[0]:
                found = catalog.runs_from(stream_id, ordinal=place, limit=1)
                if not found or found[0][1].first_ordinal >= cutoff[0]:
                    break
                segment, run = found[0]
                place = run.end_ordinal
                if (stream_id, run.first_ordinal) not in unreadable:
                    [block] = self._reader.load_runs(segment, [run])
                    self._leftovers.add_run(image, segment.name, run, block)

    def _take_snapshots(self, edits: Edits) -> None:
        uses = edits.snapshots()
        for number, (blob, snapshot) in enumerate(uses.items(), 1):
            _, _, _, content_type, size, digest = snapshot
            problem = None
            try:
                data = self._objects.get(snapshot_name(blob))
                if snapshot_digest(content_type, data) != digest:
                    problem = f"expected {size} bytes of SHA-256 {digest}, found others"
                elif self._copies is not None:
                    self._copies.put(snapshot_name(blob), data)
            except ObjectMissing:
                problem = f"expected {size} bytes, found no object"
            if problem is not None:
                self._report.damaged.append(Damage(snapshot_name(blob), None, problem))
                edits.forget_snapshot(blob, problem)
            self._progress("bringing snapshots along", number, len(uses))

    # The new folder

    def _store(self, reached: _Reached, edits: Edits) -> None:
        lsn = reached.base.catalog.lsn
        if self._copies is None:  # behind every copy of the catalog that is there
            lsn = max([lsn, *list_manifests(self._objects)])
        changes = edits.changes(lsn + 1, is_whole=self._report.is_complete)
        catalog = reached.base.catalog
        catalog.merge(changes)
        self._forget_wrong_garbage(catalog)
        found = _check(catalog, reached.hot)
        self._report.streams, self._report.messages = found.streams, found.messages
        places = Places()
        places.path = self._new.path
        blocks = encode_checkpoint(self._folder.store_id, changes, reached.hot)
        disk = OsDisk()
        disk.list(places.checkpoints)  # makes the folder
        store_checkpoint(disk, places.checkpoints, changes.lsn, blocks)

    def _forget_wrong_garbage(self, catalog: Catalog) -> None:
        """The objects, if there are any, are swept up as any that nothing refers to."""
        wrong = list(garbage_problems(catalog, self._copies or self._objects))
        for name, problem in wrong:
            self._report.damaged.append(Damage(name, None, problem))
        catalog.forget_garbage(name for name, _ in wrong)

    def _finish(self) -> None:
        disk = OsDisk()
        for path in self._work.iterdir():
            sync_path(path)
        disk.sync_folder(str(self._work))
        disk.rename(str(self._work), str(self._new.path / "catalog"))
        if self._copies is not None:
            claim_store(self._copies, self._folder.store_id)
        self._report.leftovers = self._leftovers.close()
        self._new.finish(self._folder.store_id)


def _check(catalog: Catalog, hot: list[HotContent]) -> Consistency:
    """Raises StartupError unless everything fits together."""
    consistency = Consistency(lambda what, done, total: None)
    problem = next(catalog.problems(), None)
    problem = problem or next(consistency.check(catalog, hot, is_whole=True), None)
    if problem is not None:
        raise StartupError(problem)
    return consistency


def _behind(found: Found, catalog: Catalog) -> Behind:
    command = _decode(found.record.payload)
    stream_id = getattr(command, "stream_id", None)
    path: bytes | None = getattr(command, "path", None)
    if path is None and stream_id is not None:
        image = catalog.image_of(stream_id)
        path = None if image is None else decode_image(image).path
    stream = f"stream {stream_id}" if path is None and stream_id is not None else None
    return Behind(
        found.file,
        found.record.position,
        found.record.lsn,
        type(command).__name__,
        stream if path is None else path.decode(errors="replace"),
        stream_id,
        getattr(command, "count", 0) if isinstance(command, Append | CreateStream) else 0,
        len(command.data) if isinstance(command, Append | CreateStream) else 0,
    )


def _decode(payload: bytes) -> AnyCommand | None:
    try:
        return decode_command(payload)
    except (msgspec.MsgspecError, ValueError):
        return None


def _is_inside(url: str, folder: Path) -> bool:
    return url.startswith("fs:") and Path(url[3:]).resolve().is_relative_to(folder.resolve())
