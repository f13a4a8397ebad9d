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
from millstream.formats.wal import crc32c
from millstream.limits import CATALOG_MERGE_CACHE_BYTES, CATALOG_READ_CACHE_BYTES, KIB

# 1: no checksums, 2: dead content is not counted, 3: runs have neither times nor key filters.
FORMAT = 4  # an older catalog is brought here when it is opened
APPLICATION_ID = 0x4D53_4341  # "MSCA"
ROOT_NAME = "root.sqlite"
_NEW_SUFFIX = ".new"

# No mmap: touched pages would count as memory of this process, and a file that was cut short would
# end it with SIGBUS instead of an error.

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

# What the file of a shard got with format 3; new files get it in the same way, so that all look
# alike. When content died that is dead already is not known: it counts from now.
_SINCE_3 = """
ALTER TABLE segments ADD COLUMN live_rows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE segments ADD COLUMN dead_since_ms INTEGER;
ALTER TABLE runs ADD COLUMN dead INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER run_added;
DROP TRIGGER run_removed;
CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN
    UPDATE segments SET live_bytes = live_bytes + new.size, live_runs = live_runs + 1,
        live_rows = live_rows + new.count - new.dead
    WHERE segment = new.segment;
END;
CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN
    UPDATE segments SET live_bytes = live_bytes - old.size, live_runs = live_runs - 1,
        live_rows = live_rows - old.count + old.dead
    WHERE segment = old.segment;
END;
CREATE TRIGGER run_cut AFTER UPDATE OF dead ON runs BEGIN
    UPDATE segments SET live_rows = live_rows - new.dead + old.dead WHERE segment = new.segment;
END;
UPDATE segments SET live_rows = n FROM
    (SELECT segment AS s, sum(count) AS n FROM runs GROUP BY segment) WHERE segment = s;
UPDATE segments SET dead_since_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000
    WHERE live_rows < rows;
"""

# With format 4. Nothing is known of the runs that are there already. The filter comes last: it may
# be long, and what lies before it is found without it.
_SINCE_4 = """
ALTER TABLE runs ADD COLUMN first_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN last_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN keys BLOB NOT NULL DEFAULT x'00';
"""
_SHARD_SCHEMA = _META + _SHARD + _SINCE_3 + _SINCE_4
_ROOT_SCHEMA = _META + _ROOT


_SEAL_BYTES = 4


def seal(value: bytes) -> bytes:
    """With its CRC32C behind it: SQLite notices damage to its own structure, not to a value."""
    return value + crc32c(value).to_bytes(_SEAL_BYTES, "little")


def unseal(path: Path, what: str, sealed: bytes) -> bytes:
    """The value, once it is what was stored."""
    if not isinstance(sealed, bytes):
        raise DamagedData(str(path), 0, f"bytes as the {what}", f"{sealed!r:.40}")
    value, found = sealed[:-_SEAL_BYTES], sealed[-_SEAL_BYTES:]
    expected = crc32c(value).to_bytes(_SEAL_BYTES, "little")
    if found != expected:
        raise DamagedData(
            str(path), 0, f"CRC32C {expected.hex()} behind the {what}", found.hex() or "nothing"
        )
    return value


def seal_record(key: str, value: bytes) -> bytes:
    """The checksum is of the key too."""
    return value + crc32c(key.encode() + value).to_bytes(_SEAL_BYTES, "little")


def unseal_record(path: Path, key: str, sealed: bytes) -> bytes:
    what = f"record {key!r}"
    if not isinstance(sealed, bytes):
        raise DamagedData(str(path), 0, f"bytes as the {what}", f"{sealed!r:.40}")
    unseal(path, what, key.encode() + sealed)
    return sealed[:-_SEAL_BYTES]


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
    if code in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH):
        return DamagedData(str(path), 0, "what the checkpoint was made for", str(error))
    if code in (0, sqlite3.SQLITE_ERROR) and str(error).startswith(_DAMAGED):
        return DamagedData(str(path), 0, "the tables of a catalog", str(error))
    return error


_DAMAGED = ("no such", "malformed", "Could not decode")  # how SQLite's messages begin then


class ReadFile:
    """One file's connection for reading; belongs to the thread that opened it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DamagedData(str(path), 0, "a file of the catalog", "no file")
        self._db = _connect(path, CATALOG_READ_CACHE_BYTES)

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
        if written_format < FORMAT:
            _upgrade(self.path, self._db, written_format)
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
        db = _connect(path, CATALOG_MERGE_CACHE_BYTES)
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


def _upgrade(path: Path, db: sqlite3.Connection, written_format: int) -> None:
    """From format 1: every image and every record gets its checksum. From format 2: what is dead
    is counted. From format 3: runs get times and key filters. All of it or nothing."""
    if written_format not in range(1, FORMAT):
        raise DamagedData(str(path), 60, f"format 1 to {FORMAT}", str(written_format))
    try:
        db.create_function("seal", 1, seal, deterministic=True)
        db.create_function("seal_record", 2, seal_record, deterministic=True)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        is_shard = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'streams'").fetchall()
        if written_format == 1 and is_shard:
            db.execute("UPDATE streams SET image = seal(image)")
        elif written_format == 1:
            db.execute("UPDATE records SET value = seal_record(key, value)")
        missing = (_SINCE_3 if written_format < 3 else "") + _SINCE_4
        for statement in _statements(missing) if is_shard else ():
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise as_ours(path, error) from error


def _statements(script: str) -> Iterator[str]:
    """One by one: `executescript` would commit what was begun."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


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


def _connect(path: Path, cache_bytes: int) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # a start opens it in a thread and hands it to the loop
        )
        try:
            db.execute(f"PRAGMA cache_size = -{cache_bytes // KIB}")
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise as_ours(path, error) from error
    return db


def expected_schema(is_root: bool) -> dict[str, str]:
    """The text of every table, index and trigger that a file has, by name."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_ROOT_SCHEMA if is_root else _SHARD_SCHEMA)
        return load_schema(db)
    finally:
        db.close()


def load_schema(db: sqlite3.Connection) -> dict[str, str]:
    sql = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    return dict(db.execute(sql).fetchall())


def create_files(folder: Path, shards: int, store_id: str) -> None:
    """All files, empty and durable. The root file comes last: with it the catalog exists."""
    _make_folder(folder)
    for leftover in [*folder.glob("*.sqlite*")]:
        leftover.unlink()
    for shard in range(shards):
        _create(folder / shard_name(shard), _SHARD_SCHEMA, Meta(store_id, shards, shard, 0))
    sync_folder(folder)
    _create(folder / ROOT_NAME, _ROOT_SCHEMA, Meta(store_id, shards, None, 0))
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
    sync_path(new)
    new.rename(path)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    sync_path(folder)


def sync_path(path: Path) -> None:
    """A file's bytes, or the names in a folder, are on disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
