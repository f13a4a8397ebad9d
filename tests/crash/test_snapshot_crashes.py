"""Kills around the publication of snapshots and the making of buckets.

Replay a seed with `python -m tests.crash.snapshot_rounds --seed N`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.snapshot_rounds import APPENDS_MIN, BUCKETS_MIN, SNAPSHOTS_MIN, Round
from tests.crash.variants import VARIANTS
from tests.crash.wal_files import load_wal, parse_records, segment_names

GENERATIONS = 5


@pytest.mark.parametrize(
    ("seed", "variant"),
    [(1, "as planned"), (2, "as planned"), (3, "flush"), (4, "flush and checkpoint")],
    ids=lambda value: f"seed-{value}" if isinstance(value, int) else value,
)
def test_acknowledged_snapshots_and_buckets_survive_and_the_rest_is_whole_or_not_there(
    seed: int, variant: str, tmp_path: Path
) -> None:
    print(f"seed {seed}, variant {variant}")
    report = Round(seed, tmp_path, flags=VARIANTS[variant]).run(GENERATIONS)
    print(report)
    assert report.kills >= GENERATIONS
    assert report.snapshots >= GENERATIONS * SNAPSHOTS_MIN
    assert report.appends >= GENERATIONS * APPENDS_MIN
    assert report.buckets >= GENERATIONS * BUCKETS_MIN


def lose_blobs(data_dir: Path) -> None:
    for path in sorted((data_dir / "cold" / "snapshots").iterdir()):
        path.unlink()


def cut_blobs(data_dir: Path) -> None:
    for path in (data_dir / "cold" / "snapshots").iterdir():
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("tamper", [lose_blobs, cut_blobs], ids=lambda tamper: tamper.__name__)
def test_the_rounds_notice_blobs_that_are_lost_or_torn(
    tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    with pytest.raises(AssertionError):
        Round(4, tmp_path, tamper).run(2)


def test_the_rounds_notice_that_acknowledged_records_are_lost(tmp_path: Path) -> None:
    """The log is cut after the kill, as if the server had answered before it was durable."""

    def cut_log(data_dir: Path) -> None:
        files = load_wal(data_dir / "wal")
        name = segment_names(files)[-1]
        records = parse_records(files[name])
        keep = records[len(records) // 2].position if records else 0
        (data_dir / "wal" / name).write_bytes(files[name][:keep])

    with pytest.raises(AssertionError):
        Round(5, tmp_path, cut_log).run(2)
