"""One client connection: parses requests, hands them on strictly in order, writes the answers.

The next request of a connection is handled when the one before it has its answer, so pipelined
requests behave as if they had been sent one by one. No task and no future per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from millstream.http.message import STATUS_LINES, Body, Request
from millstream.http.streaming import BodyStream
from millstream.limits import PIPELINE_REQUESTS_MAX

if TYPE_CHECKING:
    from millstream.http.server import Server

URL_BYTES_MAX = 16 * 1024
CHARGED_BODY_BYTES = 64 * 1024  # larger bodies count against the server's budget
LINGER_SECONDS = 2.0  # after a refusal, so that the client can read it before the reset

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_NO_BODY = frozenset((204, 304))


class Refusal(Exception):
    """The request cannot be read any further; answered in its turn, then the connection ends."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpRequestParser(self)
        self.current: Request | None = None
        self.body_stream: BodyStream | None = None
        self.waiting: deque[Request | Refusal] = deque()
        self.write_paused = False
        self.read_paused = False
        self.dispatching = False
        self.refused = False  # whatever still arrives is thrown away
        self.half_closed = False
        self.charged_bytes = 0
        self.reading_since = 0  # tick at which the request being read began; 0: none
        self.last_data = self.blocked_since = server.tick
        self.on_message_begin()
        self.reading_since = 0

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self)
        self.transport.set_write_buffer_limits(high=self.server.limits.write_buffer_bytes)
        if self.server.is_closing or len(self.server.connections) > self.server.limits.connections:
            self._refuse(Refusal(503, "overloaded", "too many connections; try again later"))

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self.last_data = self.server.tick
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refusal):
                raise
            self._refuse(error.__context__)
        except httptools.HttpParserError as error:
            self._refuse(Refusal(400, "malformed_http", f"not a well-formed request: {error}"))
        else:
            if not self.head_done and self.reading_since:
                self.head_bytes += len(data)
                if self.head_bytes > self.server.limits.header_bytes:
                    self._refuse(_header_refusal(self.server.limits.header_bytes))
        if self.waiting and len(self.waiting) >= PIPELINE_REQUESTS_MAX and not self.read_paused:
            self.read_paused = True
            assert self.transport is not None
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """A client may close its side and still wait for answers; not with TLS, not on a stream."""
        self.half_closed = True
        if self.transport is None or self.body_stream is not None:
            return False
        over_tls = self.transport.get_extra_info("sslcontext") is not None
        return not over_tls and (self.current is not None or bool(self.waiting))

    def connection_lost(self, error: Exception | None) -> None:
        self.server.forget(self)
        self.transport = None
        self.waiting.clear()
        self._release_body()
        stream, request = self.body_stream, self.current
        self.body_stream = self.current = None
        if stream is not None:
            stream.connection_lost()
        elif request is not None and request.on_disconnect is not None:
            request.on_disconnect()

    def pause_writing(self) -> None:
        self.write_paused = True
        self.blocked_since = self.server.tick

    def resume_writing(self) -> None:
        self.write_paused = False
        stream = self.body_stream
        if stream is not None:
            if stream.on_drain is not None:
                stream.on_drain()
        else:
            self._dispatch_waiting()

    # From the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = 0
        self.head_done = False
        self.body: bytes = b""
        self.body_parts: list[bytes] | None = None
        self.body_bytes = 0
        self.reading_since = self.server.tick

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > URL_BYTES_MAX:
            raise Refusal(414, "url_too_long", f"the URL exceeds {URL_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # a trailer; nothing here uses one
        self.head_bytes += len(name) + len(value)
        name = name.lower()
        if name in self.headers:
            value = self.headers[name] + b", " + value
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        headers, limits = self.headers, self.server.limits
        if self.head_bytes > limits.header_bytes:
            raise _header_refusal(limits.header_bytes)
        self.head_done = True
        length = headers.get(b"content-length")
        if length is not None:
            if int(length) > limits.body_bytes:
                raise _body_refusal(limits.body_bytes)
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise Refusal(501, "unknown_transfer_encoding", "only chunked is understood")
        if b"expect" in headers and self.current is None and not self.waiting:
            self._continue(headers[b"expect"])

    def _continue(self, expectation: bytes) -> None:
        if expectation.lower() == b"100-continue":
            self.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        if self.body_bytes == len(part):
            self.body = part
        elif self.body_parts is None:
            self.body_parts = [self.body, part]
        else:
            self.body_parts.append(part)
        if self.body_bytes > CHARGED_BODY_BYTES:
            self._charge_body(len(part))

    def on_message_complete(self) -> None:
        parser = self.parser
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Refusal(505, "unknown_http_version", "this server speaks HTTP/1.1")
        body = self.body if self.body_parts is None else b"".join(self.body_parts)
        self.body_parts = None
        path, _, query = self.url.partition(b"?")
        if path[:1] != b"/":
            path = _absolute_form_path(path)
        self.reading_since = 0
        request = Request(
            self,
            parser.get_method(),
            path,
            query,
            self.headers,
            body,
            parser.should_keep_alive() and version == "1.1",
        )
        if self.current is None and not self.waiting and not self.write_paused:
            self._dispatch(request)
        else:
            self.waiting.append(request)

    # Handling, in order

    def _dispatch(self, request: Request) -> None:
        self.current = request
        try:
            self.server.handler(request)
        except Exception:
            self.server.report_crash(request)
            if self.current is request:
                self.server.respond_crash(request)

    def _dispatch_waiting(self) -> None:
        if self.dispatching:
            return
        self.dispatching = True
        try:
            while self.waiting and self.current is None and not self.write_paused:
                request = self.waiting.popleft()
                if isinstance(request, Refusal):
                    self._send_refusal(request)
                else:
                    self._dispatch(request)
        finally:
            self.dispatching = False
        if self.read_paused and len(self.waiting) < PIPELINE_REQUESTS_MAX // 2:
            self.read_paused = False
            if self.transport is not None:
                self.transport.resume_reading()

    def send_response(self, request: Request, status: int, headers: bytes, body: Body) -> None:
        server = self.server
        server.counts[request.route, status] += 1
        transport = self.transport
        if transport is None or self.current is not request:
            return  # the client left
        if not request.keep_alive or server.is_closing:
            headers += _CLOSE
        if status in _NO_BODY:
            transport.write(STATUS_LINES[status] + server.common_headers + headers + b"\r\n")
        else:
            self._write_with_body(request, status, headers, body)
        if server.access_log is not None:
            server.access_log(request, status)
        self._finish(request)

    def _write_with_body(self, request: Request, status: int, headers: bytes, body: Body) -> None:
        assert self.transport is not None
        whole = isinstance(body, bytes | memoryview)
        length = len(body) if whole else sum(map(len, cast("list[bytes]", body)))
        lead = STATUS_LINES[status] + self.server.common_headers + headers
        if request.method == b"HEAD":
            self.transport.write(lead + b"\r\n")
            return
        head = b"%bcontent-length: %d\r\n\r\n" % (lead, length)
        if whole and length < 16_384:
            self.transport.write(head + cast(bytes, body))
        else:
            parts = [body] if whole else body
            self.transport.writelines([head, *cast("list[bytes]", parts)])

    def start_stream(self, request: Request, status: int, headers: bytes) -> BodyStream:
        self.server.counts[request.route, status] += 1
        chunked = request.keep_alive or self.parser.get_http_version() == "1.1"
        stream = BodyStream(self, chunked)
        if self.transport is None or self.current is not request:
            stream.ended = True
            return stream
        headers += b"transfer-encoding: chunked\r\n" if chunked else _CLOSE
        self.body_stream = stream
        self.write(STATUS_LINES[status] + self.server.common_headers + headers + b"\r\n")
        if self.server.access_log is not None:
            self.server.access_log(request, status)
        return stream

    def stream_ended(self) -> None:
        self.body_stream = None
        if self.current is not None:
            self._finish(self.current)

    def _finish(self, request: Request) -> None:
        self.current = None
        if self.charged_bytes:
            self._release_body()
        if not request.keep_alive or self.server.is_closing:
            self._close_when_sent()
        elif self.waiting:
            self._dispatch_waiting()
        elif self.half_closed:
            self._close_when_sent()

    def _close_when_sent(self) -> None:
        self.refused = True
        self.waiting.clear()
        if self.transport is not None:
            self.transport.close()

    # Refusals, limits and ends

    def _refuse(self, refusal: Refusal) -> None:
        if self.refused:
            return
        self.refused = True
        self.reading_since = 0
        self._release_body()
        if self.current is None and not self.waiting:
            self._send_refusal(refusal)
        else:
            self.waiting.append(refusal)

    def _send_refusal(self, refusal: Refusal) -> None:
        """Answers, then lets the client read the answer before the socket goes."""
        server, transport = self.server, self.transport
        if transport is None or transport.is_closing():
            return
        server.counts["refused", refusal.status] += 1
        body = server.error_body(refusal.code, refusal.message)
        head = b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[refusal.status],
            server.common_headers + server.refusal_headers.get(refusal.status, b""),
            len(body),
            _CLOSE,
        )
        transport.write(head + body)
        if transport.can_write_eof():
            transport.write_eof()
        server.loop.call_later(LINGER_SECONDS, self.abort)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """We stay with HTTP/1.1; the request before the upgrade was handled like any other."""
        if b"content-length" in self.headers or b"transfer-encoding" in self.headers:
            self._refuse(
                Refusal(400, "upgrade_unsupported", "send a request with a body without Upgrade")
            )
            return
        self.parser = httptools.HttpRequestParser(self)
        if rest:
            self.data_received(rest)

    def _charge_body(self, part_bytes: int) -> None:
        if self.body_bytes > self.server.limits.body_bytes:
            raise _body_refusal(self.server.limits.body_bytes)
        added = part_bytes if self.charged_bytes else self.body_bytes
        self.charged_bytes += added
        self.server.body_bytes_held += added
        if self.server.body_bytes_held > self.server.limits.body_bytes_in_flight:
            raise Refusal(503, "overloaded", "too many large requests at once; try again later")

    def _release_body(self) -> None:
        self.server.body_bytes_held -= self.charged_bytes
        self.charged_bytes = 0

    def sweep(self, tick: int) -> None:
        """Called every second: ends what takes too long."""
        limits = self.server.limits
        if self.write_paused:
            if tick - self.blocked_since > limits.stall_seconds:
                self.abort()
        elif self.current is not None or self.refused:
            return
        elif self.reading_since:
            since = self.last_data if self.head_done else self.reading_since
            if tick - since > limits.request_seconds:
                self._refuse(Refusal(408, "request_timeout", "the request did not arrive in time"))
        elif tick - self.last_data > limits.idle_seconds:
            self.abort()

    def close_if_idle(self) -> None:
        if self.current is None and not self.waiting and self.transport is not None:
            self.transport.close()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _header_refusal(limit: int) -> Refusal:
    return Refusal(431, "headers_too_large", f"the request's headers exceed {limit} bytes")


def _body_refusal(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the request's body exceeds {limit} bytes")


def _absolute_form_path(url: bytes) -> bytes:
    """`http://host/path` as proxies send it; `*` stays what it is."""
    _, scheme, rest = url.partition(b"://")
    if not scheme:
        return url
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
