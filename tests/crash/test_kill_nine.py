"""A busy server is killed at random moments and must come back with all it promised, and no more.

Replay a seed with `python -m tests.crash --seed N --generations 6`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.rounds import run_round

GENERATIONS = 6


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_killed_server_keeps_what_it_acknowledged(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    report = run_round(seed, tmp_path, GENERATIONS)
    print(report)
    assert report.kills + report.stops >= 7
    assert report.acknowledged >= 100
    assert report.shown >= 10
