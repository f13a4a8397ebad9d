from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import pytest

from millstream import __version__
from millstream.cli import main as cli
from millstream.config import Config, flag_name
from millstream.engine.timings import Timings
from millstream.errors import StartupError


def help_text(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["serve", "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_every_setting_is_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_text(capsys).split())
    for setting in dataclasses.fields(Config):
        assert flag_name(setting) + " " in text
        assert setting.metadata["help"].split(";")[0][:40] in text


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []

    async def serve(config: Config, timings: Timings) -> int:
        served.append(config)
        return 7

    monkeypatch.setattr(cli, "serve", serve)
    monkeypatch.setattr(cli, "configure_logs", lambda log_format, level, sparing: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: None)
    arguments = ["serve", "--data-dir", "x", "--page-bytes", "1KiB", "--access-log"]
    assert cli.main(arguments) == 7
    expected = Config(data_dir=Path("x"), page_bytes=1024, access_log=True)
    assert served == [expected]


def test_an_invalid_setting_is_told_in_one_line_with_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["serve", "--listen", "nonsense"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("millstream: --listen: 'nonsense'")


def test_a_place_for_objects_that_is_none_is_an_invalid_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["serve", "--cold", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("millstream: --cold: 'nowhere' is not a place")


def test_a_server_that_cannot_start_says_why_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(arguments: object, timings: Timings) -> int:
        raise StartupError("data folder x is in use")

    monkeypatch.setattr(cli, "run_serve", refuse)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == "millstream: data folder x is in use\n"


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"millstream {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["dance"], ["serve", "--no-such-flag"]])
def test_a_command_line_that_makes_no_sense_is_refused_with_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: millstream" in capsys.readouterr().err
