"""A busy server is killed at random moments and must come back with all it promised, and no more.

Replay a seed with `python -m tests.crash --seed N --variant NAME --generations G`, and `--s3` where
the cold content went there.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.crash.rounds import RoundReport, run_round
from tests.crash.variants import VARIANTS
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.seaweed import SeaweedFS

GENERATIONS = 6
COLD_GENERATIONS = 4


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_server_keeps_what_it_acknowledged(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    report = run_round(seed, tmp_path, GENERATIONS)
    print(report)
    assert report.kills + report.stops >= 7
    assert report.acknowledged >= 100
    assert report.shown >= 10


@pytest.mark.parametrize(
    ("seed", "variant"),
    [(21, "flush"), (22, "checkpoint"), (23, "flush and checkpoint"), (24, "budget")],
)
def test_a_server_killed_amid_flushes_and_checkpoints_keeps_it_too(
    seed: int, variant: str, tmp_path: Path
) -> None:
    print(f"seed {seed}, variant {variant}")
    report = run_round(seed, tmp_path, COLD_GENERATIONS, flags=VARIANTS[variant])
    check_cold(report)


@pytest.mark.parametrize(("seed", "variant"), [(31, "flush and checkpoint"), (32, "budget")])
def test_a_server_killed_while_it_writes_to_s3_keeps_it_too(
    seed: int, variant: str, tmp_path: Path, seaweed: SeaweedFS
) -> None:
    print(f"seed {seed}, variant {variant}, s3")
    flags = (*VARIANTS[variant], *seaweed.flags(f"crash-{secrets.token_hex(4)}"))
    report = run_round(seed, tmp_path, COLD_GENERATIONS, flags=flags)
    check_cold(report)


def test_a_server_killed_while_s3_loses_answers_keeps_it_too(
    tmp_path: Path, seaweed: SeaweedFS
) -> None:
    """Tries that were repeated leave objects that nobody refers to; nobody may notice."""
    seed, fault = 41, Fault(lose_answer=True, every=4)
    print(f"seed {seed}, {fault}")
    with FaultyStore(seaweed.port) as proxy, proxy.failing(fault):
        cold = seaweed.flags(f"crash-{secrets.token_hex(4)}", port=proxy.port)
        flags = (*VARIANTS["flush and checkpoint"], *cold)
        report = run_round(seed, tmp_path, COLD_GENERATIONS, flags=flags)
    check_cold(report)


def check_cold(report: RoundReport) -> None:
    print(report)
    assert report.kills + report.stops >= 4
    assert report.acknowledged >= 50
