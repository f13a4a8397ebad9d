"""A socket and a patient reader: for requests that no HTTP library would agree to send."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

from tests.support.http import Reply


class RawConnection:
    def __init__(
        self, port: int, timeout_seconds: float = 5.0, tls: ssl.SSLContext | None = None
    ) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes | str) -> None:
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def finish_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def answer(self, to: str = "GET") -> Reply:
        """The next response; `to` is the request's method, because HEAD has no body."""
        version, status, *_ = self.line().split(" ", 2)
        assert version in ("HTTP/1.1", "HTTP/1.0")
        headers = dict[str, str]()
        while line := self.line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        reply = Reply(int(status), headers)
        if to != "HEAD" and reply.status not in (204, 304) and reply.status >= 200:
            reply.body = self.body(headers)
        return reply

    def line(self) -> str:
        raw = self.file.readline()
        if not raw:
            raise ConnectionError("the server closed the connection")
        assert raw.endswith(b"\r\n"), raw
        return raw[:-2].decode("latin-1")

    def body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(self.chunks())
        if "content-length" in headers:
            return self.file.read(int(headers["content-length"]))
        return self.file.read()

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.line(), 16):
            yield self.file.read(size)
            assert self.line() == ""
        assert self.line() == ""

    def is_ended_by_server(self) -> bool:
        """True when nothing more comes; waits for it up to the timeout of the socket."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.file.close()
        with contextlib.suppress(OSError):
            self.socket.close()
