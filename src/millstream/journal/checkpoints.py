"""Checkpoint files: what changed since the one before, and all content that is in no run yet.

Together with the catalog that is the whole state, so the log before it can go.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from millstream.errors import DamagedData, StartupError
from millstream.formats.changes import Changes
from millstream.formats.checkpoint import (
    CHANGES,
    END,
    FORMAT,
    HEADER,
    HOT,
    CheckpointEnd,
    CheckpointHeader,
    DamagedBlock,
    decode_blocks,
    encode_block,
)
from millstream.formats.images import HotContent
from millstream.journal.disk import Disk

SUFFIX = ".checkpoint"
NEW_SUFFIX = ".new"

_encode = msgspec.msgpack.Encoder().encode
_hot_decoder = msgspec.msgpack.Decoder(HotContent)


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


class Checkpoint(NamedTuple):
    lsn: int
    changes: Changes
    hot: list[HotContent]


def encode_checkpoint(
    store_id: str, changes: Changes, hot: Iterable[HotContent]
) -> Iterator[bytes]:
    """The blocks of a checkpoint file, one at a time."""
    header = CheckpointHeader(FORMAT, store_id, changes.lsn)
    yield encode_block(HEADER, _encode(header))
    yield encode_block(CHANGES, _encode(changes))
    count = 0
    for content in hot:
        count += 1
        yield encode_block(HOT, _encode(content))
    yield encode_block(END, _encode(CheckpointEnd(count)))


def load_checkpoint(
    disk: Disk, folder: str, store_id: str, catalog_lsn: int, *, may_start_over: bool = False
) -> Checkpoint | None:
    """The newest sound one, None when there is none.

    An unsound one is passed over when there is something else to go on from: an older one that is
    not behind the catalog, or, with `may_start_over`, the whole log and an empty catalog.
    """
    names = disk.list(folder)
    disk.sync_folder(folder)  # a name that is not durable yet must not decide what may go
    for name in names:
        if name.endswith(NEW_SUFFIX):
            disk.remove(os.path.join(folder, name))
    damage: DamagedData | None = None
    for name in sorted((n for n in names if n.endswith(SUFFIX)), reverse=True):
        try:
            loaded = _load(disk, os.path.join(folder, name), store_id)
        except DamagedData as error:
            damage = damage or error
            continue
        if loaded.lsn >= catalog_lsn or damage is None:
            return loaded
    if damage is not None and not (may_start_over and catalog_lsn == 0):
        raise damage
    return None


def _load(disk: Disk, path: str, store_id: str) -> Checkpoint:
    header: CheckpointHeader | None = None
    changes: Changes | None = None
    hot: list[HotContent] = []
    block_position = 0
    try:
        for position, kind, payload in decode_blocks(memoryview(disk.read(path))):
            block_position = position
            if kind == HEADER:
                header = msgspec.msgpack.decode(payload, type=CheckpointHeader)
                _check_header(header, path, store_id)
            elif kind == CHANGES:
                changes = msgspec.msgpack.decode(payload, type=Changes)
            elif kind == HOT:
                hot.append(_hot_decoder.decode(payload))
            elif kind != END:
                raise ValueError(f"a block of the unknown kind {kind}")
            elif msgspec.msgpack.decode(payload, type=CheckpointEnd).hot != len(hot):
                raise ValueError("the end block counts other blocks than the file holds")
    except DamagedBlock as error:
        raise DamagedData(path, error.position, "a sound block", error.problem) from error
    except ValueError as error:
        raise DamagedData(path, block_position, "a block of a checkpoint", str(error)) from error
    if header is None or changes is None or changes.lsn != header.lsn:
        raise DamagedData(path, 0, "a header and the changes up to it", "a file without them")
    return Checkpoint(header.lsn, changes, hot)


def _check_header(header: CheckpointHeader, path: str, store_id: str) -> None:
    if header.store_id != store_id:
        raise DamagedData(path, 0, f"a checkpoint of store {store_id}", "another one")
    if header.format > FORMAT:
        raise StartupError(f"{path} has format {header.format}; run a newer Millstream")
