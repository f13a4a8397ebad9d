"""A walk over the whole catalog: does everything fit together?"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.formats.layout import ShardLayout
from millstream.tier.catalog_files import expected_schema, load_schema, open_for_work


class Verified(NamedTuple):
    streams: int
    segments: int
    runs: int
    problem: str | None  # the first thing that does not fit; None: all is well


# Each finds what must not be; the first column names it.
_RULES = (
    (
        "SELECT path, count(*) FROM streams GROUP BY path HAVING count(*) > 1 LIMIT 1",
        "the path {0!r} belongs to {1} streams, not one",
    ),
    (
        "SELECT stream_id, deadline_ms FROM streams"
        " WHERE NOT listed AND deadline_ms IS NOT NULL LIMIT 1",
        "stream {0} is not listed and must have no deadline, found {1}",
    ),
    (
        "SELECT stream_id, first_ordinal, count, size FROM runs WHERE count < 1 OR size < 0"
        " LIMIT 1",
        "stream {0}: the run at message {1} has {2} messages and {3} bytes",
    ),
    (
        "SELECT * FROM (SELECT stream_id, first_ordinal, first_byte,"
        " lag(first_ordinal + count) OVER one AS ordinal, lag(first_byte + size) OVER one AS byte"
        " FROM runs WINDOW one AS (PARTITION BY stream_id ORDER BY first_ordinal))"
        " WHERE first_ordinal <> ordinal OR first_byte <> byte LIMIT 1",
        "stream {0}: expected a run at message {3}, byte {4}, found one at message {1}, byte {2}",
    ),
    (
        "SELECT stream_id, first_ordinal FROM runs"
        " WHERE stream_id NOT IN (SELECT stream_id FROM streams) LIMIT 1",
        "stream {0} does not exist but has a run at message {1}",
    ),
    (
        "SELECT stream_id, first_ordinal, segment FROM runs"
        " WHERE segment NOT IN (SELECT segment FROM segments) LIMIT 1",
        "stream {0}: the run at message {1} lies in segment number {2}, which does not exist",
    ),
    (
        "SELECT name, live_runs, live_bytes, runs, bytes FROM segments LEFT JOIN"
        " (SELECT segment, count(*) AS runs, sum(size) AS bytes FROM runs GROUP BY segment)"
        " USING (segment) WHERE live_runs IS NOT runs OR live_bytes IS NOT bytes LIMIT 1",
        "segment {0} counts {1} live runs of {2} bytes, found {3} of {4} bytes",
    ),
    (
        "SELECT name, live_rows, rows_found FROM segments LEFT JOIN"
        " (SELECT segment, sum(count - dead) AS rows_found FROM runs GROUP BY segment)"
        " USING (segment) WHERE live_rows IS NOT rows_found LIMIT 1",
        "segment {0} counts {1} live rows, found {2}",
    ),
    (
        "SELECT stream_id, first_ordinal, dead FROM runs WHERE dead < 0 OR dead >= count LIMIT 1",
        "stream {0}: the run at message {1} is said to have {2} dead messages",
    ),
    (
        "SELECT name FROM segments WHERE name IN (SELECT name FROM garbage) LIMIT 1",
        "segment {0} is live and garbage at once",
    ),
    (
        "SELECT seq, (SELECT max(segment) FROM segments) AS last FROM sqlite_sequence"
        " WHERE name = 'segments' AND seq < last",
        "segment numbers were given up to {0}, found segment {1}",
    ),
    (
        "SELECT streams, (SELECT count(*) FROM streams) AS found FROM meta WHERE streams <> found",
        "meta counts {0} streams, found {1}",
    ),
)


def verify_files(shards: Sequence[Path], root: Path) -> Verified:
    """Stops at the first problem."""
    streams = segments = runs = 0
    for path in shards:
        with open_for_work(path) as db:
            streams += _count(db, "streams")
            segments += _count(db, "segments")
            runs += _count(db, "runs")
    return Verified(streams, segments, runs, next(find_problems(shards, root), None))


def find_problems(shards: Sequence[Path], root: Path) -> Iterator[str]:
    """Everything that does not fit, file by file. A file whose pages are unsound is not followed
    any further. Raises DamagedData for one that cannot be opened at all."""
    for shard, path in enumerate(shards):
        with open_for_work(path) as db:
            yield from _problems(db, path, shard, len(shards))
    with open_for_work(root) as db:
        yield from _unsound(db, root, is_root=True)


def _problems(db: sqlite3.Connection, path: Path, shard: int, shards: int) -> Iterator[str]:
    unsound = list(_unsound(db, path, is_root=False))
    if unsound:
        yield from unsound
        return
    layout = ShardLayout(shards)
    for stream_id, name in db.execute("SELECT stream_id, path FROM streams"):
        if {layout.shard_of_id(stream_id), layout.shard_of_path(name)} != {shard}:
            yield f"{path}: stream {stream_id}, path {name!r}, does not belong to shard {shard}"
    for sql, text in _RULES:
        for row in db.execute(sql):
            yield f"{path}: {text.format(*row)}"


def _unsound(db: sqlite3.Connection, path: Path, *, is_root: bool) -> Iterator[str]:
    for (finding,) in db.execute("PRAGMA integrity_check(1)"):
        if finding != "ok":
            yield f"{path} is damaged: {finding}"
    expected, found = expected_schema(is_root), load_schema(db)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            yield f"{path} is damaged: the definition of {name} is not that of a catalog"


def _count(db: sqlite3.Connection, table: str) -> int:
    [(count,)] = db.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(count)
