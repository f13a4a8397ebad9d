"""What a run needs beside Python, and the one command that installs what is missing."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from millstream.errors import StartupError

JAVA_COMMAND = "apt-get install openjdk-17-jre-headless"
PYSPARK_COMMAND = "pip install 'millstream[pipeline]'"


def check_requirements(java_home: Path | None) -> None:
    """Raises StartupError. `java_home` is JAVA_HOME, where it is set."""
    if importlib.util.find_spec("pyspark") is None:
        raise StartupError(f"the pipeline needs pyspark; install it: {PYSPARK_COMMAND}")
    if not _has_java(java_home):
        raise StartupError(f"the pipeline needs Java 17 or newer; install it: {JAVA_COMMAND}")


def _has_java(java_home: Path | None) -> bool:
    if java_home is not None and (java_home / "bin" / "java").is_file():
        return True
    return shutil.which("java") is not None
