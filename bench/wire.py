"""A blocking HTTP/1.1 client that costs next to nothing, and the few requests we send with it.

Bodies are counted and thrown away in one preallocated buffer; a client that kept them would be
measured more than the server. Content-Length and chunked answers are understood, since
Millstream sends the first and the Node reference server the second.
"""

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bench.errors import BenchError

HOST = "127.0.0.1"
TIMEOUT_SECONDS = 60
BUFFER_BYTES = 64 * 1024
BINARY = "application/octet-stream"
JSON = "application/json"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body_bytes: int

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def next_offset(self) -> str:
        return self.headers[b"stream-next-offset"].decode()

    @property
    def up_to_date(self) -> bool:
        return self.headers.get(b"stream-up-to-date") == b"true"


class Connection:
    """One keep-alive connection with one request under way at a time."""

    def __init__(self, port: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._socket = connect(port)
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> Reply:
        """Read one whole answer."""
        head = self._read_until(b"\r\n\r\n").split(b"\r\n")
        status = int(head[0].split(b" ", 2)[1])
        headers = dict(_header(line) for line in head[1:])
        return Reply(status, headers, self._skip_body(status, headers))

    def exchange(self, request: bytes) -> Reply:
        self.send(request)
        return self.receive()

    def expect_ok(self, request: bytes) -> Reply:
        reply = self.exchange(request)
        if not reply.ok:
            line = request.partition(b"\r\n")[0].decode()
            raise BenchError(f"{line} was answered with {reply.status}")
        return reply

    def _skip_body(self, status: int, headers: dict[bytes, bytes]) -> int:
        if status in (204, 304):
            return 0
        if headers.get(b"transfer-encoding") == b"chunked":
            return self._skip_chunks()
        length = int(headers.get(b"content-length", b"0"))
        self._skip(length)
        return length

    def _skip_chunks(self) -> int:
        total = 0
        while size := int(self._read_until(b"\r\n").partition(b";")[0], 16):
            self._skip(size + 2)
            total += size
        self._read_until(b"\r\n")
        return total

    def _read_until(self, mark: bytes) -> bytes:
        while (at := self._buffer.find(mark, self._start, self._end)) < 0:
            self._receive()
        found = bytes(self._view[self._start : at])
        self._start = at + len(mark)
        return found

    def _receive(self) -> None:
        """Add what the socket has to the unread part of the buffer."""
        if self._start:
            rest = self._buffer[self._start : self._end]
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        received = self._socket.recv_into(self._view[self._end :])
        if not received:
            raise BenchError("the server closed a connection in the middle of an answer")
        self._end += received

    def _skip(self, length: int) -> None:
        buffered = min(length, self._end - self._start)
        self._start += buffered
        length -= buffered
        while length:
            received = self._socket.recv_into(self._view, min(length, len(self._view)))
            if not received:
                raise BenchError("the server closed a connection in the middle of a body")
            length -= received


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip()


def connect(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def stream_path(name: str) -> str:
    return f"/v1/stream/{name}"


def encode_request(
    method: str, path: str, content_type: str | None = None, body: bytes = b""
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if content_type is not None:
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def encode_create(name: str, content_type: str) -> bytes:
    return encode_request("PUT", stream_path(name), content_type)


def encode_append(name: str, content_type: str, body: bytes) -> bytes:
    return encode_request("POST", stream_path(name), content_type, body)


def send_all(port: int, requests: Iterable[bytes], connections: int = 8) -> None:
    """Send every request over a few connections; each must be answered with 2xx."""
    # A list's iterator hands out each item once, also to several threads.
    shared = iter(list(requests))
    with ThreadPoolExecutor(connections) as pool:
        senders = [pool.submit(_send_each, port, shared) for _ in range(connections)]
        try:
            for sender in senders:
                sender.result()
        finally:
            # After a failure or Ctrl-C the others find nothing left to send and end, too.
            deque(shared, maxlen=0)


def _send_each(port: int, requests: Iterator[bytes]) -> None:
    with Connection(port) as connection:
        for request in requests:
            connection.expect_ok(request)


def create_streams(port: int, names: Iterable[str], content_type: str) -> None:
    send_all(port, (encode_create(name, content_type) for name in names))


def fill_stream(port: int, name: str, content_type: str, message: bytes, count: int) -> None:
    """Create a stream and append the same message `count` times."""
    create_streams(port, [name], content_type)
    send_all(port, itertools.repeat(encode_append(name, content_type, message), count))


PIPELINE_DEPTH = 16
RETRY_SECONDS = 0.1
RETRIES_MAX = 600


def send_pipelined(port: int, requests: Iterable[bytes], connections: int = 8) -> int:
    """Sends very many requests, several ahead on each connection, each taken when its turn comes.

    All must be answered with 2xx; a server that is full (503) is asked again later. Returns how
    often it was full.
    """
    source = _Source(requests)
    with ThreadPoolExecutor(connections) as pool:
        senders = [pool.submit(_send_ahead, port, source) for _ in range(connections)]
        try:
            return sum(sender.result() for sender in senders)
        finally:
            source.end()


class _Source:
    """Hands out requests to several threads, each once."""

    def __init__(self, requests: Iterable[bytes]) -> None:
        self._requests = iter(requests)
        self._lock = threading.Lock()

    def take(self) -> list[bytes]:
        with self._lock:
            return list(itertools.islice(self._requests, PIPELINE_DEPTH))

    def end(self) -> None:
        with self._lock:
            self._requests = iter(())


def _send_ahead(port: int, source: _Source) -> int:
    refused = 0
    with Connection(port) as connection:
        while requests := source.take():
            connection.send(b"".join(requests))
            replies = [connection.receive() for _ in requests]
            for request, reply in zip(requests, replies, strict=True):
                if reply.status == 503:
                    refused += _send_until_taken(connection, request)
                elif not reply.ok:
                    line = request.partition(b"\r\n")[0].decode()
                    raise BenchError(f"{line} was answered with {reply.status}")
    return refused


def _send_until_taken(connection: Connection, request: bytes) -> int:
    for tries in range(1, RETRIES_MAX):
        time.sleep(RETRY_SECONDS)
        if connection.exchange(request).status != 503:
            return tries
    raise BenchError(f"the server is full for {RETRIES_MAX * RETRY_SECONDS:g} s")
