"""A proxy in front of the S3 server that can be told to misbehave while requests run through it.

Signatures cover the Host header and the path, so both pass unchanged: the server checks them
against the proxy's address, which is what the client signed.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

UPSTREAM_SECONDS = 60.0
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")
_ERROR_BODY = b"<Error><Code>InternalError</Code><Message>told to fail</Message></Error>"


@dataclass(frozen=True)
class Fault:
    """What happens to every `every`-th request with one of `methods` (empty: all), the first
    `times` times (0: for ever). The first one is hit."""

    delay_seconds: float = 0.0
    status: int = 0  # answered without asking the server
    cut: bool = False  # the connection is reset before the server hears of the request
    lose_answer: bool = False  # the server does its work, then the connection is reset
    truncate: bool = False  # half of the body under the full Content-Length, then the end
    methods: tuple[str, ...] = ()
    every: int = 1
    times: int = 0


PASS = Fault()


class FaultyStore:
    """`with FaultyStore(port) as proxy:`; then set `proxy.fault` at any time."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.requests = Counter[str]()  # by method, faulty ones included
        self.faults = 0  # how often the present fault has struck
        self._fault, self._matching = PASS, 0
        self._lock = threading.Lock()
        self.changed = threading.Event()  # wakes delayed answers
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        """For every request from now on; what is still being delayed goes on at once."""
        with self._lock:
            self._fault, self._matching, self.faults = fault, 0, 0
            self.changed.set()
            self.changed = threading.Event()

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = PASS

    def take(self, method: str) -> tuple[Fault, threading.Event]:
        """Counts a request; what shall happen to it, and what ends its delay."""
        with self._lock:
            self.requests[method] += 1
            fault = self._fault
            if fault.methods and method not in fault.methods:
                return PASS, self.changed
            self._matching += 1
            if (self._matching - 1) % fault.every or (fault.times and self.faults >= fault.times):
                return PASS, self.changed
            self.faults += fault != PASS
            return fault, self.changed

    def __enter__(self) -> FaultyStore:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fault = PASS
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: FaultyStore

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is not worth a stack trace."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault, changed = self.server.proxy.take(self.command)
        if fault.delay_seconds:
            changed.wait(fault.delay_seconds)
        if fault.cut:
            return self._reset()
        if fault.status:
            return self._respond(fault.status, [], _ERROR_BODY, len(_ERROR_BODY))
        try:
            answer, content = self._ask_upstream(body)
        except (OSError, http.client.HTTPException):
            return self._reset()
        if fault.lose_answer:
            return self._reset()
        length = len(content)
        if self.command == "HEAD":
            length = int(answer.headers.get("Content-Length", 0))
        if fault.truncate and length:
            content = content[: length // 2]
            self.close_connection = True
        headers = [pair for pair in answer.getheaders() if pair[0].lower() not in _HOP_BY_HOP]
        self._respond(answer.status, headers, content, length)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _ask_upstream(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        port = self.server.proxy.upstream_port
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=UPSTREAM_SECONDS)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    upstream.putheader(name, value)
            upstream.putheader("Connection", "close")
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def _respond(
        self, status: int, headers: list[tuple[str, str]], content: bytes, length: int
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def _reset(self) -> None:
        """Ends the connection the way a crashed server does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test says what it expects."""
