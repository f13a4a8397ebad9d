"""The state a start would reach, out of a folder that stays as it is.

Catalog files are copied, because SQLite writes even where it only reads, and a checkpoint that was
not merged yet has to be. Everything else is read in place. The disk that holds temporary files
needs room for the catalog.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.formats.images import HotContent
from millstream.journal.disk import Disk
from millstream.journal.folder import Places
from millstream.journal.recovery import recover_log
from millstream.journal.skipped import load_skipped
from millstream.recover import Replay, load_state
from millstream.state.machine import StateMachine
from millstream.state.records import take_records
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import ROOT_NAME, load_shards


@contextmanager
def copied_catalog(folder: Places) -> Iterator[Path]:
    """A copy of the catalog's files for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as work:
        copy = Path(work) / "catalog"
        copy_catalog(folder, copy)
        yield copy


def copy_catalog(folder: Places, to: Path) -> None:
    to.mkdir()
    for path in sorted(folder.catalog.glob("*.sqlite*")):
        if not path.name.endswith("-shm"):  # made anew by the next that opens the file
            shutil.copyfile(path, to / path.name)


def open_catalog(folder: Places, copy: Path, shards: int | None) -> Catalog:
    """`shards` is for a folder that never had a catalog."""
    if (copy / ROOT_NAME).exists():
        shards = load_shards(copy / ROOT_NAME)
    return Catalog.open(copy, shards, folder.store_id)


def replay_folder(disk: Disk, folder: Places, catalog: Catalog) -> tuple[StateMachine, int]:
    """All that a start would read; the state, and its position. Raises what a start would."""
    machine, lsn = load_state(disk, folder, catalog, catalog.shards)
    replay = Replay(machine, load_skipped(folder.path))
    recovered = recover_log(disk, folder.wal, folder.store_id, lsn, replay)
    return machine, recovered.next_lsn - 1


def settle(machine: StateMachine, catalog: Catalog, lsn: int) -> list[HotContent]:
    """Brings the copy of the catalog to `lsn`, as a checkpoint would; what is in no run yet."""
    capture = machine.changes.begin_capture(lsn, take_records(machine))
    capture.take_some(len(capture.pending))
    machine.changes.end_capture(capture)
    changes, hot = capture.encode()
    catalog.merge(changes)
    return hot
