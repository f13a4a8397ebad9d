from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.jobs.pipeline_requirements import PACKAGES, find_missing


def install(folder: Path, package: str, *, is_whole: bool = True) -> None:
    """As an installer does it: the package, its description, and the list of files at the end."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    described = folder / f"{package}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    if is_whole:
        (described / "RECORD").write_text(f"{package}/__init__.py,,\n")


@pytest.fixture
def java(tmp_path: Path) -> Path:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    return home


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that packages are looked for in."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return folder


def test_without_java_the_message_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_missing(tmp_path) == (
        "the pipeline needs Java 17 or newer; install it: apt-get install openjdk-17-jre-headless"
    )


def test_a_java_in_java_home_is_enough(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_missing(java) is None


def test_without_packages_the_message_names_the_command_that_installs_them(
    site: Path, java: Path
) -> None:
    assert find_missing(java) == (
        "the pipeline needs pyspark and pandas; install them: pip install 'millstream[pipeline]'"
    )


@pytest.mark.parametrize("late", PACKAGES)
def test_a_package_that_is_being_installed_is_not_there_yet(
    site: Path, java: Path, late: str
) -> None:
    for package in PACKAGES:
        install(site, package, is_whole=package != late)
    assert "the pipeline needs pyspark and pandas" in str(find_missing(java))
    (site / f"{late}-1.0.dist-info" / "RECORD").write_text("")
    assert find_missing(java) is None


def test_a_spark_that_no_installer_brought_counts(
    site: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert find_missing(java) is None


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
