from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import StartupError
from millstream.pipeline.requirements import check_requirements


def test_without_java_the_message_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(StartupError, match="apt-get install openjdk-17-jre-headless"):
        check_requirements(tmp_path)


def test_a_java_in_java_home_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    check_requirements(tmp_path)


def test_without_pyspark_the_message_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install 'millstream\[pipeline\]'"):
        check_requirements(None)


def test_the_command_ends_with_exit_code_2_without_java() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
    ended = subprocess.run(
        [sys.executable, "-m", "millstream", "pipeline", "run", "--once"],
        env={**environment, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "millstream: the pipeline needs Java 17 or newer; "
        "install it: apt-get install openjdk-17-jre-headless\n"
    )


def test_other_commands_do_not_load_spark() -> None:
    program = (
        "import sys, millstream.cli.main as cli;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('pyspark', 'pandas')])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
