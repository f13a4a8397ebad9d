"""A process that merges one checkpoint after the other, until it is killed.

python -m tests.crash.catalog_merger FOLDER SEED: prints the position of every finished merge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from millstream.tier.catalog import Catalog, Changes
from tests.unit.tier.catalog_world import World, open_catalog

SHARDS = 3
SCALE = 30  # new streams in a checkpoint, at most


def history(seed: int) -> Iterator[tuple[Changes, World]]:
    """The same for the same seed: the changes of each checkpoint, and the world after it."""
    world = World(Random(seed), SHARDS, SCALE)
    while True:
        yield world.step(), world


def open_and_finish(folder: Path, seed: int) -> tuple[Catalog, Iterator[tuple[Changes, World]]]:
    """The catalog, after what recovery does: the last changes are merged again."""
    catalog = open_catalog(folder, SHARDS)
    checkpoints = history(seed)
    started = max(catalog._lsns)
    if started:
        changes = next(changes for changes, _ in checkpoints if changes.lsn == started)
        catalog.merge(changes)
    return catalog, checkpoints


def main() -> None:
    catalog, checkpoints = open_and_finish(Path(sys.argv[1]), int(sys.argv[2]))
    for changes, _ in checkpoints:
        catalog.merge(changes)
        print(catalog.lsn, flush=True)


if __name__ == "__main__":
    main()
