"""Very many requests on one connection, sent ahead of their answers, of every kind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance.api import Api
from tests.conformance.conftest import speak_to
from tests.support.server import ServerProcess, running_server

HEAD = b"Host: localhost\r\nContent-Type: text/plain\r\n"
UPGRADE = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
EXPECT = HEAD + b"Expect: 100-continue\r\n"
MISSING = b"/v1/stream/missing"

# What is sent, and the status lines that each of them is answered with.
KINDS = {
    "reads": (b"GET %b HTTP/1.1\r\n" + HEAD + b"\r\n", (200,), 100_000),
    "appends": (b"POST %b HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\n\r\nx", (204,), 100_000),
    "errors": (b"GET " + MISSING + b" HTTP/1.1\r\n" + HEAD + b"\r\n", (404,), 30_000),
    "upgrades": (b"HEAD %b HTTP/1.1\r\n" + UPGRADE + b"\r\n", (200,), 30_000),
    "upgrades with a body": (
        b"POST %b HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 1\r\n\r\nx",
        (204,),
        30_000,
    ),
    "expectations": (
        b"POST %b HTTP/1.1\r\n" + EXPECT + b"Content-Length: 1\r\n\r\nx",
        (100, 204),
        30_000,
    ),
    "chunks": (
        b"POST %b HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        (204,),
        30_000,
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """It has to stay silent, whatever comes."""
    with running_server() as server:
        yield server
        assert server.stop() == 0
        assert len(server.output) < 2000, server.output[:5000]


@pytest.fixture
def quiet_api(server: ServerProcess) -> Iterator[Api]:
    yield from speak_to(server)


def send_while_reading(port: int, data: bytes, times: int, last: bytes) -> bytes:
    """All that the server says until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:

        def send() -> None:
            some = data * 100
            for _ in range(times // 100):
                client.sendall(some)
            client.sendall(last)

        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray()
        while part := client.recv(1 << 20):
            received += part
        sender.join()
    return bytes(received)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_requests_may_be_sent_ahead(
    server: ServerProcess, quiet_api: Api, kind: str
) -> None:
    request, statuses, times = KINDS[kind]
    path = quiet_api.stream().encode()
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sent = request % path if b"%b" in request else request
    received = send_while_reading(server.port, sent, times, last)
    for status in set(statuses):
        # A 100 may be left out when the body is there already.
        count = received.count(b"HTTP/1.1 %d " % status) - (status == 200)
        assert count == times or (status == 100 and count <= times)
    if b"POST" in request:
        assert quiet_api.head(path.decode()).next_offset == f"{times:016d}_{times:016d}"


def test_clients_cannot_fill_the_log(server: ServerProcess) -> None:
    """Sixty of them once wrote 15 MB. The fixture looks at the log when all is over."""
    request, _, _ = KINDS["upgrades with a body"]
    garbage = (
        b"\x00garbage\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\r\n\r\n",
    )
    with ExitStack() as stack:
        for n in range(60):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(request % MISSING * 2000 + garbage[n % 3])
