"""Which store a damaged folder was: its identity file, its log and its cold store each say so, and
any of them may be wrong. What most of them say is tried first."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.errors import StartupError
from millstream.formats.wal import SEGMENT_HEADER_BYTES, decode_segment_header
from millstream.journal.disk import Disk
from millstream.journal.folder import IDENTITY_FILE, ReadFolder, load_identity
from millstream.offline.salvage_report import Damage
from millstream.tier.identity import load_owner
from millstream.tier.objects import ObjectStore


class Candidate(NamedTuple):
    store_id: str
    damage: Damage | None  # of the folder's own word for it


def find_candidates(disk: Disk, folder: ReadFolder, objects: ObjectStore) -> list[Candidate]:
    """The likeliest first.

    Raises StartupError when nothing tells, or when all that tells is of another version.
    """
    refusal: StartupError | None = None
    said: str | None = None
    try:
        said = load_identity(folder.path)
        problem = "expected a file, found none"
    except StartupError as error:
        refusal, problem = error, str(error)
    told = list(_told_by_log(disk, folder))
    if refusal is not None and not told and "has format" in problem:
        raise refusal
    votes = Counter(told if said is None else [said, *told])  # the first wins a draw
    with contextlib.suppress(OSError, StartupError):
        votes[load_owner(objects)] += 1
    if not votes:
        raise StartupError(f"nothing tells which store {folder.path} was: {problem}")
    return [
        Candidate(store_id, _damage(folder, said, store_id, problem))
        for store_id, _ in votes.most_common()
    ]


def _damage(folder: ReadFolder, said: str | None, store_id: str, problem: str) -> Damage | None:
    if said == store_id:
        return None
    if said is not None:
        problem = f"it says store {said}, the rest fits to {store_id}"
    return Damage(str(folder.path / IDENTITY_FILE), None, problem)


def _told_by_log(disk: Disk, folder: ReadFolder) -> Iterator[str]:
    for path in sorted(Path(folder.wal).glob("*.wal")):
        header = decode_segment_header(disk.read(str(path), SEGMENT_HEADER_BYTES))
        if header is not None:
            yield header.store_id
