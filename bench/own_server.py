"""A server that a case starts, stops and kills itself, with flags of its own, on one folder."""

import contextlib
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from bench import processes
from bench.errors import BenchError
from bench.servers import Server, ServerKind, log_tail, wait_ready
from bench.wire import HOST

STOP_SECONDS_MAX = 120
IDLE_SECONDS_MAX = 600
LOOK_SECONDS = 0.5
QUIET_LOOKS = 4
"""Nothing moved for two seconds: flushes, checkpoints and evictions are done."""
MOVING = (
    "millstream_flushes_total",
    "millstream_checkpoints_total",
    "millstream_resident_streams",
    "millstream_hot_bytes",
    "millstream_wal_written_bytes_total",
)


class OwnServer:
    """`with OwnServer(kind, work_dir, *flags) as own:`; it may be started again after its end."""

    def __init__(self, kind: ServerKind, work_dir: Path, *flags: str) -> None:
        self.kind = kind
        self.work_dir = work_dir
        self.data_dir = work_dir / "data"
        self.flags = flags
        self._log_path = work_dir / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> "OwnServer":
        self.data_dir.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def server(self) -> Server:
        return Server(self.kind, self.port, self._running().pid, self.work_dir)

    def start(self, *more_flags: str, seconds_max: float = 120) -> float:
        """Seconds from the start of the process until it says that it is ready."""
        assert self._process is None, "it runs already"
        self.port = processes.free_port()
        command = [*self.kind.command(self.port, self.data_dir), *self.flags, *more_flags]
        began = time.monotonic()
        with self._log_path.open("ab") as log:
            self._process = processes.start(command, cwd=self.kind.source, stdout=log)
        wait_ready(self.kind, self.port, self._process, self._log_path, seconds_max)
        return time.monotonic() - began

    def stop(self) -> float:
        """Politely, with the last checkpoint and all; the seconds that took."""
        process, self._process = self._running(), None
        began = time.monotonic()
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BenchError(f"the server did not stop in {STOP_SECONDS_MAX} s") from None
        if code:
            raise BenchError(f"the server stopped with {code}: {log_tail(self._log_path)}")
        return time.monotonic() - began

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._running(), None
        process.kill()
        process.wait()

    def metrics(self) -> dict[str, float]:
        return load_metrics(self.port)

    def wait_idle(self) -> dict[str, float]:
        """Until flushes, checkpoints and evictions have come to rest; what it says then."""
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        before: list[float] = []
        quiet = 0
        while quiet < QUIET_LOOKS:
            if time.monotonic() > deadline:
                raise BenchError(f"the server does not come to rest in {IDLE_SECONDS_MAX} s")
            time.sleep(LOOK_SECONDS)
            metrics = self.metrics()
            now = [metrics[name] for name in MOVING]
            quiet = quiet + 1 if now == before else 0
            before = now
        return metrics

    def wait_flushed(self) -> None:
        """Until nothing is in memory only. Needs a short `--flush-age`."""
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        while self.metrics()["millstream_hot_bytes"]:
            if time.monotonic() > deadline:
                raise BenchError(f"not everything is flushed after {IDLE_SECONDS_MAX} s")
            time.sleep(LOOK_SECONDS)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BenchError("the server does not run")
        if self._process.poll() is not None:
            raise BenchError(f"the server died: {log_tail(self._log_path)}")
        return self._process


def load_metrics(port: int) -> dict[str, float]:
    """Every sample of /metrics, by its name with its labels."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    samples = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        with contextlib.suppress(ValueError):
            samples[name] = float(value)
    return samples
