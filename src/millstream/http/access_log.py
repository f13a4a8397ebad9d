"""A connection that tells of every answer, refusals too. Used only with --access-log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from millstream.http.connection import Connection
from millstream.http.message import Request
from millstream.http.refusals import Refusal
from millstream.http.streaming import BodyStream

if TYPE_CHECKING:
    from millstream.http.server import Listener, Server

CLIENT_LEFT = 0  # in place of a status: the client was gone


class Entry(NamedTuple):
    """What became of one request. Of a refused one, method and path may not be known."""

    client: str
    method: str
    path: str
    status: int
    seconds: float  # from its first byte, or from its turn, to the end of the answer
    bytes_out: int  # head and body


AccessLog = Callable[[Entry], None]


class CountedTransport:
    """The transport, and how much was written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.bytes_out = 0

    def write(self, data: bytes | memoryview) -> None:
        self.bytes_out += len(data)
        self._transport.write(data)

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        self.bytes_out += sum(map(len, parts))
        self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LoggedConnection(Connection):
    __slots__ = ("_began", "_refused_line", "_status")

    def __init__(self, server: Server, listener: Listener) -> None:
        super().__init__(server, listener)
        self._began = server.loop.time()
        self._status = CLIENT_LEFT
        self._refused_line = (b"", b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        counted = CountedTransport(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, counted))

    def data_received(self, data: bytes) -> None:
        if not self.reading_since and not self._is_busy:
            self._began = self.server.loop.time()
        super().data_received(data)

    def _dispatch(self, request: Request) -> None:
        if self.dispatching:  # it was here before its turn came
            self._began = self.server.loop.time()
        super()._dispatch(request)

    def log_answer(self, request: Request, status: int) -> None:
        self._log(request.method, request.path, status)

    def start_stream(
        self, request: Request, status: int, headers: bytes, length: int | None, is_finite: bool
    ) -> BodyStream:
        stream = super().start_stream(request, status, headers, length, is_finite)
        if not stream.ended:
            self._status = status
        return stream

    def stream_ended(self) -> None:
        if self.current is not None:
            self.log_answer(self.current, self._status)
        self._status = CLIENT_LEFT
        super().stream_ended()

    def connection_lost(self, error: Exception | None) -> None:
        if self.current is not None:
            self.log_answer(self.current, self._status)
        super().connection_lost(error)

    def _refuse(self, refusal: Refusal) -> None:
        if not self.refused:
            self._refused_line = self.reader.line_read()
        super()._refuse(refusal)

    def _send_refusal(self, refusal: Refusal) -> None:
        super()._send_refusal(refusal)
        method, url = self._refused_line
        self._log(method, url.partition(b"?")[0], refusal.status)

    def _log(self, method: bytes, path: bytes, status: int) -> None:
        server, counted = self.server, cast(CountedTransport, self.transport)
        assert server.access_log is not None
        bytes_out, counted.bytes_out = counted.bytes_out, 0
        server.access_log(
            Entry(
                self.client,
                method.decode("latin-1"),
                path.decode("latin-1"),
                status,
                round(server.loop.time() - self._began, 6),
                bytes_out,
            )
        )
