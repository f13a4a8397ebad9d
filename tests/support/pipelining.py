"""Very many small requests over one connection, many ahead of their answers."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Iterator
from io import BufferedReader

from tests.support.http import Reply

AHEAD = 64  # requests
TIMEOUT_SECONDS = 60.0

Request = tuple[str, str, bytes]  # method, path, body


def send_pipelined(
    port: int, requests: Iterable[Request], content_type: str = "text/plain"
) -> Iterator[Reply]:
    """The answers in the order of the requests."""
    waiting = iter(requests)
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection,
        connection.makefile("rb") as answers,
    ):
        while some := list(itertools.islice(waiting, AHEAD)):
            connection.sendall(b"".join(_encode(*request, content_type) for request in some))
            for _ in some:
                yield _receive(answers)


def _encode(method: str, path: str, body: bytes, content_type: str) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _receive(answers: BufferedReader) -> Reply:
    status = int(answers.readline().split(b" ")[1])
    headers = {}
    while (line := answers.readline().decode()) not in ("\r\n", ""):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = 0 if status == 204 else int(headers.get("content-length", 0))
    return Reply(status, headers, answers.read(length))
