"""What the pages of strangers can do from a browser on the same machine: nothing.

Everything is sent as a browser would send it, over a plain socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.api import TEXT, Api, error_code
from tests.conformance.raw import RawConnection
from tests.support.server import ServerProcess, free_port, running_server

Connect = Callable[[], RawConnection]

EVIL = "https://evil.example"
FRIEND = "http://localhost:3000"
SIMPLE_TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
]


def request(
    method: str,
    path: str,
    body: str = "",
    *,
    host: str = "localhost",
    origin: str | None = None,
    content_type: str = TEXT,
    more: str = "",
) -> str:
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}"
    if origin is not None:
        head += f"Origin: {origin}\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n{body}"


# Names that were made to point here (DNS rebinding)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4437", "localhost.evil.example"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_a_page_whose_name_points_here_reaches_nothing(
    memory_api: Api, connect: Connect, method: str, host: str
) -> None:
    path, connection = memory_api.stream(b"secret"), connect()
    body = "x" if method in ("POST", "PUT") else ""
    connection.send(request(method, path, body, host=host, origin=f"http://{host}"))
    reply = connection.answer(method)
    assert (reply.status, error_code(reply)) == (421, "host_not_allowed")
    assert b"--allowed-host" in reply.body
    assert "access-control-allow-origin" not in reply.headers
    assert connection.is_ended_by_server()
    assert memory_api.get(path).body == b"secret"


@pytest.mark.parametrize(
    "host", ["LOCALHOST:1", "127.0.0.1", "127.1.2.3:9", "[::1]:80", "a.localhost"]
)
def test_names_of_this_machine_are_let_in(memory_api: Api, connect: Connect, host: str) -> None:
    connection = connect()
    for _ in range(4):  # the last ones are known heads
        connection.send(request("GET", memory_api.stream(b"x"), host=host))
        assert connection.answer().status == 200


def test_a_client_that_is_too_old_for_host_is_let_in(memory_api: Api, connect: Connect) -> None:
    connection = connect()
    connection.send(f"GET {memory_api.stream(b'x')} HTTP/1.0\r\n\r\n")
    assert connection.answer().body == b"x"


# Requests that a browser sends without asking first


@pytest.mark.parametrize("content_type", SIMPLE_TYPES)
@pytest.mark.parametrize("origin", [EVIL, "null", "http://localhost.evil.example"])
def test_a_form_of_another_origin_appends_nothing(
    memory_api: Api, connect: Connect, origin: str, content_type: str
) -> None:
    path, connection = memory_api.stream(b"a", content_type=content_type), connect()
    connection.send(request("POST", path, "evil", origin=origin, content_type=content_type))
    reply = connection.answer()
    assert (reply.status, error_code(reply)) == (403, "origin_not_allowed")
    assert b"--cors-origin" in reply.body
    assert "access-control-allow-origin" not in reply.headers
    assert memory_api.get(path).body == b"a"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("path", ["", "/__millstream/flush", "/__millstream/garbage", "/bucket"])
def test_other_methods_of_another_origin_do_nothing_anywhere(
    memory_api: Api, connect: Connect, method: str, path: str
) -> None:
    stream, connection = memory_api.stream(b"a"), connect()
    connection.send(request(method, path or stream, origin=EVIL))
    assert connection.answer().status == 403
    assert memory_api.get(stream).body == b"a"


def test_what_a_page_may_not_do_is_refused_before_its_body_is_asked_for(
    memory_api: Api, connect: Connect
) -> None:
    connection = connect()
    more = "Expect: 100-continue\r\nContent-Length: 1000\r\n"
    connection.send(request("POST", memory_api.stream(), origin=EVIL, more=more))
    assert connection.answer().status == 403


def test_a_head_that_is_known_from_a_friend_does_not_let_a_stranger_in(
    memory_api: Api, connect: Connect
) -> None:
    """The same connection, the same lines, as a browser that shows both pages would use it."""
    path, connection = memory_api.stream(), connect()
    for _ in range(5):
        connection.send(request("POST", path, "a"))
        assert connection.answer().status == 204
    for _ in range(5):
        connection.send(request("POST", path, "b", origin=FRIEND))
        assert connection.answer().status == 204
    connection.send(request("POST", path, "c", origin=EVIL))
    assert connection.answer().status == 403
    assert memory_api.get(path).body == b"aaaaabbbbb"


def test_a_head_that_is_known_from_reads_of_a_stranger_does_not_let_it_write(
    memory_api: Api, connect: Connect
) -> None:
    path, connection = memory_api.stream(), connect()
    closing = "Stream-Closed: true\r\nContent-Length: 0\r\n"
    for _ in range(5):  # the line of the attack becomes known
        connection.send(request("POST", memory_api.stream(), more=closing))
        assert connection.answer().status == 204
    for _ in range(5):  # and so would its header block
        connection.send(request("GET", path, origin=EVIL, more=closing))
        assert connection.answer().status == 200
    connection.send(request("POST", path, origin=EVIL, more=closing))
    assert connection.answer().status == 403
    assert "stream-closed" not in memory_api.head(path).headers


def test_of_requests_in_one_packet_the_one_of_a_stranger_ends_the_connection(
    memory_api: Api, connect: Connect
) -> None:
    path, connection = memory_api.stream(), connect()
    connection.send(
        request("POST", path, "a")
        + request("POST", path, "b", origin=EVIL)
        + request("POST", path, "c")
    )
    assert [connection.answer().status for _ in range(2)] == [204, 403]
    assert connection.is_ended_by_server()
    assert memory_api.get(path).body == b"a"


# Answers that a browser keeps from the page


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_another_origin_is_not_allowed_to_read(
    memory_api: Api, connect: Connect, method: str
) -> None:
    connection = connect()
    connection.send(request(method, memory_api.stream(b"x"), origin=EVIL))
    reply = connection.answer(method)
    assert reply.status in (200, 204)
    assert "access-control-allow-origin" not in reply.headers
    assert reply.headers["cross-origin-resource-policy"] == "same-site"


def test_an_answer_is_kept_for_its_origin_alone(connect: Connect) -> None:
    connection = connect()
    for origin in (None, FRIEND, EVIL, "http://localhost:3001"):
        connection.send(request("GET", "/healthz", origin=origin))
        headers = connection.answer().headers
        allowed = None if origin == EVIL else origin
        assert (headers["vary"], headers.get("access-control-allow-origin")) == ("Origin", allowed)


def test_a_refusal_can_be_read_by_the_page_that_is_refused(connect: Connect) -> None:
    connection = connect()
    more = "Content-Length: 999999999999\r\n"
    connection.send(request("POST", "/v1/stream/a", origin=FRIEND, more=more))
    reply = connection.answer()
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (413, FRIEND)
    assert connection.is_ended_by_server()


# Settings


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ServerProcess]:
    flags = ["--allowed-host", "streams.example.org,*.internal", "--allowed-host", "box"]
    flags += ["--cors-origin", "https://app.example.org", "--access-log"]
    flags += ["--admin-listen", f"127.0.0.1:{free_port()}"]
    with running_server(None, *flags) as server:
        yield server


@pytest.fixture
def strict(strict_server: ServerProcess) -> Iterator[tuple[Api, RawConnection]]:
    api, connection = Api(strict_server), RawConnection(strict_server.port)
    with contextlib.closing(api), contextlib.closing(connection):
        yield api, connection


@pytest.mark.parametrize("host", ["streams.example.org", "a.internal:80", "BOX", "localhost"])
def test_hosts_that_are_given_are_let_in(strict: tuple[Api, RawConnection], host: str) -> None:
    api, connection = strict
    connection.send(request("GET", api.stream(b"x"), host=host))
    assert connection.answer().body == b"x"


def test_an_origin_that_is_given_may_write_large_and_small_bodies(
    strict: tuple[Api, RawConnection],
) -> None:
    api, connection = strict
    path, origin = api.stream(), "https://app.example.org"
    for body in ("a", "b", "c" * 300_000, "d"):
        connection.send(request("POST", path, body, origin=origin))
        reply = connection.answer()
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, origin)
    connection.send(request("GET", path, origin=origin))
    reply = connection.answer()
    assert (len(reply.body), reply.headers["access-control-allow-origin"]) == (300_003, origin)
    connection.send(request("POST", path, "e", origin=FRIEND))
    assert connection.answer().status == 403


def test_operators_have_an_address_of_their_own(strict_server: ServerProcess) -> None:
    port = int(strict_server.flags[-1].rpartition(":")[2])
    with contextlib.closing(RawConnection(port)) as connection:
        for path in ("/metrics", "/__ursula/metrics", "/healthz", "/readyz"):
            connection.send(request("GET", path))
            assert connection.answer().status == 200
        connection.send(request("POST", "/v1/stream/a", "x"))
        reply = connection.answer()
        assert (reply.status, error_code(reply)) == (404, "not_found")
        assert str(strict_server.port).encode() in reply.body
        connection.send(request("GET", "/metrics", host="evil.example"))
        assert connection.answer().status == 421
    with contextlib.closing(strict_server.client()) as client:
        assert client.get("/metrics").status == 200  # on loopback both have them
