"""`make test` and `make quick`: the stages of the suite, what waits beside what computes.

    python -m tests.stages --lane check unit ... --lane official clients ... --alone freeze ...

A stage is a target of the Makefile. The stages of a lane run one after the other, the lanes beside
each other, and behind them those that want the machine to themselves. A stage's output is printed
whole when it ends. All stages run, whichever fails; then the exit code is 1. However this ends,
by Ctrl-C or SIGTERM too, no process of a stage is left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

LOOK_SECONDS = 0.05
_BECOME_SUBREAPER = 36  # prctl: PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Outcome:
    stage: str
    exit_code: int
    seconds: float
    cpu_seconds: float


class Stages:
    """Runs stages and collects what came of them."""

    def __init__(self, make: str, polite_seconds: float) -> None:
        self.outcomes: list[Outcome] = []
        self._make = make
        self._polite_seconds = polite_seconds
        self._running: dict[int, str] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def run_lanes(self, lanes: list[list[str]]) -> None:
        threads = [threading.Thread(target=self._run_lane, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(LOOK_SECONDS)
            self._bury_orphans()

    def _bury_orphans(self) -> None:
        """A test may look whether a process is gone, and one that nobody waited for is not."""
        with self._lock:
            for pid in _children(os.getpid()):
                if pid not in self._running:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def _run_lane(self, stages: list[str]) -> None:
        for stage in stages:
            self._run(stage)

    def _run(self, stage: str) -> None:
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if self._is_over:
                    return
                self._say(f"-- {stage}: started")
                began = time.monotonic()
                # A session of its own: Ctrl-C comes here first, and then to all of a stage at once.
                process = subprocess.Popen(
                    [self._make, "--no-print-directory", stage],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running[process.pid] = stage
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except ChildProcessError:
                return  # `_end_leftovers` was quicker: all of this is over
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds, cpu_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
            with self._lock:
                del self._running[process.pid]
                outcome = Outcome(stage, process.returncode, seconds, cpu_seconds)
                self.outcomes.append(outcome)
                self._tell(outcome, output)

    def _tell(self, outcome: Outcome, output: IO[bytes]) -> None:
        self._say(f"\n==== {outcome.stage} " + "=" * (70 - len(outcome.stage)))
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        self._say(f"-- {outcome.stage}: {_verdict(outcome)} after {outcome.seconds:.0f} s\n")

    @staticmethod
    def _say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def interrupt(self) -> None:
        """No stage starts any more; those that run are asked to end, and end soon."""
        self._is_over = True
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in list(self._running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)
            deadline = time.monotonic() + self._polite_seconds
            while self._running and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)

    def table(self, seconds: float) -> str:
        rows = [f"{'stage':<16}{'seconds':>8}{'CPU s':>8}"]
        for outcome in self.outcomes:
            row = _row(outcome.stage, outcome.seconds, outcome.cpu_seconds)
            rows.append(f"{row}  {_verdict(outcome)}")
        cpu_seconds = sum(outcome.cpu_seconds for outcome in self.outcomes)
        return "\n".join([*rows, _row("all", seconds, cpu_seconds)])


def _row(name: str, seconds: float, cpu_seconds: float) -> str:
    return f"{name:<16}{seconds:>8.0f}{cpu_seconds:>8.0f}"


def _verdict(outcome: Outcome) -> str:
    return "passed" if outcome.exit_code == 0 else f"FAILED (exit code {outcome.exit_code})"


def _adopt_orphans() -> None:
    """A process whose parent has ended becomes ours, not that of process 1: so we can end it."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    found = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _descendants(pid: int) -> Iterator[int]:
    """Those below come first."""
    for child in _children(pid):
        yield from _descendants(child)
        yield child


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_leftovers() -> list[str]:
    """Ends every process that a stage left behind; what they were."""
    _reap()
    ended = dict[int, str]()
    while left := list(_descendants(os.getpid())):
        for pid in left:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                ended.setdefault(pid, b" ".join(words).decode(errors="replace"))
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
    return list(ended.values())


def _interrupted(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    _adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    stages, began = Stages(options.make, options.polite_seconds), time.monotonic()
    try:
        stages.run_lanes(options.lane)
        stages.run_lanes([options.alone])
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("-- interrupted: ending what runs", flush=True)
        stages.interrupt()
        _end_leftovers()
        return 130
    for command in _end_leftovers():
        print(f"-- had been left behind: {command}")
    print(stages.table(time.monotonic() - began), flush=True)
    return 1 if any(outcome.exit_code for outcome in stages.outcomes) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stages", description=__doc__)
    parser.add_argument("--make", default="make", help="the program that knows the stages")
    parser.add_argument("--lane", nargs="+", action="append", default=[], metavar="STAGE")
    parser.add_argument("--alone", nargs="+", default=[], metavar="STAGE")
    parser.add_argument(
        "--polite-seconds", type=float, default=10.0, help="for pytest to end its servers (10)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
