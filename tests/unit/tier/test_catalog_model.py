"""The catalog against plain dictionaries, through random histories with restarts and crashes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.tier.catalog import Catalog, Changes
from millstream.tier.catalog_changes import split
from tests.unit.tier.catalog_world import World, assert_equal, open_catalog

SHARDS = 3


def merge_some_files(catalog: Catalog, changes: Changes, files: int) -> None:
    """As far as a merge gets that is cut short."""
    for number, part in enumerate(split(changes, SHARDS)[:files]):
        catalog._merge_file(number, part)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_whatever_was_merged_cut_short_and_reopened_the_content_is_that_of_the_model(
    seed: int, fates: list[int]
) -> None:
    random = Random(seed)  # a history draws more than Hypothesis would hand out one by one
    with TemporaryDirectory() as folder:
        catalog = open_catalog(Path(folder) / "catalog", SHARDS)
        world = World(random, SHARDS)
        for fate in fates:
            before = catalog.lsn
            changes = world.step()
            if fate <= SHARDS:
                merge_some_files(catalog, changes, fate)
                assert catalog.lsn == before
            if fate % 2:
                catalog.close()
                catalog = open_catalog(Path(folder) / "catalog", SHARDS)
            catalog.merge(changes)
            if fate > SHARDS + 1:
                catalog.merge(changes)
            assert_equal(catalog, world.model)
        catalog.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_history_leaves_the_content_of_the_model(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    catalog = open_catalog(tmp_path / "catalog", SHARDS)
    world = World(Random(seed), SHARDS, scale=6)
    for _ in range(20):
        catalog.merge(world.step())
        assert_equal(catalog, world.model)
    assert len(world.model.runs) > 10
    assert len(world.model.garbage) > 10
    catalog.close()
