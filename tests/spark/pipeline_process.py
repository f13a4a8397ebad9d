"""A `millstream pipeline run` of its own, and whoever it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

END_SECONDS_MAX = 120.0


class Pipeline:
    """In a process group of its own, so that whoever it leaves behind is found."""

    def __init__(self, url: str, *flags: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "millstream", "pipeline", "run", "--server", url, *flags]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("MILLSTREAM_", "AWS_"))}
        self.process = subprocess.Popen(
            command,
            env={**clean, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def wait(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=END_SECONDS_MAX)
        return self.process.returncode, output

    def kill(self) -> None:
        """-9, and the JVM and the workers have to notice by themselves."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def java_pid(self) -> int:
        [found] = [
            pid
            for pid in members(self.process.pid)
            if b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return found

    def wait_all_gone(self) -> None:
        deadline = time.monotonic() + 30
        while left := members(self.process.pid):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.1)

    def end(self) -> None:
        """For a test that failed, too."""
        for pid in members(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.kill()


def members(session_id: int) -> list[int]:
    """Processes of a session; zombies do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session_id and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
