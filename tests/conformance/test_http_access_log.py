"""The access log: a line for every request, the refused ones too, with what became of it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.conformance.api import TEXT, Api
from tests.conformance.raw import RawConnection
from tests.support.server import ServerProcess

FLAGS = (
    *("--access-log", "--log-format", "json", "--request-timeout", "1"),
    *("--max-body-bytes", "1000", "--max-header-bytes", "2000"),
)
HOST = "Host: localhost\r\n"

Line = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    server = ServerProcess(None, *FLAGS)
    yield server
    server.kill()


def lines_of(server: ServerProcess) -> list[Line]:
    """Once the server is stopped: the requests after those that waited for its start."""
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.output.decode().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    return [line for line in requests if line["path"] != "/readyz"]


def said(server: ServerProcess, sent: str, to: str = "GET") -> int:
    """How many bytes the answer to these bytes has; the server ends the connection or we do."""
    connection = RawConnection(server.port)
    connection.send(sent)
    connection.finish_sending()
    size = len(connection.file.read())
    connection.close()
    return size


def test_a_line_tells_who_asked_for_what_and_what_came_of_it(server: ServerProcess) -> None:
    connection = RawConnection(server.port)
    path = "/v1/stream/a?x=y"
    head = f"{path} HTTP/1.1\r\n{HOST}Content-Type: {TEXT}\r\n"
    connection.send(f"PUT {head}Content-Length: 3\r\n\r\none")
    connection.answer()
    connection.send(f"GET {head}\r\n" * 2)
    connection.finish_sending()
    size = len(connection.file.read())
    connection.close()
    put, first, second = lines_of(server)
    for line in (put, first, second):
        assert line["client"] == "127.0.0.1"
        assert line["path"] == "/v1/stream/a"
        assert 0 <= line["seconds"] < 10
    assert [(line["method"], line["status"]) for line in (put, first)] == [
        ("PUT", 201),
        ("GET", 200),
    ]
    assert first["bytes_out"] + second["bytes_out"] == size


REFUSED = {
    "malformed": ("nonsense\r\n\r\n", 400, "", ""),
    "no host": ("GET /a HTTP/1.1\r\n\r\n", 400, "GET", "/a"),
    "too large": (f"POST /a HTTP/1.1\r\n{HOST}Content-Length: 1001\r\n\r\n", 413, "POST", "/a"),
    "headers too large": (f"GET /a HTTP/1.1\r\n{HOST}X: {'x' * 5000}\r\n\r\n", 431, "GET", "/a"),
    "a proxy": ("CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 501, "CONNECT", "a:1"),
}


def test_refused_requests_have_their_lines(server: ServerProcess) -> None:
    sizes = [said(server, sent) for sent, *_ in REFUSED.values()]
    lines = lines_of(server)
    found = [(line["status"], line["method"], line["path"]) for line in lines]
    assert found == [(status, method, path) for _, status, method, path in REFUSED.values()]
    assert [line["bytes_out"] for line in lines] == sizes
    assert all(line["client"] == "127.0.0.1" for line in lines)


def test_a_request_that_does_not_come_has_its_line(server: ServerProcess) -> None:
    connection = RawConnection(server.port)
    connection.send(f"POST /v1/stream/a HTTP/1.1\r\n{HOST}Content-Length: 10\r\n\r\nhalf")
    assert connection.answer().status == 408
    connection.close()
    (line,) = lines_of(server)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/stream/a", 408)
    assert line["seconds"] > 0.5


def test_events_are_logged_when_they_end_with_all_their_bytes(server: ServerProcess) -> None:
    with closing(Api(server)) as api:
        path = api.stream(b"one")
        api.close_stream(path)
        connection = RawConnection(server.port)
        connection.send(
            f"GET {path}?offset=-1&live=sse HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n"
        )
        size = len(connection.file.read())
        connection.close()
    *_, line = lines_of(server)
    assert (line["status"], line["bytes_out"]) == (200, size)


def test_a_client_that_leaves_before_its_answer_has_its_line(server: ServerProcess) -> None:
    with closing(Api(server)) as api:
        path = api.stream(b"one")
        connection = RawConnection(server.port)
        connection.send(f"GET {path}?offset=now&live=long-poll HTTP/1.1\r\n{HOST}\r\n")
        api.settle()
        reset = struct.pack("ii", 1, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()
        api.settle()
    (line,) = [line for line in lines_of(server) if (line["method"], line["path"]) == ("GET", path)]
    assert (line["status"], line["bytes_out"]) == (0, 0)
