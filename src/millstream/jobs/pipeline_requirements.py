"""What the pipeline needs beside the server, and the one command that installs what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

JAVA_COMMAND = "apt-get install openjdk-17-jre-headless"
PACKAGES_COMMAND = "pip install 'millstream[pipeline]'"
PACKAGES = ("pyspark", "pandas")
FILE_LISTS = ("RECORD", "installed-files.txt")  # the second when it was not installed from a wheel


def find_missing(java_home: Path | None) -> str | None:
    """What to install, in a sentence; None: a pipeline can run. Reads a few files.

    `java_home` is JAVA_HOME, where it is set. What comes while we run is seen.
    """
    importlib.invalidate_caches()
    if not all(map(_is_whole, PACKAGES)):
        return f"the pipeline needs {' and '.join(PACKAGES)}; install them: {PACKAGES_COMMAND}"
    if not _has_java(java_home):
        return f"the pipeline needs Java 17 or newer; install it: {JAVA_COMMAND}"
    return None


def _is_whole(package: str) -> bool:
    """An installer lists its files last: without the list it is under way, or was cut off."""
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        return any(found.read_text(name) is not None for name in FILE_LISTS)
    try:  # not from an installer: a Spark of the system's own, say
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the server refuses to load pandas
        return False


def _has_java(java_home: Path | None) -> bool:
    if java_home is not None and (java_home / "bin" / "java").is_file():
        return True
    return shutil.which("java") is not None
