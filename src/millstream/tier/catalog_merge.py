"""Merging a checkpoint's changes into one file, in one transaction.

Rows travel by the hundred: a statement gives the interpreter away while it runs, and waits to get
it back afterwards. One row at a time, that wait would be most of a merge beside a busy event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from msgspec.structs import astuple

from millstream.formats.changes import Changes, Replacement
from millstream.formats.runs import Run, Segment
from millstream.tier.catalog_files import seal, seal_record

_ROWS_AT_ONCE = 200

_RUN = (
    "stream_id, first_ordinal, first_byte, count, size, row_group, row, crc, first_ms, last_ms,"
    " keys, segment"
)
_ADD_RUNS = f"INSERT INTO runs ({_RUN}) VALUES {{}}"
# Of what a swap brings, only runs that hold something of what it took: the rest died meanwhile.
_ADD_REPLACING = (
    f"WITH given ({_RUN}) AS (VALUES {{}})"
    f" INSERT OR IGNORE INTO runs ({_RUN}, dead)"
    " SELECT g.*, max(0, r.first_ordinal - g.first_ordinal)"
    " FROM given g JOIN replaced r USING (stream_id)"
    " WHERE g.first_ordinal < r.end_ordinal AND g.first_ordinal + g.count > r.first_ordinal"
)
_PUT_STREAMS = (
    "INSERT INTO streams (stream_id, path, deadline_ms, listed, created_ms, image) VALUES {}"
    " ON CONFLICT (stream_id) DO UPDATE SET image = excluded.image"
)
# Most changes are of the image alone: the indexes are only touched where their columns differ.
_INDEXED = "path, deadline_ms, listed, created_ms"
_PUT_INDEXED = (
    f"WITH given (stream_id, {_INDEXED}) AS (VALUES {{}})"
    f" UPDATE streams SET ({_INDEXED}) = (g.path, g.deadline_ms, g.listed, g.created_ms)"
    " FROM given g WHERE streams.stream_id = g.stream_id"
    " AND (streams.path, streams.deadline_ms, streams.listed, streams.created_ms)"
    " IS NOT (g.path, g.deadline_ms, g.listed, g.created_ms)"
)
_TRIM = (
    "WITH trims (stream_id, ordinal) AS (VALUES {})"
    " DELETE FROM runs WHERE (stream_id, first_ordinal) IN ("
    " SELECT r.stream_id, r.first_ordinal FROM trims t CROSS JOIN runs r"
    " ON r.stream_id = t.stream_id AND r.first_ordinal < t.ordinal"
    " WHERE r.first_ordinal + r.count <= t.ordinal)"
)
# What is left before the place lies in a run that goes on behind it.
_CUT = (
    "WITH trims (stream_id, ordinal) AS (VALUES {})"
    " UPDATE runs SET dead = t.ordinal - runs.first_ordinal FROM trims t"
    " WHERE runs.stream_id = t.stream_id AND runs.first_ordinal + runs.dead < t.ordinal"
)
# Nothing says when content of a new segment died: while it was made, or since its birth.
_DECAY = (
    "UPDATE segments SET dead_since_ms = iif(segment > ?1 OR ?2 = 0, created_ms, ?2)"
    " WHERE dead_since_ms IS NULL AND live_rows < rows"
)
_PUT_RECORDS = "INSERT OR REPLACE INTO records (key, value) VALUES {}"


def merge_shard(db: sqlite3.Connection, changes: Changes) -> None:
    """Durable when this returns. A file that is already there stays as it is."""
    with _Transaction(db, changes.lsn) as there:
        if not there:
            _merge_shard(db, changes)


def merge_root(db: sqlite3.Connection, changes: Changes) -> None:
    with _Transaction(db, changes.lsn) as there:
        if not there:
            last = dict(changes.records)
            gone = [(key,) for key, value in last.items() if value is None]
            _in_batches(db, "DELETE FROM records WHERE key IN (VALUES {})", gone)
            kept = [
                (key, seal_record(key, value)) for key, value in last.items() if value is not None
            ]
            _in_batches(db, _PUT_RECORDS, kept)


class _Transaction:
    """Ends with the file at `lsn`. An exception leaves it to the closing connection to undo."""

    def __init__(self, db: sqlite3.Connection, lsn: int) -> None:
        self._db = db
        self._lsn = lsn

    def __enter__(self) -> bool:
        """Whether the file was there already."""
        self._db.execute("BEGIN IMMEDIATE")
        [(lsn,)] = self._db.execute("SELECT lsn FROM meta").fetchall()
        self._there = int(lsn) >= self._lsn
        return self._there

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if not self._there:
            self._db.execute("UPDATE meta SET lsn = ?", (self._lsn,))
        self._db.execute("COMMIT")


def _merge_shard(db: sqlite3.Connection, changes: Changes) -> None:
    last = _last_segment(db)
    _add_segments(db, _ADD_RUNS, changes.segments, changes.runs)
    for replacement in changes.replacements:
        _replace(db, replacement, changes.lsn)
    _in_batches(db, _TRIM, changes.trims)
    _in_batches(db, _CUT, changes.trims)
    gone = [(stream_id,) for stream_id in changes.removed]
    _in_batches(db, "DELETE FROM runs WHERE stream_id IN (VALUES {})", gone)
    _in_batches(db, "DELETE FROM streams WHERE stream_id IN (VALUES {})", gone)
    _in_batches(
        db, _PUT_STREAMS, ((*astuple(row)[:-1], seal(row.image)) for row in changes.streams)
    )
    _in_batches(db, _PUT_INDEXED, (astuple(row)[:-1] for row in changes.streams))
    db.execute(
        "DELETE FROM runs WHERE segment > ? AND stream_id NOT IN (SELECT stream_id FROM streams)",
        (last,),
    )
    _discard_segments(db, "live_runs = 0", (), changes.lsn)
    db.execute(_DECAY, (last, changes.died_ms))


def _last_segment(db: sqlite3.Connection) -> int:
    """The highest number given so far: numbers are not used twice."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segments'").fetchall()
    return int(found[0][0]) if found else 0


