"""A plain blocking HTTP client for tests: one connection, exact headers, nothing clever."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]


class Client:
    """Reconnects when the server closed the connection between two calls."""

    def __init__(self, host: str, port: int, timeout_seconds: float = 30.0) -> None:
        self.host, self.port, self.timeout_seconds = host, port, timeout_seconds
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Reply:
        sent = dict(headers or {})
        if content_type is not None:
            sent["Content-Type"] = content_type
        payload = body.encode() if isinstance(body, str) else body
        self.connection.request(method, path, body=payload, headers=sent)
        response = self.connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, received, response.read())
        if response.will_close:
            self.connection.close()
        return reply

    def put(self, path: str, body: bytes | str | None = None, **kw: Any) -> Reply:
        return self.call("PUT", path, body, **kw)

    def post(self, path: str, body: bytes | str | None = None, **kw: Any) -> Reply:
        return self.call("POST", path, body, **kw)

    def get(self, path: str, **kw: Any) -> Reply:
        return self.call("GET", path, **kw)

    def head(self, path: str, **kw: Any) -> Reply:
        return self.call("HEAD", path, **kw)

    def delete(self, path: str, **kw: Any) -> Reply:
        return self.call("DELETE", path, **kw)

    def close(self) -> None:
        self.connection.close()


@dataclass
class Event:
    kind: str
    data: str
    fields: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.data)


class EventStream:
    """Reads `live=sse` from its own connection; iterate for events, ends when the server ends."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        timeout_seconds: float = 10.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
        sent = {"Accept": "text/event-stream", **(headers or {})}
        self.connection.request("GET", path, headers=sent)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.headers = {name.lower(): value for name, value in self.response.getheaders()}

    def __iter__(self) -> Iterator[Event]:
        kind, lines = "message", list[str]()
        while True:
            raw = self.response.readline()
            if not raw:
                return
            line = raw.decode().rstrip("\n")
            if not line:
                if lines:
                    yield Event(kind, "\n".join(lines))
                kind, lines = "message", []
            elif line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                lines.append(line[5:])

    def close(self) -> None:
        if self.connection.sock is not None:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()
