"""The sender alone: TLS against the host's name, checked addresses, deadlines, bounded answers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from millstream.faults import Faults
from millstream.protocol.webhook_urls import AllowedReceivers, WebhookTarget
from millstream.subscriptions.webhooks import (
    Answer,
    Resolve,
    Webhook,
    WebhookSender,
    resolve_target,
)

HOST = "hooks.example"
LOOPBACK = ("127.0.0.0/8", "::1")
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


async def to_loopback(target: WebhookTarget) -> list[str]:
    """Stands for a name server that says what the test needs."""
    return ["127.0.0.1"]


def send(
    url: str,
    *,
    resolve: Resolve = to_loopback,
    tls: ssl.SSLContext | None = None,
    seconds: float = 5.0,
    body: bytes = b"{}",
    allow: tuple[str, ...] = LOOPBACK,
) -> Answer:
    """What became of one attempt; a fault of the program fails the test."""

    async def deliver() -> Answer:
        faults = Faults()
        sender = WebhookSender(faults, AllowedReceivers(allow), resolve, tls)
        answer = await sender.send(Webhook(url, body, lambda body: "signed", seconds))
        assert not any(faults.counts.values()), faults.last
        assert sender.outcomes[answer.outcome] == sum(sender.outcomes.values()) == 1
        return answer

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
        assert send(f"https://{HOST}:{port}/", tls=trusting) == Answer("", True, 200)
        other = send(f"https://other.example:{port}/", tls=trusting)
        assert "CERTIFICATE_VERIFY_FAILED" in other.problem
        untrusted = send(f"https://{HOST}:{port}/")
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.problem


def test_a_name_is_resolved_once_per_attempt() -> None:
    asked = list[str]()

    async def resolve(target: WebhookTarget) -> list[str]:
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
            answer = send(f"https://{HOST}:{port}/", resolve=resolve_target, allow=())
            assert answer.problem.startswith(f"WebhookUrlRejected: {HOST} resolves to ")
            assert f"--webhook-allow {ip_address(addresses[-1])} " in answer.problem
    assert not called


@pytest.mark.parametrize("url", ["http://localhost/", f"http://{HOST}/"])
def test_plain_http_only_reaches_what_is_allowed(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    assert send(url, resolve=resolve_target).problem.startswith("WebhookUrl")


def test_a_receiver_may_be_allowed_by_its_name() -> None:
    with listening(answer_with(DONE)) as port:
        for allow in (HOST, f"{HOST}:{port}"):
            assert send(f"http://{HOST}:{port}/", allow=(allow,)).done
        assert send(f"http://{HOST}:{port}/", allow=(f"{HOST}:1",)).outcome == "failed"


def test_a_second_address_is_tried() -> None:
    async def resolve(target: WebhookTarget) -> list[str]:
        return ["::1", "127.0.0.1"]

    with listening(answer_with(DONE)) as port:
        assert send(f"http://localhost:{port}/", resolve=resolve).done


def test_an_address_that_swallows_everything_does_not_hide_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.subscriptions.webhooks.WEBHOOK_CONNECT_SECONDS_MAX", 0.2)

    async def resolve(target: WebhookTarget) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    with listening(answer_with(DONE)) as port, socket.socket() as deaf:
        deaf.bind(("127.0.0.2", port))
        deaf.listen(0)
        with socket.create_connection(("127.0.0.2", port)), contextlib.ExitStack() as stack:
            for _ in range(2):  # what the kernel takes by itself, then it drops what comes
                knocking = stack.enter_context(socket.socket())
                knocking.setblocking(False)
                knocking.connect_ex(("127.0.0.2", port))
            assert send(f"http://localhost:{port}/", resolve=resolve).done


def drip(connection: socket.socket) -> None:
    """A byte now and then, each in time, never an end."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    for _ in range(100):
        connection.sendall(b"y")
        time.sleep(0.05)


def swallow_slowly(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    time.sleep(5)


@pytest.mark.parametrize("handle", [drip, answer_with(DONE, 5.0), swallow_slowly])
def test_an_attempt_ends_at_its_deadline_whatever_the_receiver_does(handle: Handle) -> None:
    with listening(handle) as port:
        began = time.monotonic()
        answer = send(f"http://127.0.0.1:{port}/", seconds=0.5, body=b"x" * 10_000_000)
        assert "TimeoutError" in answer.problem
        assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "InvalidAnswer: the receiver closed"),
        (b"HTTP/1.1 200 OK\r\nx: y\r\n", "InvalidAnswer: the receiver closed"),
        (b"rubbish\r\n\r\n", "HttpParser"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", "exceeds 32768 bytes"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "exceeds 32768 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "exceeds 32768 bytes"),
        (b"HTTP/1.1 101 No\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 500 No\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\n\r\n", "answered 302"),
        (b"HTTP/1.1 404 No\r\n\r\n", "answered 404"),
    ],
)
def test_anything_but_a_2xx_is_a_problem(raw: bytes, problem: str) -> None:
    with listening(answer_with(raw)) as port:
        assert problem in send(f"http://127.0.0.1:{port}/").problem


@pytest.mark.parametrize(
    "raw",
    [
        DONE,
        b"HTTP/1.1 100 Continue\r\n\r\n" + DONE,
        b'HTTP/1.1 201 Made\r\n\r\n{"done":true}',
        b'HTTP/1.0 200 OK\r\n\r\n{"done":true}',
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b'4\r\n{"do\r\n9\r\nne":true}\r\n0\r\n\r\n',
    ],
)
def test_an_answer_may_be_delimited_as_http_allows(raw: bytes) -> None:
    with listening(answer_with(raw)) as port:
        assert send(f"http://127.0.0.1:{port}/").done


def test_what_the_receiver_said_counts_even_if_it_breaks_off() -> None:
    with listening(answer_with(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")) as port:
        assert send(f"http://127.0.0.1:{port}/") == Answer("", False, 200)


def test_an_endless_answer_is_read_only_so_far() -> None:
    def pour(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with listening(pour) as port:
        assert send(f"http://127.0.0.1:{port}/") == Answer("", False, 200)


def test_nobody_there_is_a_problem() -> None:
    with listening(answer_with(DONE)) as port:
        pass
    assert "ConnectionRefusedError" in send(f"http://127.0.0.1:{port}/").problem


def test_a_fault_of_the_program_is_an_answer_too_and_the_next_one_goes() -> None:
    faults, errors = Faults(), [KeyError("injected"), MemoryError("injected")]

    async def resolve(target: WebhookTarget) -> list[str]:
        if errors:
            raise errors.pop()
        raise OSError("no such host")

    async def story() -> None:
        sender = WebhookSender(faults, AllowedReceivers(LOOPBACK), resolve)
        for failing in (["webhooks"], ["webhooks"], []):
            answer = await sender.send(webhook)
            assert answer.outcome == "failed"
            assert list(faults.failing()) == failing
        assert sender.outcomes == {"delivered": 0, "refused": 0, "failed": 3}

    webhook = Webhook("http://localhost:1/", b"{}", lambda body: "signed", 5.0)
    asyncio.run(story())
    assert faults.counts["webhooks"] == 2
