"""What is left of earlier runs: state, journal, catalog and stores, opened and closed."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import NamedTuple

import structlog

from millstream.config import Config
from millstream.faults import Faults
from millstream.journal.contract import Journal
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.memory import MemoryJournal
from millstream.journal.reserve import Reserve
from millstream.journal.wal import LogPlace, WalJournal
from millstream.recover import recover
from millstream.state.machine import StateMachine
from millstream.tier.blobs import BlobStore, MemoryBlobs, ObjectBlobs
from millstream.tier.catalog import Catalog
from millstream.tier.identity import claim_store
from millstream.tier.objects import ObjectStore, cold_settings

logger = structlog.get_logger("millstream")


class Storage(NamedTuple):
    """What is left of earlier runs, and where to go on."""

    machine: StateMachine
    journal: Journal
    lsn: int
    store_id: str
    blobs: BlobStore
    disk: DiskStorage | None  # None: everything is in memory only

    def close(self) -> None:
        """The last to let go of the folder; the journal is closed."""
        if self.disk is not None:
            self.disk.catalog.close()
            self.disk.folder.close()


class DiskStorage(NamedTuple):
    folder: DataFolder
    catalog: Catalog
    objects: ObjectStore
    log_bytes: int


class Stop:
    """Why and when the server stops."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.exit_code = 0

    def request(self, exit_code: int = 0) -> None:
        self.exit_code = max(self.exit_code, exit_code)
        self.requested.set()


def open_storage(config: Config, stop: Stop, faults: Faults) -> Storage:
    """Recovers what the data folder holds. Raises StartupError; blocks while it reads."""
    if config.memory:
        store_id = secrets.token_hex(16)
        return Storage(StateMachine(), MemoryJournal(), 0, store_id, MemoryBlobs(), None)
    folder = DataFolder(config.data_dir)
    try:
        return _open_folder(config, folder, stop, faults)
    except BaseException:
        folder.close()
        raise


def _open_folder(config: Config, folder: DataFolder, stop: Stop, faults: Faults) -> Storage:
    # On the disk of the log, wherever that is; recovery may need the room, the journal takes it.
    is_log_elsewhere = os.path.ismount(folder.wal)
    reserve = Reserve(
        folder.wal if is_log_elsewhere else str(folder.path), config.disk_reserve_bytes
    )
    reserve.release_if_needed()
    objects = ObjectStore(cold_settings(config))
    claim_store(objects, folder.store_id)

    def fail(error: OSError) -> None:
        stop.request(exit_code=1)
        logger.error("the log cannot be written; stopping", error=str(error))

    place = LogPlace(OsDisk(), folder.wal, folder.store_id, config.wal_segment_bytes)
    journal = WalJournal(place, fail, reserve, faults)
    machine, catalog, lsn = recover(config, folder, journal)
    disk = DiskStorage(folder, catalog, objects, journal.log_bytes)
    return Storage(machine, journal, lsn, folder.store_id, ObjectBlobs(objects), disk)
