from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from millstream.telemetry import configure_logs


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


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
