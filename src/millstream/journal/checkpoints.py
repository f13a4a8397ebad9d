"""Checkpoint files: the whole state in one file, so that the log before it can go."""

from __future__ import annotations

import os.path
from collections.abc import Iterable

from millstream.errors import DamagedData, StartupError
from millstream.formats.checkpoint import FORMAT, DamagedBlock, decode_blocks
from millstream.journal.disk import Disk
from millstream.state.images import Restorer
from millstream.state.machine import StateMachine

SUFFIX = ".checkpoint"
NEW_SUFFIX = ".new"


def checkpoint_name(lsn: int) -> str:
    return f"{lsn:016d}{SUFFIX}"


def store_checkpoint(disk: Disk, folder: str, lsn: int, blocks: Iterable[bytes]) -> int:
    """Durable under its name when this returns; older checkpoints are gone. Its size in bytes."""
    path = os.path.join(folder, checkpoint_name(lsn))
    older = [name for name in disk.list(folder) if name.endswith(SUFFIX)]
    size = disk.create(path + NEW_SUFFIX, blocks)
    disk.rename(path + NEW_SUFFIX, path)
    disk.sync_folder(folder)
    for name in older:
        if name != checkpoint_name(lsn):
            disk.remove(os.path.join(folder, name))
    disk.sync_folder(folder)
    return size


def load_checkpoint(
    disk: Disk, folder: str, store_id: str, *, may_start_over: bool = False
) -> tuple[StateMachine, int]:
    """The newest sound state and the lsn it covers; an empty state and 0 when there is none.

    An unsound one is passed over when there is something else to go on from: an older one, or, with
    `may_start_over`, the whole log.
    """
    names = disk.list(folder)
    disk.sync_folder(folder)  # a name that is not durable yet must not decide what may go
    for name in names:
        if name.endswith(NEW_SUFFIX):
            disk.remove(os.path.join(folder, name))
    damage: DamagedData | None = None
    for name in sorted((n for n in names if n.endswith(SUFFIX)), reverse=True):
        try:
            return _load(disk, os.path.join(folder, name), store_id)
        except DamagedData as error:
            damage = damage or error
    if damage is not None and not may_start_over:
        raise damage
    return StateMachine(), 0


def _load(disk: Disk, path: str, store_id: str) -> tuple[StateMachine, int]:
    restorer = Restorer()
    block_position = 0
    try:
        for position, kind, payload in decode_blocks(memoryview(disk.read(path))):
            block_position = position
            restorer.add(kind, payload)
    except DamagedBlock as error:
        raise DamagedData(path, error.position, "a sound block", error.problem) from error
    except (ValueError, IndexError) as error:
        raise DamagedData(path, block_position, "a block of a checkpoint", str(error)) from error
    header = restorer.header
    if header is None or header.store_id != store_id:
        raise DamagedData(path, 0, f"a checkpoint of store {store_id}", "another one")
    if header.format > FORMAT:
        raise StartupError(f"{path} has format {header.format}; run a newer Millstream")
    return restorer.machine, header.lsn
