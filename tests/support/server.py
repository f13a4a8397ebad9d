"""Starts the real server as its own process and ends it, politely or not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.http import Client

START_SECONDS_MAX = 120.0  # only a fault reaches it, however busy the machine is
# A log file is zeroed before it is used: at its usual size, by every server of every test, that is
# most of what the suite would write.
SMALL_LOG = ("--wal-segment-bytes", "4MiB")
LISTENING = "0A"  # in /proc/net/tcp

# Where every record of the log has to be a request of the test's own.
NO_OWN_STREAMS = ("--registry-stream", "off", "--metrics-stream", "0")

# Nearly everything is cold: each append is flushed, every few are checkpointed, streams leave
# memory, and what is read is rarely still in the cache.
MOSTLY_COLD = (
    *("--hot-bytes", "1MiB", "--flush-bytes", "1", "--cold-cache-bytes", "1MiB"),
    *("--checkpoint-wal-bytes", "16KiB", "--resident-streams", "8", "--log-level", "warning"),
)


# Receivers of webhooks are on this machine, which the server does not call unless it is told to.
LOCAL_WEBHOOKS = ("--webhook-allow", "127.0.0.0/8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(pid: int, port: int) -> bool:
    """Whether it is this process that listens there: a port that was free a moment ago may have
    been taken by somebody else, who then answers in its place."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    sockets = {
        f"socket:[{field[9]}]"
        for field in fields
        if field[3] == LISTENING and int(field[1].partition(":")[2], 16) == port
    }
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) in sockets:
                    return True
    return False


class ServerProcess:
    """One running `millstream serve`. `data_dir=None` means the memory journal."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *flags: str,
        port: int | None = None,
        wait: bool = True,
        module: str = "millstream",
    ) -> None:
        self.port = port or free_port()
        self.data_dir = data_dir
        self.flags = flags
        command = [sys.executable, "-m", module, "serve"]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        command += ["--memory"] if data_dir is None else ["--data-dir", str(data_dir), *SMALL_LOG]
        command += ["--pipeline", "off", *flags]  # or a long test meets a JVM that nobody asked for
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        self.output = b""
        if wait:
            self.wait_ready()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Client:
        return Client("127.0.0.1", self.port)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            if self.process.poll() is not None:
                output = self.finish_output()
                raise RuntimeError(f"server ended with {self.process.returncode}: {output}")
            try:
                with contextlib.closing(self.client()) as client:
                    is_ready = client.call("GET", "/readyz").status == 200
                    if is_ready and is_listening(self.process.pid, self.port):
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"server not ready in time: {self.finish_output()}")
            time.sleep(0.01)

    def finish_output(self) -> str:
        """Everything the ended process printed."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.output += self.process.stdout.read()
            self.process.stdout.close()
        return self.output.decode(errors="replace")

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self.finish_output()
        return self.process.returncode

    def kill(self) -> None:
        """kill -9, the way a crash ends a process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.finish_output()


@contextlib.contextmanager
def running_server(data_dir: Path | None = None, *flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess(data_dir, *flags)
    try:
        yield server
    finally:
        server.kill()
