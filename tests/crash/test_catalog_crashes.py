"""A process that merges is killed at random moments; what it leaves must fit the model."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

from tests.crash.catalog_merger import history, open_and_finish
from tests.unit.tier.catalog_world import World, assert_equal, open_catalog

KILLS = 12
MERGING_SECONDS_MAX = 0.1


def test_a_killed_merge_leaves_what_merging_again_completes(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    folder = tmp_path / "catalog"
    cut_short = 0
    for _ in range(KILLS):
        merged = merge_until_killed(folder, seed, random.uniform(0, MERGING_SECONDS_MAX))
        assert_nothing_between(folder, seed, merged)
        catalog = open_catalog(folder)
        cut_short += len(set(catalog._lsns)) > 1
        catalog.close()
        catalog, _ = open_and_finish(folder, seed)
        assert catalog.lsn >= merged
        assert_equal(catalog, world_at(seed, catalog.lsn).model)
        catalog.close()
    print(f"{cut_short} of {KILLS} kills between two files")


def merge_until_killed(folder: Path, seed: int, seconds: float) -> int:
    """The last position the process reported."""
    command = [sys.executable, "-m", "tests.crash.catalog_merger", str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        rest = process.stdout.read()
    lines = (first + rest).splitlines(keepends=True)
    return int([line for line in lines if line.endswith(b"\n")][-1])


def assert_nothing_between(folder: Path, seed: int, merged: int) -> None:
    """Every file is at a position that was reported, or at the one behind it."""
    catalog = open_catalog(folder)
    following = next(changes.lsn for changes, _ in history(seed) if changes.lsn > merged)
    assert set(catalog._lsns) <= {merged, following}
    assert catalog.verify().problem is None
    catalog.close()


def world_at(seed: int, lsn: int) -> World:
    return next(world for changes, world in history(seed) if changes.lsn == lsn)
