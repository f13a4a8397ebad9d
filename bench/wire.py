"""A blocking HTTP/1.1 client that costs next to nothing, and the few requests we send with it.

Bodies are counted and thrown away in one preallocated buffer; a client that kept them would be
measured more than the server. Content-Length and chunked answers are understood, since
Millstream sends the first and the Node reference server the second.
"""

import itertools
import re
import select
import socket
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


BULK_CONNECTIONS = 64
BULK_RECEIVE_BYTES = 64 * 1024
RETRY_SECONDS = 0.1


def send_bulk(port: int, requests: Iterable[bytes], connections: int = BULK_CONNECTIONS) -> int:
    """Sends very many requests, one at a time on each connection, each made when its turn comes.

    All must be answered with 2xx; a server that is full (503) is asked again later. Returns how
    often it was full.
    """
    bulk = _Bulk(port, iter(requests), connections)
    try:
        return bulk.run()
    finally:
        bulk.close()


class _Bulk:
    """One thread for all connections: more would only take turns with each other."""

    def __init__(self, port: int, requests: Iterator[bytes], connections: int) -> None:
        self._requests = requests
        self._retries: list[bytes] = []
        self._refused = 0
        self._poll = select.epoll()
        self._sockets = {
            sock.fileno(): sock for sock in (connect(port) for _ in range(connections))
        }
        self._asked: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._poll.close()

    def run(self) -> int:
        for descriptor in self._sockets:
            self._ask(descriptor)
        while self._asked:
            ready = self._poll.poll(TIMEOUT_SECONDS)
            if not ready:
                raise BenchError(f"no answer in {TIMEOUT_SECONDS} s")
            for descriptor, _ in ready:
                self._hear(descriptor)
        return self._refused

    def _ask(self, descriptor: int) -> None:
        request = self._retries.pop() if self._retries else next(self._requests, None)
        if request is not None:
            self._asked[descriptor] = request
            self._answers[descriptor] = b""
            self._sockets[descriptor].sendall(request)

    def _hear(self, descriptor: int) -> None:
        received = self._sockets[descriptor].recv(BULK_RECEIVE_BYTES)
        if not received:
            raise BenchError("the server closed a connection in the middle of an answer")
        answer = self._answers[descriptor] + received
        status = _status_if_whole(answer)
        if status is None:
            self._answers[descriptor] = answer
            return
        request = self._asked.pop(descriptor)
        if status == 503:
            self._refused += 1
            self._retries.append(request)
            time.sleep(RETRY_SECONDS)
        elif not 200 <= status < 300:
            line = request.partition(b"\r\n")[0].decode()
            raise BenchError(f"{line} was answered with {status}")
        self._ask(descriptor)


def _status_if_whole(answer: bytes) -> int | None:
    """The status of an answer once all of it is there."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return None
    length = _CONTENT_LENGTH.search(head)
    if length is not None and len(body) < int(length[1]):
        return None
    return int(head[9:12])


_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
