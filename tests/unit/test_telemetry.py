from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest
import structlog

from millstream.telemetry import KINDS_MAX, Sparing, configure_logs


def test_a_json_log_is_one_object_per_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    structlog.get_logger("millstream").info("two\nlines", path="/v1/stream/é")
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["path"]) == ("two\nlines", "/v1/stream/é")
    assert event["level"] == "info"
    assert event["timestamp"].endswith("Z")


def test_a_console_log_shows_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("console", "info")
    structlog.get_logger("millstream").warning("careful", bytes=5)
    line = capsys.readouterr().err
    assert "careful" in line
    assert "bytes=5" in line


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_lines_below_the_level_are_not_shown(
    capsys: pytest.CaptureFixture[str], level: str, shown: int
) -> None:
    configure_logs("json", level)
    log = structlog.get_logger("millstream")
    for write in (log.debug, log.info, log.warning, log.error):
        write("line")
    assert len(capsys.readouterr().err.splitlines()) == shown


def test_a_failure_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("millstream").exception("failed")
    assert "ValueError: broken" in json.loads(capsys.readouterr().err)["exception"]


class Log:
    """Lines that come through, at times of our own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines = list[dict[str, Any]]()
        self._sparing = Sparing(lambda: self.now)

    def say(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(structlog.DropEvent):
            self.lines.append(dict(self._sparing(None, "info", {"event": event, **fields})))


def test_one_line_of_a_kind_in_a_second_and_the_next_counts_the_others() -> None:
    log = Log()
    for n in range(50):
        log.say("broken", n=n)
    log.say("other")
    log.say("broken", where="there")
    log.now = 1.0
    log.say("broken", n=50)
    log.now = 2.0
    log.say("broken", n=51)
    assert log.lines == [
        {"event": "broken", "n": 0},
        {"event": "other"},
        {"event": "broken", "where": "there"},
        {"event": "broken", "n": 50, "not_shown": 49},
        {"event": "broken", "n": 51},
    ]


def test_the_access_log_is_never_spared() -> None:
    log = Log()
    for n in range(50):
        log.say("request", path=str(n))
    assert len(log.lines) == 50


def test_kinds_are_not_remembered_without_end() -> None:
    log = Log()
    for n in range(3 * KINDS_MAX):
        log.say(f"kind {n}")
    assert len(log.lines) == 3 * KINDS_MAX
    assert len(log._sparing._said_at) <= KINDS_MAX


def printed_by(program: str) -> list[dict[str, Any]]:
    """All that a process says, which has to be one object per line."""
    start = "from millstream.telemetry import *; configure_logs('json', 'info');"
    ended = subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, check=False
    )
    assert ended.stdout == ""
    return [json.loads(line) for line in ended.stderr.splitlines()]


def test_what_python_prints_is_json_too() -> None:
    warning, library, uncaught = printed_by(
        "import logging, warnings; warnings.warn('old');"
        "logging.getLogger('lib').error('broken %s', 'pipe'); [][1]"
    )
    assert (warning["event"], warning["category"]) == ("old", "UserWarning")
    assert (library["event"], library["logger"], library["level"]) == (
        "broken pipe",
        "lib",
        "error",
    )
    assert "IndexError" in uncaught["exception"]


def test_what_other_processes_print_is_json_too() -> None:
    lines = printed_by(
        "import subprocess, structlog\n"
        "with all_output_as_json('java'):\n"
        "    subprocess.run(['printf', r'WARN a\\n{broken\\n\\n{\"x\": 1}\\n'])\n"
        "    print('b'); structlog.get_logger('z').info('ours')\n"
        "    subprocess.Popen(['sleep', '1'])\n"  # it holds the other end, and nobody waits for it
        "structlog.get_logger('z').info('behind')\n"
    )
    said = [line.get("event") for line in lines]
    assert said == ["WARN a", "{broken", None, "b", "ours", "behind"]
    assert (lines[0]["source"], lines[0]["level"]) == ("java", "warning")
    assert lines[2] == {"x": 1}


def test_a_wrong_setting_is_told_as_json_when_json_was_asked_for() -> None:
    command = [sys.executable, "-m", "millstream", "serve", "--log-format", "json", "--shards", "x"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "--shards" in json.loads(ended.stderr)["event"]


READERS_GONE = """
import os, sys
import structlog
from millstream.telemetry import configure_logs, last_words

configure_logs(sys.argv[1], "info", sparing=True)
read_end, write_end = os.pipe()
os.dup2(write_end, 2)
os.close(write_end)
logger = structlog.get_logger("millstream")
logger.info("heard")
os.close(read_end)
logger.info("unheard")
logger.error("an error nobody hears", exc_info=ValueError("x"))
last_words("goodbye")
sys.stderr.close()
logger.info("to nowhere")
print("went on")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_log_whose_reader_has_left_harms_nobody(log_format: str) -> None:
    command = [sys.executable, "-c", READERS_GONE, log_format]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "went on\n"
