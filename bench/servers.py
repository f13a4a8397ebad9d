"""The servers under test: how each is started, when it is ready, what it costs."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import processes
from bench.errors import BenchError
from bench.wire import Connection, encode_request

REPO = Path(__file__).resolve().parent.parent
REFERENCE_SCRIPT = REPO / "bench" / "reference_server.mjs"
REFERENCE_PACKAGE = REPO / "tests/conformance/official/node_modules/@durable-streams/server"
READY_SECONDS = 20
LOG_TAIL_CHARACTERS = 800


@dataclass(frozen=True)
class ServerKind:
    name: str
    durable: bool
    reference: bool
    source: Path = REPO  # the checkout it runs from

    def command(self, port: int, data_dir: Path) -> list[str]:
        if self.reference:
            return ["node", str(REFERENCE_SCRIPT), str(port), *([str(data_dir)] * self.durable)]
        storage = ["--data-dir", str(data_dir)] if self.durable else ["--memory"]
        listen = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "millstream", "serve", "--listen", listen, *storage]
        # No Spark beside a measurement that did not ask for it.
        return [*command, "--pipeline", "off"]

    def says_ready(self, port: int) -> bool:
        # The reference has no readiness path; any answer at all means that it listens.
        path = "/v1/stream/none" if self.reference else "/readyz"
        try:
            with Connection(port) as connection:
                reply = connection.exchange(encode_request("GET", path))
        except (OSError, BenchError):
            return False
        return self.reference or reply.status == 200


KINDS = {
    kind.name: kind
    for kind in (
        ServerKind("millstream", durable=True, reference=False),
        ServerKind("millstream-memory", durable=False, reference=False),
        ServerKind("reference-file", durable=True, reference=True),
        ServerKind("reference-memory", durable=False, reference=True),
    )
}

BASE = "millstream-base"


def base_kind(source: Path) -> ServerKind:
    """Another checkout of Millstream, so that a change is measured against what was before it."""
    return ServerKind(BASE, durable=True, reference=False, source=source)


@dataclass(frozen=True)
class Server:
    """A running server and the directory of this measurement, both gone afterwards."""

    kind: ServerKind
    port: int
    pid: int
    work_dir: Path

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def rss_mib(self) -> float:
        return processes.rss_bytes(self.pid) / 2**20

    def rss_peak_mib(self) -> float:
        """The most it ever had, children left out."""
        return processes.rss_peak_bytes(self.pid) / 2**20

    def shorter(self, amount: int) -> int:
        """Less of `amount` for the reference, which needs far longer for the same work."""
        return max(1, amount * 3 // 5) if self.kind.reference else amount


@contextlib.contextmanager
def running(kind: ServerKind, work_root: Path) -> Iterator[Server]:
    """A fresh server on an empty directory below `work_root`; both are gone afterwards."""
    with work_folder(kind, work_root) as work_dir:
        yield from _running_in(work_dir, kind)


@contextlib.contextmanager
def work_folder(kind: ServerKind, work_root: Path) -> Iterator[Path]:
    """An empty directory of one measurement, gone afterwards."""
    work_dir = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=work_root))
    try:
        yield work_dir
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _running_in(work_dir: Path, kind: ServerKind) -> Iterator[Server]:
    data_dir = work_dir / "data"
    data_dir.mkdir()
    log_path = work_dir / "server.log"
    port = processes.free_port()
    with log_path.open("wb") as log:
        command = kind.command(port, data_dir)
        process = processes.start(command, cwd=kind.source, stdout=log)
    try:
        wait_ready(kind, port, process, log_path)
        yield Server(kind, port, process.pid, work_dir)
        if process.poll() is not None:
            raise BenchError(f"{kind.name} died during the measurement: {log_tail(log_path)}")
    finally:
        processes.stop(process)


def wait_ready(
    kind: ServerKind,
    port: int,
    process: subprocess.Popen[bytes],
    log_path: Path,
    seconds_max: float = READY_SECONDS,
) -> None:
    deadline = time.monotonic() + seconds_max
    while not kind.says_ready(port):
        if process.poll() is not None:
            raise BenchError(f"{kind.name} did not start: {log_tail(log_path)}")
        if time.monotonic() > deadline:
            raise BenchError(f"{kind.name} was not ready in time: {log_tail(log_path)}")
        time.sleep(0.01)


def log_tail(log_path: Path) -> str:
    return log_path.read_text(errors="replace").strip()[-LOG_TAIL_CHARACTERS:] or "(empty log)"


def why_not_available(kind: ServerKind) -> str | None:
    """What is missing on this machine to run `kind`, if anything."""
    if not kind.reference:
        return None if (kind.source / "src/millstream").is_dir() else "no checkout is there"
    if shutil.which("node") is None:
        return "node is not installed"
    if not REFERENCE_PACKAGE.is_dir():
        return "the reference server is not installed: cd tests/conformance/official && npm ci"
    return None
