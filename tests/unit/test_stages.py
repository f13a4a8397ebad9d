"""The runner of `make test`, with a shell script in the place of make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MAKE = """#!/bin/sh
stage="$2"
case "$stage" in
  mixed-*) for line in 1 2 3 4 5; do echo "$stage line $line"; sleep 0.01; done ;;
  breaks) echo "what broke"; exit 3 ;;
  burial) (setsid true & echo $! > "$FOLDER/dead.pid")
    while kill -0 "$(cat "$FOLDER/dead.pid")" 2>/dev/null; do sleep 0.01; done ;;
  orphan) (setsid sleep 600 & echo $! > "$FOLDER/orphan.pid") ; exit 0 ;;
  endless) trap '' INT TERM; setsid sleep 600 & echo $! > "$FOLDER/sleeper.pid"
    echo up > "$FOLDER/up"
    while :; do sleep 1; done ;;
esac
"""


@pytest.fixture
def make(tmp_path: Path) -> Path:
    path = tmp_path / "make"
    path.write_text(MAKE)
    path.chmod(0o755)
    return path


def command(make: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.stages", "--make", str(make), *arguments]


def run(make: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(make, *arguments),
        cwd=REPO,
        env=os.environ | {"FOLDER": str(make.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_runs_beside_each_other_is_printed_one_after_the_other(make: Path) -> None:
    done = run(make, "--lane", "mixed-a", "mixed-b", "--lane", "mixed-c", "--alone", "mixed-d")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for stage in ("mixed-a", "mixed-b", "mixed-c", "mixed-d"):
        first = lines.index(f"{stage} line 1")
        assert lines[first : first + 5] == [f"{stage} line {number}" for number in range(1, 6)]
    rows = [line.split() for line in lines[-5:]]
    assert {row[0] for row in rows[:-1]} == {"mixed-a", "mixed-b", "mixed-c", "mixed-d"}
    assert {row[3] for row in rows[:-1]} == {"passed"}
    assert [row[0] for row in rows[-2:]] == ["mixed-d", "all"]


def test_one_failure_fails_all_shows_itself_and_lets_the_others_run(make: Path) -> None:
    done = run(make, "--lane", "breaks", "mixed-a", "--alone", "mixed-b")
    assert done.returncode == 1
    assert "what broke" in done.stdout
    assert "mixed-a line 5" in done.stdout
    assert "mixed-b line 5" in done.stdout
    assert "FAILED (exit code 3)" in done.stdout


def test_a_process_that_a_stage_left_behind_is_ended_and_named(make: Path) -> None:
    done = run(make, "--lane", "orphan")
    assert "left behind: sleep 600" in done.stdout
    assert not is_alive(int((make.parent / "orphan.pid").read_text()))


def test_a_stage_can_see_that_a_process_without_a_parent_is_gone(make: Path) -> None:
    assert run(make, "--lane", "burial").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(make: Path, number: signal.Signals) -> None:
    os.mkfifo(make.parent / "up")
    runner = subprocess.Popen(
        command(make, "--lane", "endless", "mixed-a", "--polite-seconds", "0.2"),
        cwd=REPO,
        env=os.environ | {"FOLDER": str(make.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    (make.parent / "up").read_text()
    sleeper = int((make.parent / "sleeper.pid").read_text())
    assert is_alive(sleeper)
    runner.send_signal(number)
    output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert not is_alive(sleeper)
    assert "mixed-a" not in output
