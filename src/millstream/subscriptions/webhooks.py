"""Sends webhooks: one POST each, to an address that was checked, within one deadline.

The host is resolved off the loop, every address it resolves to is judged, and the connection goes
to the very address that passed: a name that resolves differently the next time gains nothing.
Redirects are answers like any other and not followed. How many go at once is decided in turns.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address
from typing import NamedTuple

import httptools
import msgspec

from millstream.errors import WebhookUrlRejected
from millstream.faults import Faults
from millstream.limits import (
    KIB,
    WEBHOOK_ANSWER_BYTES_MAX,
    WEBHOOK_CONNECT_SECONDS_MAX,
    WEBHOOK_HEADER_BYTES_MAX,
)
from millstream.protocol.webhook_urls import (
    NONE_ALLOWED,
    AllowedReceivers,
    WebhookTarget,
    check_address,
    parse_webhook_url,
)

READ_BYTES = 16 * KIB


class Webhook(NamedTuple):
    """What to send where. `sign` is called when it is sent: the signature carries the time."""

    url: str
    body: bytes
    sign: Callable[[bytes], str]
    seconds: float


class Answer(NamedTuple):
    """`problem` is empty when the receiver accepted; `done` when it also has done the work.

    `status` is 0 when no answer came.
    """

    problem: str
    done: bool = False
    status: int = 0

    @property
    def outcome(self) -> str:
        if not self.problem:
            return "delivered"
        return "refused" if self.status else "failed"


class DoneBody(msgspec.Struct):
    done: bool = False


class InvalidAnswer(Exception):
    """What the receiver sent is no answer in HTTP, or too long a one."""


EXPECTED = (OSError, WebhookUrlRejected, InvalidAnswer, httptools.HttpParserError)

Resolve = Callable[[WebhookTarget], Awaitable[list[str]]]


async def resolve_target(target: WebhookTarget) -> list[str]:
    """The addresses of the target's host, none of them judged. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class WebhookSender:
    """`outcomes` counts attempts: delivered, refused (answered, but not 2xx), failed."""

    def __init__(
        self,
        faults: Faults,
        allowed: AllowedReceivers = NONE_ALLOWED,
        resolve: Resolve = resolve_target,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.outcomes = {"delivered": 0, "refused": 0, "failed": 0}
        self._faults = faults
        self._allowed = allowed
        self._resolve = resolve
        self._tls = tls

    async def send(self, webhook: Webhook) -> Answer:
        """One attempt. Every error is an answer; cancelled, the receiver may have heard it."""
        answer = await self._try(webhook)
        self.outcomes[answer.outcome] += 1
        return answer

    async def _try(self, webhook: Webhook) -> Answer:
        try:
            async with asyncio.timeout(webhook.seconds):
                answer = await self._post(webhook)
        except TimeoutError:
            answer = Answer(f"TimeoutError: not answered within {webhook.seconds:g} seconds")
        except EXPECTED as error:
            answer = Answer(f"{type(error).__name__}: {error}")
        except Exception as error:
            self._faults.report("webhooks", error)
            return Answer(f"internal error: {type(error).__name__}")
        self._faults.works("webhooks")
        return answer

    async def _post(self, webhook: Webhook) -> Answer:
        target = parse_webhook_url(webhook.url, self._allowed)
        addresses = await self._checked_addresses(target)
        async with self._connected(target, addresses) as (reader, writer):
            writer.write(_request_bytes(target, webhook))
            await writer.drain()
            return await _read_answer(reader)

    async def _checked_addresses(self, target: WebhookTarget) -> list[str]:
        addresses = await self._resolve(target)
        for address in addresses:
            check_address(target, ip_address(address), self._allowed)
        return addresses

    @contextlib.asynccontextmanager
    async def _connected(
        self, target: WebhookTarget, addresses: list[str]
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await self._connect(target, addresses)
        try:
            yield reader, writer
        finally:
            # Not `close`: that would wait for a receiver that says no goodbye.
            writer.transport.abort()

    async def _connect(
        self, target: WebhookTarget, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the first that answers. The certificate is checked against the host, not against
        the address."""
        tls = await self._context() if target.is_tls else None
        name = target.host if tls is not None else None
        problem = OSError("the host has no address")
        for address in addresses:
            is_last = address == addresses[-1]
            try:
                async with asyncio.timeout(None if is_last else WEBHOOK_CONNECT_SECONDS_MAX):
                    return await asyncio.open_connection(
                        address, target.port, ssl=tls, server_hostname=name
                    )
            except OSError as error:
                problem = error
        raise problem

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads files
        return self._tls


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


class _AnswerParser:
    """Fed with bytes until it is `complete`, or the connection ends."""

    def __init__(self) -> None:
        self.status = 0  # once its head is whole
        self.body = bytearray()
        self.complete = False
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises httptools' errors and InvalidAnswer."""
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise InvalidAnswer("the receiver wants another protocol") from None
        if not self.status and self._head_bytes > WEBHOOK_HEADER_BYTES_MAX:
            raise InvalidAnswer(f"the answer's head exceeds {WEBHOOK_HEADER_BYTES_MAX} bytes")
        if len(self.body) >= WEBHOOK_ANSWER_BYTES_MAX or self.status >= 300:
            self.complete = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # before the answer there may be others that only announce it
            self.status = status

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = self.status > 0


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    parser = _AnswerParser()
    while not parser.complete and (data := await reader.read(READ_BYTES)):
        parser.feed(data)
    if not parser.status:
        raise InvalidAnswer("the receiver closed the connection without an answer")
    if not 200 <= parser.status < 300:
        return Answer(f"the receiver answered {parser.status}", status=parser.status)
    return Answer("", _says_done(bytes(parser.body[:WEBHOOK_ANSWER_BYTES_MAX])), parser.status)


def _says_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=DoneBody).done
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
