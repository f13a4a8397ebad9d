"""Child processes: start them so that they cannot outlive us, read their cost, end them."""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 3
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    # Covers the one case no handler of ours can: `kill -9` of the benchmark itself. The signal
    # follows the death of the starting thread, so children are started from the main thread only.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(
    command: list[str], *, cwd: Path, stdout: int | IO[bytes], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a child in its own session: Ctrl-C reaches us alone, and we end it in order.

    What it says on standard error goes where its standard output goes.
    """
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(cwd / "src"), str(cwd)])},
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """When this returns the child is gone and reaped."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its children and all their threads."""
    return sum(_own_cpu_ticks(member) for member in _family(pid)) / TICKS_PER_SECOND


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its children."""
    return sum(
        int(Path(f"/proc/{member}/statm").read_text().split()[1]) * PAGE_BYTES
        for member in _family(pid)
    )


def rss_peak_bytes(pid: int) -> int:
    """The largest resident memory a process ever had, as the kernel remembers it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _own_cpu_ticks(pid: int) -> int:
    # The second field is the program's name in brackets and may hold spaces: count from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
