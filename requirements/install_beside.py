"""Installs packages beside a running server, and ends with it: `install_beside.py STAMP LOCK`.

`make serve` starts this and becomes the server. Whatever was cut off is made whole the next time.
"""

import ctypes
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> int:
    stamp, lock = Path(sys.argv[1]), Path(sys.argv[2])
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return 0
    server = os.getppid()
    end_with_parent()
    log_path = stamp.with_name("pipeline-install.log")
    say(f"installing the data pipeline (Spark, about 600 MB) while the server runs; see {log_path}")
    forget_what_was_cut_off()
    code = run_pip("--no-input", "--require-hashes", "-r", str(lock), log_path=log_path)
    if os.getppid() != server:
        return 1
    if code:
        say(
            f"the data pipeline could not be installed; {log_path} says why, and the next `make "
            "serve` tries again. The server goes on without it"
        )
        return 1
    stamp.touch()
    say("the data pipeline is installed; the server starts it when there is work for it")
    return 0


def end_with_parent() -> None:
    """However the server ends, this ends with it, and takes along what it has started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_pip(*arguments: str, log_path: Path) -> int:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    with log_path.open("wb") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # with the builds that it starts
        )
        try:
            return pip.wait()
        finally:
            if pip.poll() is None:
                os.killpg(pip.pid, signal.SIGKILL)


def forget_what_was_cut_off() -> None:
    """To pip a package is there as soon as it is described; the list of its files comes last."""
    for package in importlib.metadata.distributions():
        described = getattr(package, "_path", None)
        is_listed = package.read_text("RECORD") or package.read_text("installed-files.txt")
        if isinstance(described, Path) and described.is_dir() and is_listed is None:
            shutil.rmtree(described, ignore_errors=True)


def say(text: str) -> None:
    print(f"make serve: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
