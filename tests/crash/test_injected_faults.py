"""A server in which anything may raise at any moment, killed besides: nothing acknowledged is lost,
and when the errors end, every service gets on by itself.

Replay a seed with `python -m tests.crash --inject --seed N --generations G`; the long hunt is
`python -m tests.crash --inject --kills 300`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.injection import Injection
from tests.crash.rounds import RoundFailed, run_round
from tests.crash.variants import TROUBLED

GENERATIONS = 3
ROUNDS_MAX = 4


def test_amid_errors_and_kills_nothing_is_lost_and_no_service_dies_in_silence(
    tmp_path: Path,
) -> None:
    """Errors may end all clients of a round early: then the next seed is tried as well."""
    first = random.randrange(10**6)
    injected = acknowledged = 0
    for seed in range(first, first + ROUNDS_MAX):
        print(f"seed {seed}")
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        injection = Injection(seed, folder)
        report = run_round(seed, folder, GENERATIONS, flags=TROUBLED, injection=injection)
        print(report, f"{injection.injected} injected")
        assert report.kills + injection.fail_stops >= GENERATIONS
        injected += injection.injected
        acknowledged += report.acknowledged
        if injected >= 5 and acknowledged >= 50:
            return
    pytest.fail(f"{injected} injected and {acknowledged} acknowledged in {ROUNDS_MAX} rounds")


def test_the_hunt_sees_a_service_that_is_dead_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of this one never frees a shard whose flush has failed."""
    monkeypatch.setattr("tests.crash.injection.PROGRESS_SECONDS_MAX", 5.0)
    monkeypatch.setattr("tests.crash.injection.PERCENT", (60,))
    monkeypatch.setattr(Injection, "wants_progress", lambda self: True)
    injection = Injection(1, tmp_path)
    injection.module = "tests.crash.frozen_server"
    with pytest.raises(RoundFailed, match="dead in silence"):
        run_round(1, tmp_path, GENERATIONS, flags=TROUBLED, injection=injection)
