"""A process beside the server, here a small program: when it is begun, and that it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from millstream.config import Config
from millstream.engine.timings import Backoff, Timings
from millstream.faults import Faults
from millstream.jobs import pipeline_process
from millstream.jobs.pipeline_process import PipelineProcess, Requirements
from tests.unit.cold.cold_office import until

BRIEF = 0.005
URL = "http://127.0.0.1:1"
TIMINGS = Timings(pipeline_retry=Backoff(BRIEF, BRIEF), pipeline_stop=0.5)

# Each writes a line when it begins, its number and what it was called with.
ENDS = "import os, sys; print(os.getpid(), *sys.argv[1:], file=open({file!r}, 'a'))"
FAILS = ENDS + "; sys.exit(3)"
STAYS = ENDS + "; sys.stdin.read()"
IGNORES_SIGTERM = "import signal; signal.signal(15, signal.SIG_IGN); " + STAYS


class Programs:
    """The pipeline is one of these programs, and always wanted but where a test says otherwise."""

    def __init__(self, file: Path, program: str) -> None:
        self._file = file
        self.faults = Faults()
        self.wanted: Callable[[], Awaitable[bool]] = self._always
        self.process = PipelineProcess(
            Config(), ("run", "--once"), self._is_wanted, BRIEF, self.faults, TIMINGS
        )
        code = program.format(file=str(file))
        self.process.program = (sys.executable, "-c", code)

    async def _always(self) -> bool:
        return True

    async def _is_wanted(self) -> bool:
        return await self.wanted()

    @property
    def begun(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def pid(self) -> int:
        return int(self.begun[0].split()[0])

    async def run_until(self, condition: Callable[[], object]) -> None:
        async with (
            asyncio.timeout(50),
            asyncio.TaskGroup() as group,
            self.process.running(group, URL),
        ):
            await until(condition)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_begun_again_after_it_ended_and_told_the_server(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "begun", ENDS)
    with structlog.testing.capture_logs() as logs:
        asyncio.run(programs.run_until(lambda: len(programs.begun) >= 2))
    called = programs.begun[0].split()[1:]
    assert called == ["pipeline", "run", "--once", "--until-input-ends", "--server", URL]
    assert "the pipeline ended" not in [line["event"] for line in logs]


def test_one_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "begun", FAILS)
    with structlog.testing.capture_logs() as logs:
        asyncio.run(programs.run_until(lambda: len(programs.begun) >= 2))
    ended = [line for line in logs if line["event"] == "the pipeline ended"]
    assert (ended[0]["exit_code"], ended[0]["again_in_seconds"]) == (3, BRIEF)


def test_one_that_cannot_be_begun_is_said_and_tried_again(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "begun", ENDS)
    programs.process.program = (str(tmp_path / "missing"), "", "")
    failed = "the pipeline cannot be started"
    with structlog.testing.capture_logs() as logs:
        asyncio.run(programs.run_until(lambda: [line["event"] for line in logs].count(failed) >= 2))
    assert not programs.faults.failing()


@pytest.mark.parametrize("program", [STAYS, IGNORES_SIGTERM])
def test_it_has_ended_when_the_server_stops(tmp_path: Path, program: str) -> None:
    programs = Programs(tmp_path / "begun", program)
    with structlog.testing.capture_logs():
        asyncio.run(programs.run_until(lambda: programs.begun))
    assert len(programs.begun) == 1
    assert not is_alive(programs.pid())


def test_an_unexpected_error_is_heard_and_got_over(tmp_path: Path) -> None:
    asked: list[bool] = []
    programs = Programs(tmp_path / "begun", ENDS)

    async def wanted() -> bool:
        asked.append(True)
        if len(asked) == 1:
            raise RuntimeError("injected")
        return False

    programs.wanted = wanted
    with structlog.testing.capture_logs():
        asyncio.run(programs.run_until(lambda: len(asked) > 1 and not programs.faults.failing()))
    assert programs.faults.counts["pipeline"] == 1
    assert programs.begun == []


def test_what_is_missing_is_said_once_and_when_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing: list[str | None] = ["Java is missing", "Java is missing", None, None]

    def find_missing(java_home: Path | None) -> str | None:
        return missing.pop(0)

    monkeypatch.setattr(pipeline_process, "find_missing", find_missing)

    async def looks() -> list[bool]:
        requirements = Requirements()
        return [await requirements.are_met() for _ in range(4)]

    with structlog.testing.capture_logs() as logs:
        assert asyncio.run(looks()) == [False, False, True, True]
    assert [line["log_level"] for line in logs] == ["warning", "info"]
