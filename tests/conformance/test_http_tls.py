"""The same server behind a certificate."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import TEXT, fresh_path
from tests.conformance.raw import RawConnection
from tests.support.server import ServerProcess, free_port


@pytest.fixture(scope="module")
def tls_port(certificate: tuple[Path, Path], trusting: ssl.SSLContext) -> Iterator[int]:
    cert, key = certificate
    port = free_port()
    flags = ("--tls-cert", str(cert), "--tls-key", str(key))
    server = ServerProcess(None, *flags, port=port, wait=False)
    wait_for_handshake(server, trusting)
    yield port
    assert server.stop() == 0
    assert "Traceback" not in server.finish_output()


def wait_for_handshake(server: ServerProcess, trusting: ssl.SSLContext) -> None:
    while True:
        assert server.process.poll() is None, server.finish_output()
        try:
            RawConnection(server.port, tls=trusting).close()
            return
        except ConnectionError:
            continue


@pytest.fixture
def secure(tls_port: int, trusting: ssl.SSLContext) -> Iterator[RawConnection]:
    connection = RawConnection(tls_port, tls=trusting)
    yield connection
    connection.close()


def send(connection: RawConnection, method: str, path: str, body: bytes = b"") -> None:
    connection.send(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def test_the_protocol_works_over_tls(secure: RawConnection) -> None:
    path = fresh_path()
    send(secure, "PUT", path, b"one")
    created = secure.answer()
    assert created.status == 201
    assert created.headers["location"].startswith("https://localhost")
    send(secure, "POST", path, b"x" * 500_000)
    assert secure.answer().status == 204
    send(secure, "GET", path)
    assert secure.answer().body == b"one" + b"x" * 500_000


def test_a_long_answer_arrives_over_tls(
    secure: RawConnection, tls_port: int, trusting: ssl.SSLContext
) -> None:
    path, expected = fresh_path(), b""
    send(secure, "PUT", path)
    secure.answer()
    for number in range(100):
        message = (b"%06d," % number) * 10_000
        send(secure, "POST", path, message)
        assert secure.answer().status == 204
        expected += message
    slow = RawConnection(tls_port, tls=trusting)
    send(slow, "GET", path)
    send(secure, "GET", path)
    assert secure.answer().body == expected
    assert slow.answer().body == expected
    slow.close()


def test_events_flow_over_tls(
    secure: RawConnection, tls_port: int, trusting: ssl.SSLContext
) -> None:
    path = fresh_path()
    send(secure, "PUT", path)
    secure.answer()
    reader = http.client.HTTPSConnection("localhost", tls_port, timeout=10, context=trusting)
    reader.request("GET", f"{path}?offset=-1&live=sse")
    response = reader.getresponse()
    assert response.readline() == b"event: control\n"
    send(secure, "POST", path, b"one")
    assert secure.answer().status == 204
    lines = [response.readline() for _ in range(4)]
    assert lines[2:] == [b"event: data\n", b"data:one\n"]
    response.close()
    reader.close()


def test_plain_http_on_the_tls_port_harms_nobody(tls_port: int, secure: RawConnection) -> None:
    plain = RawConnection(tls_port)
    plain.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert plain.is_ended_by_server() or plain.socket.recv(1000)
    plain.close()
    send(secure, "GET", "/healthz")
    assert secure.answer().status == 200


def test_a_broken_handshake_harms_nobody(tls_port: int, secure: RawConnection) -> None:
    for greeting in (b"\x16\x03\x01\x00\x05hello", b"\x00" * 100, b""):
        broken = RawConnection(tls_port)
        broken.send(greeting)
        broken.close()
    send(secure, "GET", "/healthz")
    assert secure.answer().status == 200
