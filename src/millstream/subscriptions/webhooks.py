"""Sends webhooks: one POST each, from a few threads of its own, to addresses that were checked.

The host is resolved here, every address it resolves to is judged, and the connection goes to the
very address that passed: a name that resolves differently the next time gains nothing. Redirects
are answers like any other and not followed.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Callable
from ipaddress import ip_address
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, cast

import msgspec

from millstream.errors import WebhookUrlRejected
from millstream.faults import Faults
from millstream.limits import WEBHOOK_ANSWER_BYTES_MAX, WEBHOOK_THREADS
from millstream.protocol.webhook_urls import WebhookTarget, is_allowed, parse_webhook_url

SEND_BYTES = 16 * 1024


class Webhook(NamedTuple):
    """What to send where. `sign` is called when it is sent: the signature carries the time."""

    url: str
    body: bytes
    sign: Callable[[bytes], str]
    seconds: float


class Answer(NamedTuple):
    """`problem` is empty when the receiver accepted; `done` when it also has done the work."""

    problem: str
    done: bool = False


class DoneBody(msgspec.Struct):
    done: bool = False


Reply = Callable[[Answer], None]
Resolve = Callable[[WebhookTarget], list[str]]


def resolve_target(target: WebhookTarget) -> list[str]:
    """The addresses of the target's host. Raises OSError; WebhookUrlRejected if one is not ok."""
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not is_allowed(target, ip_address(address)):
            raise WebhookUrlRejected(f"{target.host} resolves to {address}, which is not public")
    return addresses


class WebhookSender:
    """Owns the threads. `reply` is called on the loop, once per webhook, unless closed before."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolve: Resolve = resolve_target,
        tls: ssl.SSLContext | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._loop = loop
        self._resolve = resolve
        self._tls = tls
        self._queue: SimpleQueue[tuple[Webhook, Reply] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._lock = threading.Lock()
        self._closed = False

    def send(self, webhook: Webhook, reply: Reply) -> None:
        if len(self._threads) < min(self._under_way + 1, WEBHOOK_THREADS):
            # Daemons: a receiver that does not answer must not hold up the end of the process.
            thread = threading.Thread(target=self._work, name="webhook", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the machine has no thread for us: those there are must do
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
        self._under_way += 1
        self._queue.put((webhook, reply))

    def _finished(self, reply: Reply, answer: Answer) -> None:
        self._under_way -= 1
        try:
            reply(answer)
        except Exception as error:
            self._faults.report("webhooks", error)

    def close(self) -> None:
        """Nobody hears of what is still under way."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)

    # On a thread of its own

    def _work(self) -> None:
        while (work := self._queue.get()) is not None and not self._closed:
            webhook, reply = work
            answer = self._try(webhook)
            with self._lock:
                if not self._closed:
                    self._loop.call_soon_threadsafe(self._finished, reply, answer)

    def _try(self, webhook: Webhook) -> Answer:
        """Raises nothing, whatever happens: the thread is needed for the next one."""
        try:
            answer = self._post(webhook)
        except (OSError, http.client.HTTPException, WebhookUrlRejected) as error:
            answer = Answer(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self._faults.report("webhooks", error)
            return Answer(f"internal error: {type(error).__name__}")
        self._faults.works("webhooks")
        return answer

    def _post(self, webhook: Webhook) -> Answer:
        deadline = monotonic() + webhook.seconds
        target = parse_webhook_url(webhook.url)
        plain = _connect(target, self._resolve(target), deadline)
        with plain, self._secure(plain, target, deadline) as connection:
            _send(connection, _request_bytes(target, webhook), deadline)
            return _read_answer(connection, deadline)

    def _secure(
        self, plain: socket.socket, target: WebhookTarget, deadline: float
    ) -> socket.socket:
        """Speaks TLS and checks the certificate against the host, not against the address."""
        if not target.is_tls:
            return plain
        if self._tls is None:
            self._tls = ssl.create_default_context()
        plain.settimeout(_left(deadline))
        return self._tls.wrap_socket(plain, server_hostname=target.host)


def _connect(target: WebhookTarget, addresses: list[str], deadline: float) -> socket.socket:
    problem = OSError("the host has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, target.port), _left(deadline))
        except OSError as error:
            problem = error
    raise problem


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("the receiver took too long")
    return left


def _request_bytes(target: WebhookTarget, webhook: Webhook) -> bytes:
    head = (
        f"POST {target.path} HTTP/1.1\r\n"
        f"Host: {target.authority}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(webhook.body)}\r\n"
        f"Webhook-Signature: {webhook.sign(webhook.body)}\r\n"
        "User-Agent: millstream\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + webhook.body


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    for start in range(0, len(data), SEND_BYTES):
        connection.settimeout(_left(deadline))
        connection.sendall(data[start : start + SEND_BYTES])


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline for the whole, however slowly the bytes drip."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What http.client asks a socket for."""
        return io.BufferedReader(self)


def _read_answer(connection: socket.socket, deadline: float) -> Answer:
    reader = _DeadlineReader(connection, deadline)
    response = http.client.HTTPResponse(cast(socket.socket, reader), method="POST")
    try:
        response.begin()
        if not 200 <= response.status < 300:
            return Answer(f"the receiver answered {response.status}")
        return Answer("", _says_done(response.read(WEBHOOK_ANSWER_BYTES_MAX)))
    finally:
        response.close()


def _says_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=DoneBody).done
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
