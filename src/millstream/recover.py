"""From a data folder to a running state: catalog, newest checkpoint, log, in this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import structlog
from msgspec import to_builtins

from millstream.config import Config
from millstream.errors import DamagedData, StartupError, UnusableRecord
from millstream.formats.images import HotContent
from millstream.formats.runs import Run
from millstream.formats.wal import crc32c
from millstream.journal.checkpoints import Checkpoint, checkpoint_name, load_checkpoint
from millstream.journal.contract import Journal
from millstream.journal.disk import Disk, OsDisk
from millstream.journal.folder import DataFolder, Places
from millstream.journal.recovery import holds_whole_log
from millstream.journal.skipped import SkippedRecord, is_named, load_skipped, skip_record
from millstream.state.commands import PublishRuns, decode_command
from millstream.state.images import restore_hot, restore_stream
from millstream.state.machine import StateMachine
from millstream.state.records import restore_records
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_store import CatalogStore

logger = structlog.get_logger("millstream")

RESTORED = "restored"  # record of a catalog that came out of the cold store


class Recovered(NamedTuple):
    machine: StateMachine
    catalog: Catalog
    lsn: int


def recover(config: Config, folder: DataFolder, journal: Journal) -> Recovered:
    """Everything up to the end of the journal, which goes on from there. Raises StartupError;
    blocks while it reads.

    A record that cannot be applied has left half of it behind: when it shall be left out, all is
    read once more from the start.
    """
    while True:
        catalog = Catalog.open(folder.catalog, config.shards, folder.store_id)
        try:
            return _recover(folder, catalog, journal)
        except UnusableRecord as error:
            catalog.close()
            if not is_named(error, config.skip_record or ()):
                raise
            skip_record(OsDisk(), folder.path, error)
            logger.error(
                "from now on a record is left out, as --skip-record says", error=str(error)
            )
        except BaseException:
            catalog.close()
            raise


def _recover(folder: DataFolder, catalog: Catalog, journal: Journal) -> Recovered:
    machine, lsn = load_state(OsDisk(), folder, catalog, catalog.shards)
    replay = Replay(machine, load_skipped(folder.path))
    last_lsn = journal.replay(lsn, replay)
    machine.outbox.ended.clear()
    machine.outbox.altered.clear()
    logger.info(
        "recovered",
        streams=len(machine.names),
        checkpoint_lsn=lsn,
        records_replayed=replay.records,
        **({"records_skipped": replay.skipped} if replay.skipped else {}),
    )
    return Recovered(machine, catalog, last_lsn)


def load_state(
    disk: Disk, folder: Places, catalog: Catalog, shards: int
) -> tuple[StateMachine, int]:
    """What catalog and checkpoint hold, and the position of the journal they stand for."""
    checkpoint = load_checkpoint(
        disk,
        folder.checkpoints,
        folder.store_id,
        catalog.newest_lsn,
        may_start_over=holds_whole_log(disk, folder.wal),
    )
    lsn = _merge(folder, catalog, checkpoint)
    hot = () if checkpoint is None else checkpoint.hot
    return restore_state(folder, catalog, shards, hot), lsn


def restore_state(
    folder: Places, catalog: Catalog, shards: int, hot: Iterable[HotContent]
) -> StateMachine:
    """The state of a catalog, and the content that is in no run yet."""
    is_tail_lost = catalog.record(RESTORED) is not None
    machine = StateMachine(shards, CatalogStore(catalog), is_tail_lost=is_tail_lost)
    try:
        restore_records(machine, ((k, v) for k, v in catalog.records("") if k != RESTORED))
        for content in hot:
            _add_hot(machine, catalog, content)
    except (ValueError, msgspec.MsgspecError) as error:
        raise DamagedData(str(folder.catalog), 0, "the state of this store", str(error)) from error
    return machine


class Replay:
    """Applies the records of the log, one after the other."""

    def __init__(
        self, machine: StateMachine, left_out: Mapping[int, SkippedRecord] | None = None
    ) -> None:
        """`left_out` by number: what an operator has decided to go on without."""
        self._machine = machine
        self._left_out = left_out or {}
        self.records = 0
        self.skipped = 0

    def __call__(self, lsn: int, payload: bytes) -> None:
        if lsn in self._left_out and self._left_out[lsn].crc == crc32c(payload):
            self.skipped += 1
            logger.error("a record of the log is left out", **to_builtins(self._left_out[lsn]))
            return
        self.records += 1
        command = decode_command(payload)
        self._machine.apply(command)
        if type(command) is PublishRuns:
            _let_go(self._machine, command.runs)


def _merge(folder: Places, catalog: Catalog, checkpoint: Checkpoint | None) -> int:
    """The position that catalog and checkpoint stand for, once the catalog has the checkpoint."""
    is_restored = catalog.record(RESTORED) is not None
    if checkpoint is None and (is_restored or not catalog.newest_lsn):
        return catalog.lsn
    if checkpoint is None or checkpoint.lsn < catalog.newest_lsn:
        raise DamagedData(
            f"{folder.checkpoints}/{checkpoint_name(catalog.newest_lsn)}",
            0,
            f"a checkpoint at {catalog.newest_lsn}, as the catalog has it",
            "none" if checkpoint is None else f"one at {checkpoint.lsn}",
        )
    if catalog.lsn < checkpoint.lsn:
        try:
            catalog.merge(checkpoint.changes)
        except OSError as error:
            raise StartupError(f"cannot bring the catalog up to date: {error}") from error
    return checkpoint.lsn


def _add_hot(machine: StateMachine, catalog: Catalog, content: HotContent) -> None:
    """Raises ValueError when catalog and checkpoint do not fit together."""
    image = catalog.find_by_id(content.stream_id)
    if image is None:
        raise ValueError(f"hot content of stream {content.stream_id}, which is not there")
    stream, missing_bytes = restore_stream(image)
    restore_hot(stream.log, content)
    held_bytes = stream.log.tail_byte - stream.log.cold_byte
    if held_bytes != missing_bytes:
        raise ValueError(
            f"{held_bytes} bytes of hot content of stream {content.stream_id} instead of "
            f"{missing_bytes}"
        )
    machine.residents.add(stream)
    machine.changes.adopt_hot(stream)


def _let_go(machine: StateMachine, runs: Iterable[Run]) -> None:
    """What the object store has need not be in memory: the log may hold more than the budget."""
    for run in runs:
        stream = machine.by_id.get(run.stream_id)
        if stream is not None and run.end_byte <= stream.log.cold_byte:
            stream.log.drop(run.end_byte)