def _add_segments(
    db: sqlite3.Connection,
    add_runs: str,
    segments: Iterable[Segment],
    runs: Iterable[list[Run]],
) -> None:
    """One that is known already only gets runs. What is named here is no garbage (any more)."""
    for segment, its_runs in zip(segments, runs, strict=True):
        db.execute(
            "INSERT INTO segments (name, size, footer_bytes, rows, created_ms)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
            (
                segment.name,
                segment.size,
                segment.footer_bytes,
                segment.rows,
                segment.created_ms,
            ),
        )
        db.execute("DELETE FROM garbage WHERE name = ?", (segment.name,))
        sql = "SELECT segment FROM segments WHERE name = ?"
        [(number,)] = db.execute(sql, (segment.name,)).fetchall()
        _in_batches(db, add_runs, ((*astuple(run), number) for run in its_runs))


def _replace(db: sqlite3.Connection, replacement: Replacement, lsn: int) -> None:
    """The state machine has decided that it happens; old ones that are not there died before."""
    old = list(set(replacement.old))
    names = f"name IN ({_marks(len(old))})"
    found = [row[0] for row in db.execute(f"SELECT segment FROM segments WHERE {names}", old)]
    numbers = f"segment IN ({_marks(len(found))})"
    db.execute(
        "CREATE TEMP TABLE replaced"
        " (stream_id INTEGER PRIMARY KEY, first_ordinal INTEGER, end_ordinal INTEGER)"
    )
    db.execute(
        "INSERT INTO replaced"
        " SELECT stream_id, min(first_ordinal + dead), max(first_ordinal + count)"
        f" FROM runs WHERE {numbers} GROUP BY stream_id",
        found,
    )
    db.execute(f"DELETE FROM runs WHERE {numbers}", found)
    _discard_segments(db, numbers, found, lsn)
    _add_segments(db, _ADD_REPLACING, replacement.segments, replacement.runs)
    db.execute("DROP TABLE temp.replaced")


def _discard_segments(
    db: sqlite3.Connection, which: str, parameters: Sequence[int], lsn: int
) -> None:
    db.execute(
        "INSERT OR IGNORE INTO garbage (name, size, since_lsn)"
        f" SELECT name, size, ? FROM segments WHERE {which}",
        (lsn, *parameters),
    )
    db.execute(f"DELETE FROM segments WHERE {which}", parameters)


def _in_batches(db: sqlite3.Connection, sql: str, rows: Iterable[Sequence[Any]]) -> None:
    """Runs `sql` for all rows, a batch of them in the place of {}."""
    for batch in _batches(rows):
        row = f"({_marks(len(batch[0]))})"
        statement = sql.format(", ".join([row] * len(batch)))
        db.execute(statement, tuple(chain.from_iterable(batch)))


def _batches(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, _ROWS_AT_ONCE)):
        yield batch


def _marks(count: int) -> str:
    return ", ".join("?" * count)
