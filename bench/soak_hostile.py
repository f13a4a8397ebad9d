"""Hostile clients for a soak: each does one bad thing over and over, while others work.

They are refused, cut off or served; which of these does not matter here. What matters is that
everybody else is served, that memory stays in its bounds, and that every content stays what it is.
"""

import json
import random
import socket
import time
from collections.abc import Callable

from bench.soak_clients import Progress, path_of
from bench.wire import JSON

PAUSE_SECONDS = 0.2
DRIPS = 9
SLOW_READERS = 8
FORK_DEPTH = 200
UPLOAD_BYTES = 32 * 2**20
GONE = (OSError, ValueError, IndexError)  # the server cut us off: as it should


class Hostile:
    """Connections to one server, and the worst of each kind."""

    def __init__(self, port: int, progress: Progress, streams: int, seed: int) -> None:
        self._port = port
        self._progress = progress
        self._streams = streams
        self._dice = random.Random(seed)
        self.done: dict[str, int] = {}

    def workers(self) -> list[Callable[[], None]]:
        kinds = (
            self._abort_upload,
            self._drip,
            self._giant_batch,
            self._read_slowly,
            self._bomb_of_patterns,
            self._deep_forks,
            self._flood_of_upgrades,
        )
        return [lambda kind=kind: self._repeat(kind) for kind in kinds]  # type: ignore[misc]

    def _repeat(self, kind: Callable[[], None]) -> None:
        name = kind.__name__.removeprefix("_")
        while not self._progress.ended.wait(PAUSE_SECONDS):
            try:
                kind()
            except GONE:
                pass
            self.done[name] = self.done.get(name, 0) + 1

    # Connections

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), 10)

    def _send(self, *requests: bytes) -> list[int]:
        """The status of each answer, on one connection."""
        found = []
        with self._connect() as connection:
            connection.sendall(b"".join(requests))
            answers = connection.makefile("rb")
            for _ in requests:
                found.append(int(answers.readline().split()[1]))
                length = 0
                while (line := answers.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                answers.read(length)
        return found

    # What they do

    def _abort_upload(self) -> None:
        """Half a large body, and gone."""
        with self._connect() as connection:
            connection.sendall(encode("POST", path_of(0), JSON, length=UPLOAD_BYTES))
            connection.sendall(b"1" * (UPLOAD_BYTES // 4))

    def _drip(self) -> None:
        """Large bodies that arrive a byte at a time."""
        connections = [self._connect() for _ in range(DRIPS)]
        try:
            for connection in connections:
                connection.sendall(encode("POST", path_of(1), JSON, length=UPLOAD_BYTES))
                connection.sendall(b"1" * 2**20)
            for _ in range(5):
                for connection in connections:
                    connection.sendall(b"1")
                if self._progress.ended.wait(1.0):
                    return
        finally:
            for connection in connections:
                connection.close()

    def _giant_batch(self) -> None:
        """Millions of messages in one body, and as many as are allowed in another."""
        name = f"/v1/stream/hostile/batch-{self._dice.randrange(10**9)}"
        most = b"[" + b"1," * (256 * 1024 - 1) + b"1]"
        self._send(
            encode("PUT", name, JSON),
            encode("POST", name, JSON, b"[" + b"1," * (4 * 2**20) + b"1]"),
            encode("POST", name, JSON, most),
            encode("DELETE", name),
        )

    def _read_slowly(self) -> None:
        """Subscribers who ask for everything and take next to nothing."""
        connections = [self._connect() for _ in range(SLOW_READERS)]
        try:
            for connection in connections:
                stream = self._dice.randrange(self._streams)
                connection.sendall(encode("GET", f"{path_of(stream)}?offset=-1&live=sse"))
            for _ in range(5):
                for connection in connections:
                    connection.recv(1)
                if self._progress.ended.wait(1.0):
                    return
        finally:
            for connection in connections:
                connection.close()

    def _bomb_of_patterns(self) -> None:
        """Patterns that are hard to match, and a stream that meets all of them."""
        root = "/v1/stream/__ds/subscriptions/hostile-"
        names = [f"{root}{number}" for number in range(40)]
        patterns = ["**/" * 330 + "x", *("hostile/" + "**/a/" * 15 + str(n) for n in range(39))]
        for name, pattern in zip(names, patterns, strict=True):
            if self._progress.ended.is_set():
                return
            wanted = {"type": "pull-wake", "wake_stream": "hostile/wake", "pattern": pattern}
            self._send(encode("PUT", name, JSON, json.dumps(wanted).encode()))
        deep = "/v1/stream/hostile" + "/a" * 62
        self._send(encode("PUT", deep, JSON), encode("DELETE", deep))
        for name in names:
            self._send(encode("DELETE", name))

    def _deep_forks(self) -> None:
        """A chain of forks, deleted from its beginning to its end."""
        root = f"/v1/stream/hostile/fork-{self._dice.randrange(10**9)}-"
        self._send(encode("PUT", f"{root}0", JSON, b"[1,2,3]"))
        for depth in range(1, FORK_DEPTH):
            if self._progress.ended.is_set():
                return
            source = f"Stream-Forked-From: {root}{depth - 1}\r\n"
            self._send(encode("PUT", f"{root}{depth}", JSON, extra=source))
        for depth in range(FORK_DEPTH):
            self._send(encode("DELETE", f"{root}{depth}"))

    def _flood_of_upgrades(self) -> None:
        """Very many pipelined requests that all want another protocol."""
        upgrade = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
        with self._connect() as connection:
            connection.sendall(encode("GET", "/healthz", extra=upgrade) * 2000)
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline and connection.recv(2**16):
                pass


def encode(
    method: str,
    path: str,
    content_type: str = "",
    body: bytes = b"",
    *,
    length: int | None = None,
    extra: str = "",
) -> bytes:
    """A request; with `length`, only its head, which promises a body of so many bytes."""
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}{extra}"
    head += f"Content-Length: {size}\r\n\r\n"
    return head.encode() + body
