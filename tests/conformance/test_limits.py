"""Bodies over the limit: refused with 413, however they are framed, and nothing is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.conformance.api import JSON, TEXT, Api, error_code, fresh_path
from tests.conformance.conftest import speak_to
from tests.conformance.raw import RawConnection
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

LIMIT = 1000


@pytest.fixture(scope="module")
def limited_server() -> Iterator[ServerProcess]:
    with running_server(None, "--max-body-bytes", str(LIMIT)) as server:
        yield server


@pytest.fixture
def limited_api(limited_server: ServerProcess) -> Iterator[Api]:
    yield from speak_to(limited_server)


def send_chunked(server: ServerProcess, method: str, path: str, sizes: list[int]) -> Reply:
    connection = RawConnection(server.port)
    try:
        connection.send(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        for size in sizes:
            connection.send(f"{size:x}\r\n".encode() + b"x" * size + b"\r\n")
        connection.send("0\r\n\r\n")
        return connection.answer()
    finally:
        connection.close()


def test_a_body_at_the_limit_is_accepted(limited_server: ServerProcess, limited_api: Api) -> None:
    path = fresh_path()
    assert limited_api.put(path, b"x" * LIMIT, content_type=TEXT).status == 201
    assert limited_api.append(path, b"x" * LIMIT).status == 204
    assert send_chunked(limited_server, "POST", path, [400, 600]).status == 204
    assert len(limited_api.get(path).body) == 3 * LIMIT


def test_a_body_over_the_limit_is_refused(limited_api: Api) -> None:
    path = limited_api.stream(b"one")
    refused = limited_api.append(path, b"x" * (LIMIT + 1))
    assert (refused.status, error_code(refused) != "") == (413, True)
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert limited_api.get(path).body == b"one"


def test_a_body_over_the_limit_creates_no_stream(limited_api: Api) -> None:
    path = fresh_path()
    assert limited_api.put(path, b"x" * (LIMIT + 1), content_type=TEXT).status == 413
    assert limited_api.head(path).status == 404
    source = limited_api.stream(b"1", content_type=JSON)
    fork, refused = limited_api.fork(source, body=b"1" * (LIMIT + 1))
    assert (refused.status, limited_api.head(fork).status) == (413, 404)
    assert limited_api.delete(source).status == 204
    assert limited_api.head(source).status == 404


@pytest.mark.parametrize("sizes", [[LIMIT + 1], [LIMIT, 1], [1] * (LIMIT + 1)])
def test_a_chunked_body_over_the_limit_is_refused(
    limited_server: ServerProcess, limited_api: Api, sizes: list[int]
) -> None:
    path, unborn = limited_api.stream(b"one"), fresh_path()
    assert send_chunked(limited_server, "POST", path, sizes).status == 413
    assert send_chunked(limited_server, "PUT", unborn, sizes).status == 413
    assert limited_api.get(path).body == b"one"
    assert limited_api.head(unborn).status == 404


def test_an_endless_chunked_body_is_cut_off(
    limited_server: ServerProcess, limited_api: Api
) -> None:
    path = limited_api.stream()
    connection = RawConnection(limited_server.port)
    connection.send(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    with contextlib.suppress(ConnectionError):
        connection.send(chunk * 100)
    assert connection.answer().status == 413
    assert connection.is_ended_by_server()
    connection.close()
    assert limited_api.get(path).body == b""


def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(
    limited_server: ServerProcess, limited_api: Api
) -> None:
    path = limited_api.stream()
    connection = RawConnection(limited_server.port)
    connection.send(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        f"Content-Length: {10**12}\r\n\r\n"
    )
    assert connection.answer().status == 413
    assert connection.is_ended_by_server()
    connection.close()
