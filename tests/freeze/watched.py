"""A server that tells of every moment its event loop stood still."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.http import Client
from tests.support.server import ServerProcess

USUAL_LOG = ("--wal-segment-bytes", "64MiB")  # large files are what could hold the loop up
ANSWER_SECONDS_MAX = 60.0  # a machine may be very busy
HELD_MS_MAX = 50.0  # what nobody may hold the loop for
LOOP_TURNS, LOOP_MS = 1_000_000, 30.0  # of CPU on a machine as it should be
SLOWNESS_MAX = 2.0  # what the watchdog's own test has to be seen on


class WatchedServer(ServerProcess):
    """Runs under `bench.stalls`; what it says is read as it comes."""

    def __init__(self, data_dir: Path | None = None, *flags: str) -> None:
        self.lines: list[str] = []
        self._questions = 0
        super().__init__(data_dir, *USUAL_LOG, *flags, wait=False, module="bench.stalls")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_ready()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace"))

    def finish_output(self) -> str:
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return "".join(self.lines)

    def stalls(self) -> list[dict[str, Any]]:
        """Since the last time somebody asked; none that is over by now is missing."""
        self._questions += 1
        answer = f'{{"told_of_all": {self._questions}}}'
        self.process.send_signal(signal.SIGVTALRM)
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while not any(line.startswith(answer) for line in self.lines):
            assert time.monotonic() < deadline, "the watchdog does not answer"
            time.sleep(0.02)
        lines, self.lines = self.lines, []
        found = [json.loads(line) for line in lines if line.startswith('{"stall_ms"')]
        return sorted(found, key=lambda stall: -stall["held_ms"])

    def hold_loop(self) -> None:
        """Somebody does not let go of it for a tenth of a second."""
        self.process.send_signal(signal.SIGALRM)

    def client(self, timeout_seconds: float = 120.0) -> Client:
        return Client("127.0.0.1", self.port, timeout_seconds)

    def many(self, requests: Iterable[bytes], connections: int = 4) -> list[int]:
        """Sends them pipelined over a few connections; the status of each, in no order."""
        shares: list[list[bytes]] = [[] for _ in range(connections)]
        for number, request in enumerate(requests):
            shares[number % connections].append(request)
        statuses: list[int] = []
        threads = [
            threading.Thread(target=self._pipeline, args=(share, statuses))
            for share in shares
            if share
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statuses

    def _pipeline(self, requests: list[bytes], statuses: list[int], ahead: int = 64) -> None:
        with socket.create_connection(("127.0.0.1", self.port), 120) as connection:
            stream = connection.makefile("rb")
            sent = 0
            for answered in range(len(requests)):
                if sent - answered <= ahead // 2:
                    connection.sendall(b"".join(requests[sent : answered + ahead]))
                    sent = min(len(requests), answered + ahead)
                statuses.append(_read_status(stream))


def held_ms_max() -> float:
    """A machine that computes at half its speed, as shared ones do, may take twice as long."""
    began = time.thread_time()
    for _ in range(LOOP_TURNS):
        pass
    slowness = (time.thread_time() - began) * 1000 / LOOP_MS
    return HELD_MS_MAX * min(max(slowness, 1.0), SLOWNESS_MAX)


def too_long(stalls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    limit = held_ms_max()
    return [stall for stall in stalls if stall["held_ms"] > limit]


def _read_status(stream: Any) -> int:
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if length:
        stream.read(length)
    return status


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.contextmanager
def watched_server(data_dir: Path | None = None, *flags: str) -> Iterator[WatchedServer]:
    server = WatchedServer(data_dir, *flags)
    try:
        yield server
    finally:
        server.kill()


def wait_quiet(server: WatchedServer, seconds: float = 0.3) -> None:
    """Lets what a request set off come to an end."""
    time.sleep(seconds)
    with contextlib.closing(server.client()) as client:
        client.get("/healthz")
