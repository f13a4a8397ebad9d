"""Listens, keeps the connections, ticks once a second, and ends everything cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate

from millstream.faults import Faults
from millstream.http.access_log import AccessLog, LoggedConnection
from millstream.http.body_budget import BodyBudget
from millstream.http.connection import Connection
from millstream.http.known_heads import KnownHeads
from millstream.http.message import STATUS_LINES, Request
from millstream.http.pages import PageRules


@dataclass(frozen=True)
class HttpLimits:
    header_bytes: int
    body_bytes: int
    large_body_bytes: int  # for URLs that `is_large` picks out
    body_bytes_in_flight: int
    connections: int
    idle_seconds: float
    request_seconds: float  # for a head; and for each part of a body, see body_rate_bytes
    body_seconds: float  # for a whole body
    body_rate_bytes: int  # a second, on average over request_seconds
    stall_seconds: float
    write_buffer_bytes: int
    answer_seconds: float = 0.0  # until `overdue` hears of a request without an answer; 0: never


class Listener:
    """One address: who answers there, and which web pages are let in.

    `handler` is called on the loop for every request and must not block.
    """

    def __init__(self, handler: Callable[[Request], None], pages: PageRules) -> None:
        self.handler = handler
        self.pages = pages
        self.known_heads = KnownHeads(with_origins=pages.is_open)


class Server:
    """All connections, of as many addresses as it listens on."""

    def __init__(
        self,
        limits: HttpLimits,
        fixed_headers: bytes,
        access_log: AccessLog | None = None,
        is_large: Callable[[bytes], bool] = lambda url: False,
        faults: Faults | None = None,
    ) -> None:
        self.limits = limits
        self.access_log = access_log
        self.is_large = is_large
        self.faults = faults or Faults()  # hears of handlers that fail
        # Told once a second of each request that waits for longer than `answer_seconds`.
        self.overdue: Callable[[Request], None] = _nothing
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.counts: dict[str, dict[int, int]] = {}  # route -> status -> requests
        self.refusal_headers = {503: b"retry-after: 1\r\n"}
        self.body_budget = BodyBudget(limits.body_bytes_in_flight)
        self.is_closing = False
        self.tick = 1
        self._fixed_headers = fixed_headers
        self.address: tuple[str, int] | None = None  # the last one that it listens on
        self._listening: list[asyncio.Server] = []
        self._empty: asyncio.Event | None = None  # set once the last connection is gone
        self._set_leads()
        self._ticker = self.loop.call_later(1.0, self._tick)

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None, listener: Listener
    ) -> tuple[str, int]:
        """The address really bound. Raises OSError when it is taken."""
        connection = Connection if self.access_log is None else LoggedConnection
        listening = await self.loop.create_server(
            lambda: connection(self, listener), host, port, ssl=tls, backlog=4096, reuse_port=False
        )
        self._listening.append(listening)
        name = listening.sockets[0].getsockname()
        self.address = name[0], name[1]
        return self.address

    def _set_leads(self) -> None:
        """What answers begin with, by status: the date is of this second."""
        common = b"date: " + formatdate(usegmt=True).encode() + b"\r\n" + self._fixed_headers
        self.leads = {status: line + common for status, line in STATUS_LINES.items()}

    def _tick(self) -> None:
        self.tick += 1
        self._set_leads()
        for connection in list(self.connections):
            connection.sweep(self.tick)
        self._ticker = self.loop.call_later(1.0, self._tick)

    def note_overdue(self, request: Request) -> None:
        try:
            self.overdue(request)
        except Exception as error:
            self.faults.report("request", error)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def count(self, route: str, status: int) -> None:
        try:
            self.counts[route][status] += 1
        except KeyError:
            self.counts.setdefault(route, {})[status] = 1

    @staticmethod
    def error_body(code: str, message: str) -> bytes:
        return json.dumps({"error": {"code": code, "message": message}}).encode() + b"\n"

    def report_crash(self, request: Request) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        what = b"%s %s" % (request.method, request.path)
        error.add_note(f"while {what.decode('latin-1')!r} was answered")
        self.faults.report("request", error)

    def respond_crash(self, request: Request) -> None:
        body = self.error_body("internal_error", "the server failed on this request; see its log")
        request.respond(500, b"content-type: application/json\r\n", body)

    def abandon(self, context: object) -> None:
        """The client behind this context (a request, or a tuple with one) gets no real answer:
        a 500, or a closed connection when an answer has begun."""
        for part in context if isinstance(context, tuple) else (context,):
            if not isinstance(part, Request):
                continue
            part.connection.release_body(part)
            if part.connection.current is part:
                if part.connection.body_stream is None:
                    self.respond_crash(part)
                else:
                    part.connection.abort()

    def stop_listening(self) -> None:
        """No new connections; idle ones end now, the rest after their answer."""
        self.is_closing = True
        for listening in self._listening:
            listening.close()
        for connection in list(self.connections):
            connection.close_if_idle()

    async def close(self, grace_seconds: float) -> None:
        """Waits for the answers under way, then drops the connections that are left."""
        self.stop_listening()
        if self.connections:
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._empty.wait()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
        self._ticker.cancel()


def _nothing(request: Request) -> None:
    pass
