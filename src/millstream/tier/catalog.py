"""The catalog: every stream, and where its cold content lies, in SQLite files on the local disk.

It stores what it is given and is only written by a checkpoint. Reads belong to the event loop's
thread; everything from `merge` on belongs to one other thread, with connections of its own. In WAL
mode neither waits for the other.

catalog_changes.py  what a checkpoint hands over
catalog_files.py    tables, creation, checks
catalog_merge.py    one transaction per file
catalog_verify.py   a walk over everything
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge as merge_sorted
from pathlib import Path
from typing import Any

from millstream.errors import DamagedData, StartupError
from millstream.formats.changes import Changes, Replacement, StreamRow
from millstream.formats.key_filters import UNKNOWN_KEYS
from millstream.formats.layout import ShardLayout, StreamId
from millstream.formats.runs import Run, Segment
from millstream.limits import SHARDS_DEFAULT
from millstream.tier.catalog_changes import (
    Decay,
    Garbage,
    SegmentShare,
    SegmentSpan,
    SegmentUse,
    is_empty,
    split,
)
from millstream.tier.catalog_files import (
    ROOT_NAME,
    Meta,
    ReadFile,
    copy_database,
    create_files,
    empty_wal,
    load_shards,
    open_for_work,
    shard_name,
    unseal,
    unseal_record,
)
from millstream.tier.catalog_merge import merge_root, merge_shard
from millstream.tier.catalog_verify import Verified, find_problems, verify_files

__all__ = [
    "Catalog",
    "Changes",
    "Decay",
    "Garbage",
    "Replacement",
    "SegmentShare",
    "SegmentSpan",
    "SegmentUse",
    "StreamRow",
    "Verified",
]

_NAMES_AT_ONCE = 64  # of one shard; with 16 of them, a page of a thousand reads little more

_NAMES = (
    "SELECT path, created_ms FROM streams INDEXED BY streams_by_path"
    " WHERE path {} ? AND listed = 1 ORDER BY path LIMIT ?"
)
_NAMES_BEFORE = (
    "SELECT path, created_ms FROM streams INDEXED BY streams_by_path"
    " WHERE path {} ? AND path < ? AND listed = 1 ORDER BY path LIMIT ?"
)
_RUN = "first_ordinal, first_byte, count, r.size, row_group, row, crc, first_ms, last_ms"
_SEGMENT = "name, s.size, footer_bytes, rows, created_ms"
_RUNS = (
    f"SELECT r.segment, {_SEGMENT}, {_RUN}{{}} FROM runs r CROSS JOIN segments s USING (segment)"
    " WHERE stream_id = ?1 AND first_ordinal >= coalesce(("
)
_RUNS_BY_ORDINAL = (
    f"{_RUNS}SELECT max(first_ordinal) FROM runs WHERE stream_id = ?1 AND first_ordinal <= ?2), 0)"
    " AND first_ordinal + count > ?2 ORDER BY first_ordinal LIMIT ?3"
)
_RUNS_BY_BYTE = (
    f"{_RUNS}SELECT first_ordinal FROM runs INDEXED BY runs_by_byte"
    " WHERE stream_id = ?1 AND first_byte <= ?2"
    " ORDER BY first_byte DESC, first_ordinal DESC LIMIT 1), 0)"
    " AND first_byte + r.size > ?2 ORDER BY first_ordinal LIMIT ?3"
)
_SHARES = (
    "SELECT segment, created_ms, count(*), sum(n), sum(size), max(first_ordinal),"
    " max(first_ordinal + n) FROM (SELECT segment, size, first_ordinal, count AS n FROM runs"
    " WHERE stream_id = ?1 AND first_ordinal > ?2 ORDER BY first_ordinal LIMIT ?3)"
    " JOIN (SELECT segment, created_ms FROM segments) USING (segment) GROUP BY segment"
)


class Catalog:
    """Create with `open`."""

    lsn: int  # the journal position every file is true for; after a merge cut short, the smallest

    def __init__(self, folder: Path, files: list[ReadFile], lsns: list[int]) -> None:
        self._folder = folder
        self.shards = len(files) - 1
        self._layout = ShardLayout(self.shards)
        self._files = files[:-1]
        self._root = files[-1]
        self._lsns = lsns
        self._changed_lsns = [0] * len(files)
        self.lsn = min(lsns)

    @classmethod
    def open(cls, folder: Path, shards: int | None, store_id: str) -> Catalog:
        """The catalog of this store in `folder`; an empty one, durable, when there was none.

        It must have as many shards as asked for; None: as many as it has.
        """
        files: list[ReadFile] = []
        try:
            if not (folder / ROOT_NAME).exists():
                _check_unused(folder)
                create_files(folder, shards or SHARDS_DEFAULT, store_id)
            if shards is None:
                shards = load_shards(folder / ROOT_NAME)
            root = ReadFile(folder / ROOT_NAME)
            files.append(root)
            lsns = [_check(root, Meta(store_id, shards, None, 0))]
            for shard in range(shards):
                file = ReadFile(folder / shard_name(shard))
                files.insert(-1, file)
                lsns.insert(-1, _check(file, Meta(store_id, shards, shard, 0)))
            return cls(folder, files, lsns)
        except BaseException as error:
            for file in files:
                file.close()
            if isinstance(error, OSError):
                raise StartupError(f"cannot use the catalog in {folder}: {error}") from error
            raise

    @property
    def is_even(self) -> bool:
        """Whether all files are of one position; after a merge cut short they are not."""
        return min(self._lsns) == max(self._lsns)

    def close(self) -> None:
        for file in [*self._files, self._root]:
            file.close()

    @property
    def newest_lsn(self) -> int:
        """The position some file is true for, perhaps ahead of the others."""
        return max(self._lsns)

    def find(self, path: bytes) -> bytes | None:
        """The image of the stream of that name."""
        file = self._files[self._layout.shard_of_path(path)]
        found = file.rows("SELECT image FROM streams WHERE path = ?", (path,))
        return unseal(file.path, _image_of(path), found[0][0]) if found else None

    def _file_of(self, stream_id: StreamId) -> ReadFile:
        return self._files[self._layout.shard_of_id(stream_id)]

    def find_by_id(self, stream_id: StreamId) -> bytes | None:
        file = self._file_of(stream_id)
        found = file.rows("SELECT image FROM streams WHERE stream_id = ?", (stream_id,))
        return unseal(file.path, _image_of(stream_id), found[0][0]) if found else None

    def names(
        self, after: bytes, before: bytes | None = None, *, inclusive: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Listed paths in order with their time of creation, behind `after` and before `before`.

        `inclusive`: from `after` itself on.

        Read as they are taken. Beside a merge, a name that exists before and after it is there.
        """
        found: Iterator[Any] = merge_sorted(
            *(_names(file, after, before, inclusive) for file in self._files)
        )
        return found

    def due(self, now_ms: int, limit: int) -> list[StreamId]:
        """Ids of streams whose deadline is at or before now, the oldest deadlines first."""
        found = [
            row
            for file in self._files
            for row in file.rows(
                "SELECT deadline_ms, stream_id FROM streams WHERE deadline_ms <= ?"
                " ORDER BY deadline_ms LIMIT ?",
                (now_ms, limit),
            )
        ]
        return [stream_id for _, stream_id in sorted(found)[:limit]]

    def next_deadline(self) -> int | None:
        sql = "SELECT min(deadline_ms) FROM streams WHERE deadline_ms IS NOT NULL"
        found = [file.rows(sql)[0][0] for file in self._files]
        return min((deadline for deadline in found if deadline is not None), default=None)

    def runs_from(
        self,
        stream_id: StreamId,
        *,
        ordinal: int | None = None,
        byte: int | None = None,
        limit: int,
        with_keys: bool = False,
    ) -> list[tuple[Segment, Run]]:
        """The run that holds that message or byte, and those behind it, in order.

        When the place lies before the first run: from the first run on. Key filters are long: they
        are only read on request, and unknown otherwise.
        """
        assert (ordinal is None) != (byte is None), "one of ordinal and byte"
        shard = self._layout.shard_of_id(stream_id)
        sql = _RUNS_BY_BYTE if ordinal is None else _RUNS_BY_ORDINAL
        place = byte if ordinal is None else ordinal
        segments: dict[int, Segment] = {}
        found = []
        sql = sql.format(", keys" if with_keys else "")
        for number, name, *row in self._files[shard].rows(sql, (stream_id, place, limit)):
            segment = segments.get(number)
            if segment is None:
                segment = segments[number] = Segment(name, shard, *row[:4])
            found.append((segment, Run(stream_id, *row[4:])))
        return found

    def extent(self, stream_id: StreamId) -> tuple[int, int, int] | None:
        """The first message of its runs, and the message and byte behind the last."""
        sql = (
            "SELECT min(first_ordinal), max(first_ordinal + count), max(first_byte + size)"
            " FROM runs WHERE stream_id = ?"
        )
        [(first, end_ordinal, end_byte)] = self._file_of(stream_id).rows(sql, (stream_id,))
        return None if first is None else (first, end_ordinal, end_byte)

    def shares_from(
        self, stream_id: StreamId, after_ordinal: int, limit: int
    ) -> list[SegmentShare]:
        """What segments hold of a stream, counting its next `limit` runs that begin behind this
        message; -1: its first ones. A segment may come again with the next call."""
        rows = self._file_of(stream_id).rows(_SHARES, (stream_id, after_ordinal, limit))
        return [SegmentShare(*row) for row in rows]

    def change_of(self, stream_id: StreamId) -> int:
        """Another number once what the catalog says of this stream's runs may have changed."""
        return self._changed_lsns[self._layout.shard_of_id(stream_id)]

    def disk_bytes(self) -> int:
        """Of all its files, about: beside a merge some of them come and go."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat().st_size
        return total

    def knows_segment(self, name: str, shard: int) -> bool:
        """Whether it is referred to, or in the list of garbage."""
        sql = (
            "SELECT 1 FROM segments WHERE name = ?1 UNION ALL SELECT 1 FROM garbage WHERE name = ?1"
        )
        return shard < self.shards and bool(self._files[shard].rows(sql, (name,)))

    def record(self, key: str) -> bytes | None:
        found = self._root.rows("SELECT value FROM records WHERE key = ?", (key,))
        return unseal_record(self._root.path, key, found[0][0]) if found else None

    def records(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """In the order of the keys."""
        sql = "SELECT key, value FROM records WHERE key {} ? ORDER BY key LIMIT 64"
        found = self._root.rows(sql.format(">="), (prefix,))
        while found:
            for key, value in found:
                if not key.startswith(prefix):
                    return
                yield key, unseal_record(self._root.path, key, value)
            found = self._root.rows(sql.format(">"), (found[-1][0],))

    def count_streams(self) -> int:
        """All that can be found, also those that are not listed."""
        return sum(file.rows("SELECT streams FROM meta")[0][0] for file in self._files)

    # From here on: the work of one other thread.

    def merge(self, changes: Changes) -> None:
        """Every file holds the changes, durably, and is true for `changes.lsn`.

        After an OSError or a crash some files do and some do not: the same changes come first
        again, and files that hold them are skipped.
        """
        started = max(self._lsns)
        assert min(self._lsns) == started or changes.lsn == started, (
            f"changes up to {changes.lsn} before those up to {started} are merged everywhere"
        )
        for number, part in enumerate(split(changes, self.shards)):
            self._merge_file(number, part)

    def _merge_file(self, number: int, part: Changes) -> None:
        is_root = number == self.shards
        with open_for_work(self._path(None if is_root else number)) as db:
            merge = merge_root if is_root else merge_shard
            merge(db, part)
            self._lsns[number] = max(self._lsns[number], part.lsn)
            if not is_empty(part):
                self._changed_lsns[number] = part.lsn
            self.lsn = min(self._lsns)
            empty_wal(db)

    def garbage(self) -> list[Garbage]:
        """Objects nothing refers to any more."""
        return [
            Garbage(*row)
            for shard in range(self.shards)
            for row in self._work_rows(shard, "SELECT name, size, since_lsn FROM garbage")
        ]

    def forget_garbage(self, names: Iterable[str]) -> None:
        """These objects are gone."""
        gone = [(name,) for name in names]
        for shard in range(self.shards if gone else 0):
            with open_for_work(self._path(shard)) as db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("DELETE FROM garbage WHERE name = ?", gone)
                db.execute("COMMIT")

    def segments(self, shard: int | None = None) -> list[SegmentUse]:
        """Those of one shard, or of all; the oldest of a shard first."""
        return [
            SegmentUse(Segment(name, number, *rest), live_bytes, live_runs)
            for number in (range(self.shards) if shard is None else [shard])
            for live_bytes, live_runs, name, *rest in self._work_rows(
                number, f"SELECT live_bytes, live_runs, {_SEGMENT} FROM segments s ORDER BY segment"
            )
        ]

    def decayed(self) -> list[Decay]:
        """Segments that hold dead content beside what lives, the oldest death first."""
        found = [
            Decay(SegmentUse(Segment(name, shard, *rest), live_bytes, live_runs), since_ms, dead)
            for shard in range(self.shards)
            for since_ms, dead, live_bytes, live_runs, name, *rest in self._work_rows(
                shard,
                f"SELECT dead_since_ms, rows - live_rows, live_bytes, live_runs, {_SEGMENT}"
                " FROM segments s WHERE dead_since_ms IS NOT NULL",
            )
        ]
        return sorted(found, key=lambda decay: (decay.since_ms, decay.use.segment.name))

    def cuts(self, shard: int, names: Sequence[str]) -> dict[int, int]:
        """By stream: its messages before this one are dead, though a run of these segments that
        holds some of them lives."""
        marks = ", ".join("?" * len(names))
        rows = self._work_rows(
            shard,
            "SELECT stream_id, max(first_ordinal + dead) FROM runs JOIN segments USING (segment)"
            f" WHERE dead > 0 AND name IN ({marks}) GROUP BY stream_id",
            *names,
        )
        return dict(rows)

    def segment_names(self, shard: int) -> set[str]:
        """Of all that are referred to and of all that are garbage."""
        sql = "SELECT name FROM segments UNION ALL SELECT name FROM garbage"
        return {name for (name,) in self._work_rows(shard, sql)}

    def load_record(self, key: str) -> bytes | None:
        """The root file is merged last: what it says, the others know."""
        found = self._work_rows(None, "SELECT value FROM records WHERE key = ?", key)
        return unseal_record(self._path(None), key, found[0][0]) if found else None

    def segment_spans(self, shard: int) -> dict[str, SegmentSpan]:
        """By name of segment. Walks all runs of the shard."""
        rows = self._work_rows(
            shard,
            "SELECT name, sum(count), min(stream_id), max(stream_id)"
            " FROM runs r JOIN segments s USING (segment) GROUP BY segment",
        )
        return {name: SegmentSpan(*span) for name, *span in rows}

    def aged(self, bucket: bytes, before_ms: int) -> list[tuple[StreamId, int, int]]:
        """(stream id, ordinal, byte) behind what streams of a bucket got before then."""
        return self._ends(
            bucket,
            "segment IN (SELECT segment FROM segments WHERE created_ms < ?3)",
            before_ms,
        )

    def aged_stream(self, stream_id: StreamId, before_ms: int) -> list[tuple[StreamId, int, int]]:
        """The same for one stream; nothing when nothing of it is that old."""
        sql = (
            "SELECT stream_id, max(first_ordinal + count), max(first_byte + size) FROM runs"
            " WHERE stream_id = ?1"
            " AND segment IN (SELECT segment FROM segments WHERE created_ms < ?2)"
            " GROUP BY stream_id"
        )
        with open_for_work(self._path(stream_id % self.shards)) as db:
            found: list[tuple[StreamId, int, int]] = db.execute(
                sql, (stream_id, before_ms)
            ).fetchall()
        return found

    def oversize(self, bucket: bytes, bytes_max: int) -> list[tuple[StreamId, int, int]]:
        """(stream id, ordinal, byte) behind which at least `bytes_max` cold bytes follow."""
        return self._ends(
            bucket,
            "first_byte + size <= -?3 + (SELECT max(l.first_byte + l.size) FROM runs l"
            " WHERE l.stream_id = r.stream_id)",
            bytes_max,
        )

    def _ends(self, bucket: bytes, which: str, limit: int) -> list[tuple[StreamId, int, int]]:
        sql = (
            "SELECT r.stream_id, max(first_ordinal + count), max(first_byte + size)"
            " FROM streams s JOIN runs r USING (stream_id)"
            f" WHERE s.path >= ?1 AND s.path < ?2 AND s.listed = 1 AND {which} GROUP BY r.stream_id"
        )
        found: list[tuple[StreamId, int, int]] = []
        for shard in range(self.shards):
            with open_for_work(self._path(shard)) as db:
                found += db.execute(sql, (bucket + b"/", bucket + b"0", limit)).fetchall()
        return found

    def live_runs(self, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        """What is left of these segments, ordered by stream and ordinal; without key filters."""
        return merge_sorted(
            *(self._live_runs(shard, names) for shard in range(self.shards)),
            key=lambda found: (found[1].stream_id, found[1].first_ordinal),
        )

    def _live_runs(self, shard: int, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        marks = ", ".join("?" * len(names))
        with open_for_work(self._path(shard)) as db:
            for name, *run in db.execute(
                f"SELECT name, stream_id, {_RUN} FROM runs r JOIN segments s USING (segment)"
                f" WHERE name IN ({marks}) ORDER BY stream_id, first_ordinal",
                names,
            ):
                yield name, Run(*run)

    def runs_in(self, segment: Segment) -> list[Run]:
        """What is left of one segment, in the order it lies there."""
        with open_for_work(self._path(segment.shard)) as db:
            rows = db.execute(
                f"SELECT stream_id, {_RUN}, keys FROM runs r JOIN segments s USING (segment)"
                " WHERE name = ? ORDER BY row_group, row",
                (segment.name,),
            )
            return [Run(*row) for row in rows]

    def forget_index(self, run: Run) -> None:
        """Its times and its keys are not known any more."""
        with open_for_work(self._path(self._layout.shard_of_id(run.stream_id))) as db:
            db.execute(
                "UPDATE runs SET first_ms = 0, last_ms = 0, keys = ?"
                " WHERE stream_id = ? AND first_ordinal = ?",
                (UNKNOWN_KEYS, run.stream_id, run.first_ordinal),
            )

    def stream_rows(self) -> Iterator[StreamRow]:
        """Every stream, in the order of the ids, which is that of their births."""
        return merge_sorted(
            *(self._stream_rows(shard) for shard in range(self.shards)),
            key=lambda row: row.stream_id,
        )

    def _stream_rows(self, shard: int) -> Iterator[StreamRow]:
        sql = (
            "SELECT stream_id, path, deadline_ms, listed, created_ms, image FROM streams"
            " ORDER BY stream_id"
        )
        file = self._path(shard)
        with open_for_work(file) as db:
            for stream_id, path, deadline_ms, listed, created_ms, sealed in db.execute(sql):
                image = unseal(file, _image_of(stream_id), sealed)
                yield StreamRow(stream_id, path, deadline_ms, bool(listed), created_ms, image)

    def image_of(self, stream_id: StreamId) -> bytes | None:
        shard = self._layout.shard_of_id(stream_id)
        rows = self._work_rows(shard, "SELECT image FROM streams WHERE stream_id = ?", stream_id)
        return unseal(self._path(shard), _image_of(stream_id), rows[0][0]) if rows else None

    def file_names(self) -> dict[str, int | None]:
        """Every file and the shard it is for; None: the root file."""
        return {**{shard_name(shard): shard for shard in range(self.shards)}, ROOT_NAME: None}

    def changed_lsn(self, shard: int | None) -> int:
        """The position of the last merge that changed this file; 0: none since it was opened."""
        return self._changed_lsns[self.shards if shard is None else shard]

    def back_up(self, shard: int | None, to: Path) -> int:
        """A copy of one shard's file (None: the root file) as of one moment; its lsn.

        Made for an upload: it is not synced. Never open the catalog's own files for that: closing
        one would take the locks of SQLite's connections in this process away.
        """
        to.unlink(missing_ok=True)
        with open_for_work(self._path(shard)) as db:
            return copy_database(db, to)

    def verify(self) -> Verified:
        """Walks everything; stops at the first thing that does not fit."""
        return verify_files([self._path(shard) for shard in range(self.shards)], self._path(None))

    def problems(self) -> Iterator[str]:
        """Everything that does not fit. Raises DamagedData where it cannot go on."""
        return find_problems([self._path(shard) for shard in range(self.shards)], self._path(None))

    def _work_rows(self, shard: int | None, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with open_for_work(self._path(shard)) as db:
            return db.execute(sql, parameters).fetchall()

    def _path(self, shard: int | None) -> Path:
        return self._folder / (ROOT_NAME if shard is None else shard_name(shard))


def _names(
    file: ReadFile, after: bytes, before: bytes | None, inclusive: bool
) -> Iterator[tuple[Any, ...]]:
    comparison = ">=" if inclusive else ">"
    while True:
        if before is None:
            found = file.rows(_NAMES.format(comparison), (after, _NAMES_AT_ONCE))
        else:
            sql = _NAMES_BEFORE.format(comparison)
            found = file.rows(sql, (after, before, _NAMES_AT_ONCE))
        comparison = ">"
        yield from found
        if len(found) < _NAMES_AT_ONCE:
            return
        after = found[-1][0]


def _image_of(stream: int | bytes) -> str:
    return f"image of stream {stream!r}"


def _check_unused(folder: Path) -> None:
    """The root file is made last: without it, no other file can have been used."""
    for path in sorted(folder.glob("shard-*.sqlite")):
        file = ReadFile(path)
        try:
            lsn = file.load_meta().lsn
        finally:
            file.close()
        if lsn > 0:
            found = f"no file, but {path.name} of position {lsn}"
            raise DamagedData(str(folder / ROOT_NAME), 0, "the catalog's root file", found)


def _check(file: ReadFile, wanted: Meta) -> int:
    """The position of the file, once it is the one it should be."""
    meta = file.load_meta()
    if meta.store_id != wanted.store_id:
        raise StartupError(
            f"{file.path} belongs to store {meta.store_id}, this data folder is store "
            f"{wanted.store_id}; put the catalog of this store back"
        )
    if meta.shards != wanted.shards:
        raise StartupError(
            f"{file.path} was made for {meta.shards} shards, and their number cannot change; "
            f"leave out --shards, or start with --shards {meta.shards}"
        )
    if meta.shard != wanted.shard:
        expected, found = _title(wanted.shard), _title(meta.shard)
        raise DamagedData(str(file.path), 0, expected, found)
    return meta.lsn


def _title(shard: int | None) -> str:
    return "the root file" if shard is None else f"the file of shard {shard}"
