"""The sender alone: TLS against the host's name, checked addresses, deadlines, bounded answers."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from millstream.protocol.webhook_urls import WebhookTarget
from millstream.subscriptions.webhooks import (
    Answer,
    Resolve,
    Webhook,
    WebhookSender,
    resolve_target,
)

HOST = "hooks.example"
Handle = Callable[[socket.socket], None]


def answer_with(answer: bytes, wait_seconds: float = 0.0) -> Handle:
    def handle(connection: socket.socket) -> None:
        connection.recv(65536)
        time.sleep(wait_seconds)
        connection.sendall(answer)

    return handle


DONE = b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"done":true}'


@contextmanager
def listening(handle: Handle, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server for one connection after the other; errors of the client are its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen = threading.Thread(target=serve, args=(listener, handle, tls), daemon=True)
    seen.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        seen.join(10)


def serve(listener: socket.socket, handle: Handle, tls: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            handle(connection)
        except OSError:
            pass
        finally:
            connection.close()


def to_loopback(target: WebhookTarget) -> list[str]:
    """Stands for a name server that says what the test needs."""
    return ["127.0.0.1"]


def send(
    url: str,
    *,
    resolve: Resolve = to_loopback,
    tls: ssl.SSLContext | None = None,
    seconds: float = 5.0,
    body: bytes = b"{}",
) -> Answer:
    async def deliver() -> Answer:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()
        sender = WebhookSender(loop, resolve, tls)
        sender.send(Webhook(url, body, lambda body: "signed", seconds), answered.set_result)
        try:
            return await asyncio.wait_for(answered, 20)
        finally:
            sender.close()

    return asyncio.run(deliver())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of hooks.example with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return path


@contextmanager
def tls_receiver(certificate: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with listening(answer_with(DONE), context) as port:
        yield port


def test_tls_goes_to_the_checked_address_and_is_verified_by_name(certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    with tls_receiver(certificate) as port:
        assert send(f"https://{HOST}:{port}/", tls=trusting) == Answer("", done=True)
        other = send(f"https://other.example:{port}/", tls=trusting)
        assert "CERTIFICATE_VERIFY_FAILED" in other.problem
        untrusted = send(f"https://{HOST}:{port}/")
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.problem


def test_a_name_is_resolved_once_per_attempt() -> None:
    asked = list[str]()

    def resolve(target: WebhookTarget) -> list[str]:
        asked.append(target.host)
        return ["127.0.0.1"]

    with listening(answer_with(DONE)) as port:
        assert send(f"http://localhost:{port}/", resolve=resolve).done
    assert asked == ["localhost"]


def test_a_name_that_resolves_to_a_forbidden_address_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = list[bool]()
    with listening(lambda connection: called.append(True)) as port:
        for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::ffff:127.0.0.1"]):
            entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, entries=entries, **__: entries)
            answer = send(f"https://{HOST}:{port}/", resolve=resolve_target)
            assert answer.problem.startswith("WebhookUrlRejected")
    assert not called


def test_plain_http_only_reaches_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    assert send("http://localhost/", resolve=resolve_target).problem.startswith("WebhookUrl")


def test_a_second_address_is_tried() -> None:
    with listening(answer_with(DONE)) as port:
        answer = send(f"http://localhost:{port}/", resolve=lambda _: ["::1", "127.0.0.1"])
    assert answer.done


def drip(connection: socket.socket) -> None:
    """A byte now and then, each in time, never an end."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    for _ in range(100):
        connection.sendall(b"y")
        time.sleep(0.05)


def swallow_slowly(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    time.sleep(2)


@pytest.mark.parametrize("handle", [drip, answer_with(DONE, 2.0), swallow_slowly])
def test_an_attempt_ends_at_its_deadline_whatever_the_receiver_does(handle: Handle) -> None:
    with listening(handle) as port:
        began = time.monotonic()
        answer = send(f"http://127.0.0.1:{port}/", seconds=0.5, body=b"x" * 10_000_000)
        assert "TimeoutError" in answer.problem
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "RemoteDisconnected"),
        (b"rubbish\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n", "HTTPException"),
        (b"HTTP/1.1 500 No\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\n\r\n", "answered 302"),
        (b"HTTP/1.1 404 No\r\n\r\n", "answered 404"),
    ],
)
def test_anything_but_a_2xx_is_a_problem(raw: bytes, problem: str) -> None:
    with listening(answer_with(raw)) as port:
        assert problem in send(f"http://127.0.0.1:{port}/").problem


def test_an_endless_answer_is_read_only_so_far() -> None:
    def pour(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with listening(pour) as port:
        assert send(f"http://127.0.0.1:{port}/") == Answer("", done=False)


def test_nobody_there_is_a_problem() -> None:
    with listening(answer_with(DONE)) as port:
        pass
    assert "ConnectionRefusedError" in send(f"http://127.0.0.1:{port}/").problem
