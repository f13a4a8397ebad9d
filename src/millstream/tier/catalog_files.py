"""The SQLite files of the catalog: made, checked, opened (docs/formats/catalog.md draws them)."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import DamagedData, StartupError

FORMAT = 1
APPLICATION_ID = 0x4D53_4341  # "MSCA"
ROOT_NAME = "root.sqlite"
_NEW_SUFFIX = ".new"

# No mmap: touched pages would count as memory of this process, and a file that was cut short would
# end it with SIGBUS instead of an error.
_READER_CACHE_KIB = 512
_WRITER_CACHE_KIB = 16 * 1024  # only while a merge runs

_META = """
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store_id TEXT NOT NULL,
    shards INTEGER NOT NULL,
    shard INTEGER,
    lsn INTEGER NOT NULL,
    streams INTEGER NOT NULL
);
"""

_ROOT = """
CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

_SHARD = """
CREATE TABLE streams (
    stream_id INTEGER PRIMARY KEY,
    path BLOB NOT NULL,
    deadline_ms INTEGER,
    listed INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    image BLOB NOT NULL
);
CREATE INDEX streams_by_path ON streams (path, listed, created_ms);
CREATE INDEX streams_by_deadline ON streams (deadline_ms) WHERE deadline_ms IS NOT NULL;

CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    footer_bytes INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL DEFAULT 0,
    live_runs INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE runs (
    stream_id INTEGER NOT NULL,
    first_ordinal INTEGER NOT NULL,
    first_byte INTEGER NOT NULL,
    count INTEGER NOT NULL,
    size INTEGER NOT NULL,
    row_group INTEGER NOT NULL,
    row INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    PRIMARY KEY (stream_id, first_ordinal)
) WITHOUT ROWID;
CREATE INDEX runs_by_byte ON runs (stream_id, first_byte);
CREATE INDEX runs_by_segment ON runs (segment);

CREATE TABLE garbage (
    name TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    since_lsn INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER stream_added AFTER INSERT ON streams BEGIN
    UPDATE meta SET streams = streams + 1;
END;
CREATE TRIGGER stream_removed AFTER DELETE ON streams BEGIN
    UPDATE meta SET streams = streams - 1;
END;
CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN
    UPDATE segments SET live_bytes = live_bytes + new.size, live_runs = live_runs + 1
    WHERE segment = new.segment;
END;
CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN
    UPDATE segments SET live_bytes = live_bytes - old.size, live_runs = live_runs - 1
    WHERE segment = old.segment;
END;
"""


class Meta(NamedTuple):
    store_id: str
    shards: int
    shard: int | None  # None: the root file
    lsn: int


def shard_name(shard: int) -> str:
    return f"shard-{shard:04d}.sqlite"


def as_ours(path: Path, error: sqlite3.Error) -> Exception:
    """What SQLite says about a file, as the error of this program that says the same."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedData(str(path), 0, "a sound SQLite file", str(error))
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, f"no room to write: {error}", str(path))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return OSError(errno.EIO, str(error), str(path))
    return error


class ReadFile:
    """One file's connection for reading; belongs to the thread that opened it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DamagedData(str(path), 0, "a file of the catalog", "no file")
        self._db = _connect(path, _READER_CACHE_KIB)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All at once: an open cursor would keep the -wal file from being emptied."""
        try:
            return self._db.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise as_ours(self.path, error) from error

    def load_meta(self) -> Meta:
        """Proves that this is a file of the catalog, in a format this program reads."""
        [(application_id,)] = self.rows("PRAGMA application_id")
        if application_id != APPLICATION_ID:
            found = f"application id {application_id:#x}"
            raise DamagedData(str(self.path), 68, f"application id {APPLICATION_ID:#x}", found)
        [(written_format,)] = self.rows("PRAGMA user_version")
        if written_format > FORMAT:
            raise StartupError(
                f"{self.path} has format {written_format}, this program reads up to {FORMAT}; "
                "run a newer Millstream"
            )
        self.rows("PRAGMA query_only = ON")
        metas = self.rows("SELECT store_id, shards, shard, lsn FROM meta")
        if len(metas) != 1:
            raise DamagedData(str(self.path), 0, "one row in meta", f"{len(metas)} rows")
        return Meta(*metas[0])

    def close(self) -> None:
        self._db.close()


@contextmanager
def open_for_work(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one piece of work. What is not committed at its end is undone."""
    try:
        db = _connect(path, _WRITER_CACHE_KIB)
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA secure_delete = OFF")
            db.execute("PRAGMA wal_autocheckpoint = 0")  # `empty_wal` does it, when all is durable
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        ours = as_ours(path, error)
        if ours is error:
            raise
        raise ours from error


def empty_wal(db: sqlite3.Connection) -> None:
    """Moves what was committed into the main file. Readers go on; one amid a read delays it."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def load_shards(path: Path) -> int:
    """What this file says of the number of shards."""
    file = ReadFile(path)
    try:
        return file.load_meta().shards
    finally:
        file.close()


def set_lsn(path: Path, lsn: int) -> None:
    """For a copy that belongs to a newer position because nothing changed in between."""
    with open_for_work(path) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE meta SET lsn = ?", (lsn,))
        db.execute("COMMIT")
        empty_wal(db)


def copy_database(db: sqlite3.Connection, to: Path) -> int:
    """The lsn of the copy."""
    try:
        copy = sqlite3.connect(to, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = OFF")
            db.backup(copy)
            [(lsn,)] = copy.execute("SELECT lsn FROM meta").fetchall()
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise as_ours(to, error) from error
    return int(lsn)


def _connect(path: Path, cache_kib: int) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # a start opens it in a thread and hands it to the loop
        )
        try:
            db.execute(f"PRAGMA cache_size = -{cache_kib}")
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise as_ours(path, error) from error
    return db


def create_files(folder: Path, shards: int, store_id: str) -> None:
    """All files, empty and durable. The root file comes last: with it the catalog exists."""
    _make_folder(folder)
    for leftover in [*folder.glob("*.sqlite*")]:
        leftover.unlink()
    for shard in range(shards):
        _create(folder / shard_name(shard), _META + _SHARD, Meta(store_id, shards, shard, 0))
    sync_folder(folder)
    _create(folder / ROOT_NAME, _META + _ROOT, Meta(store_id, shards, None, 0))
    sync_folder(folder)


def _create(path: Path, schema: str, meta: Meta) -> None:
    new = path.with_name(path.name + _NEW_SUFFIX)
    db = sqlite3.connect(new, isolation_level=None)
    try:
        db.executescript(
            f"PRAGMA synchronous = OFF; PRAGMA auto_vacuum = NONE; PRAGMA page_size = 4096;"
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
            f"BEGIN; {schema} COMMIT;"
        )
        db.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?, 0)", meta)
        db.execute("PRAGMA journal_mode = WAL").fetchall()
    except sqlite3.Error as error:
        raise as_ours(path, error) from error
    finally:
        db.close()
    _sync(new)
    new.rename(path)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
