"""Patience has limits: silent connections, slow requests, headers without end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.api import TEXT, Api
from tests.conformance.conftest import speak_to
from tests.conformance.raw import RawConnection
from tests.support.server import ServerProcess, running_server

IDLE_SECONDS = REQUEST_SECONDS = 0.5
HEADER_BYTES = 2000
FLAGS = (
    *("--idle-timeout", str(IDLE_SECONDS)),
    *("--request-timeout", str(REQUEST_SECONDS)),
    *("--max-header-bytes", str(HEADER_BYTES)),
    *("--max-body-bytes", "1000"),
)


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ServerProcess]:
    with running_server(None, *FLAGS) as server:
        yield server


@pytest.fixture
def strict_api(strict_server: ServerProcess) -> Iterator[Api]:
    yield from speak_to(strict_server)


@pytest.fixture
def connect_strictly(strict_server: ServerProcess) -> Iterator[Callable[[], RawConnection]]:
    opened = list[RawConnection]()

    def open_connection() -> RawConnection:
        opened.append(RawConnection(strict_server.port))
        return opened[-1]

    yield open_connection
    for connection in opened:
        connection.close()


Connect = Callable[[], RawConnection]


def assert_ended_after(connection: RawConnection, seconds: float) -> None:
    """The server ends the connection, with or without a 408 as its last word."""
    started = time.monotonic()
    last_words = b""
    while chunk := connection.socket.recv(4096):
        last_words += chunk
    assert seconds * 0.5 < time.monotonic() - started < seconds + 3
    assert last_words == b"" or last_words.startswith(b"HTTP/1.1 408 ")


def trickle(connection: RawConnection, text: str) -> None:
    for letter in text:
        connection.send(letter)
        time.sleep(0.05)


def test_a_silent_new_connection_is_ended(connect_strictly: Connect) -> None:
    assert_ended_after(connect_strictly(), IDLE_SECONDS)


def test_a_connection_that_falls_silent_is_ended(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    connection.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.answer().status == 200
    assert_ended_after(connection, IDLE_SECONDS)


def test_a_head_that_never_ends_is_ended(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    connection.send("GET /healthz HTTP/1.1\r\nHost:")
    assert_ended_after(connection, REQUEST_SECONDS)


def test_a_head_that_trickles_is_ended(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    started = time.monotonic()
    with pytest.raises(ConnectionError):
        trickle(connection, "GET /healthz HTTP/1.1\r\nHost: " + "x" * 1000)
    assert time.monotonic() - started < REQUEST_SECONDS + 3


def test_a_body_that_never_comes_is_ended(strict_api: Api, connect_strictly: Connect) -> None:
    path, connection = strict_api.stream(b"one"), connect_strictly()
    connection.send(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        "Content-Length: 10\r\n\r\nhalf"
    )
    assert_ended_after(connection, REQUEST_SECONDS)
    strict_api.connection.close()  # it fell silent as well
    assert strict_api.get(path).body == b"one"


def test_waiting_readers_are_not_idle(strict_api: Api) -> None:
    path = strict_api.stream(b"one")
    tail = strict_api.tail(path)
    events = strict_api.events(f"{path}?offset={tail}&live=sse")
    events.until_up_to_date()
    wait = (IDLE_SECONDS + REQUEST_SECONDS) * 1.5
    polled = strict_api.get(f"{path}?offset={tail}&live=long-poll&timeout_ms={int(wait * 1000)}")
    assert polled.status == 204
    assert strict_api.append(path, b"two").status == 204
    assert [event.data for event in events.until_up_to_date() if event.kind == "data"] == ["two"]


@pytest.mark.parametrize(
    "headers",
    [
        "X-Long: " + "x" * (2 * HEADER_BYTES) + "\r\n",
        "".join(f"X-{n}: y\r\n" for n in range(HEADER_BYTES // 4)),
        "x" * (2 * HEADER_BYTES) + ": 1\r\n",
    ],
    ids=["one long value", "many headers", "one long name"],
)
def test_headers_over_the_limit_are_refused(connect_strictly: Connect, headers: str) -> None:
    connection = connect_strictly()
    connection.send(f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
    assert connection.answer().status == 431
    assert connection.is_ended_by_server()


def test_headers_without_end_are_refused(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    connection.send(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + "x" * (2 * HEADER_BYTES)
    )
    assert connection.answer().status == 431
    assert connection.is_ended_by_server()


def test_headers_within_the_limit_are_fine(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    connection.send(
        f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {'x' * (HEADER_BYTES // 2)}\r\n\r\n"
    )
    assert connection.answer().status == 200


def test_the_limit_is_for_each_request(connect_strictly: Connect) -> None:
    connection = connect_strictly()
    one = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {'x' * (HEADER_BYTES // 2)}\r\n\r\n"
    connection.send(one * 5)
    assert [connection.answer().status for _ in range(5)] == [200] * 5


def test_the_limit_does_not_depend_on_the_packets(connect_strictly: Connect) -> None:
    headers = "".join(f"X-Header-{n}: value\r\n" for n in range(HEADER_BYTES // 23))
    sent = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
    assert HEADER_BYTES * 0.8 < len(sent) < HEADER_BYTES
    for size in (len(sent), 100, 1):
        connection = connect_strictly()
        for start in range(0, len(sent), size):
            connection.send(sent[start : start + size])
        assert connection.answer().status == 200


@pytest.mark.parametrize("ending", [" HTTP/1.1\r\nHost: localhost\r\n\r\n", ""])
def test_a_url_over_the_limit_is_refused(connect_strictly: Connect, ending: str) -> None:
    connection = connect_strictly()
    connection.send("GET /v1/stream/a?x=" + "x" * 50_000 + ending)
    assert connection.answer().status in (414, 431)
    assert connection.is_ended_by_server()


def test_trailers_without_end_are_refused(strict_api: Api, connect_strictly: Connect) -> None:
    path, connection = strict_api.stream(b"one"), connect_strictly()
    connection.send(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\nX-Long: " + "x" * 100_000
    )
    # 431 when more of it comes, 408 when it just stops.
    assert connection.answer().status in (400, 408, 413, 431)
    strict_api.connection.close()  # it may have fallen silent for too long as well
    assert strict_api.get(path).body == b"one"


def test_expect_continue_is_refused_for_a_body_over_the_limit(
    strict_api: Api, connect_strictly: Connect
) -> None:
    path, connection = strict_api.stream(), connect_strictly()
    connection.send(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
    )
    assert connection.answer().status == 413
    assert connection.is_ended_by_server()
