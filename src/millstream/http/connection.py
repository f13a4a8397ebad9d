"""One client connection: parses requests, hands them on strictly in order, writes the answers.

The next request of a connection is handled when the one before it has its answer, so pipelined
requests behave as if they had been sent one by one. No task and no future per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import httptools

from millstream.http.known_heads import KnownLine
from millstream.http.message import Body, Request
from millstream.http.refusals import (
    URL_BYTES_MAX,
    Refusal,
    body_too_large,
    headers_too_large,
    url_too_long,
)
from millstream.http.streaming import BodyStream
from millstream.limits import PIPELINE_REQUESTS_MAX

if TYPE_CHECKING:
    from millstream.http.server import Server

CHARGED_BODY_BYTES = 64 * 1024  # larger bodies count against the server's budget
LINGER_SECONDS = 2.0  # after a refusal, so that the client can read it before the reset

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_SLASH = ord("/")


class Connection(asyncio.Protocol):
    __slots__ = (
        "__weakref__",
        "blocked_since",
        "body",
        "body_bytes",
        "body_stream",
        "charged_bytes",
        "completed",
        "current",
        "dispatching",
        "half_closed",
        "head_bytes",
        "head_done",
        "headers",
        "last_block",
        "last_data",
        "last_headers",
        "last_line",
        "parser",
        "progress",
        "read_paused",
        "reading_since",
        "refused",
        "server",
        "stalled_bytes",
        "transport",
        "unsent_bytes",
        "url",
        "waiting",
        "write_paused",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpRequestParser(self)
        self.current: Request | None = None
        self.body_stream: BodyStream | None = None
        self.waiting: deque[Request | Refusal] = deque()
        self.write_paused = False
        self.unsent_bytes = 0  # when the client was last looked at while writing was paused
        self.read_paused = False
        self.dispatching = False
        self.refused = False  # whatever still arrives is thrown away
        self.half_closed = False
        self.charged_bytes = 0
        self.progress = self.stalled_bytes = 0
        self.completed = 0  # requests the parser finished
        self.last_block = b""
        self.last_line = (b"", b"", b"")
        self.last_headers: dict[bytes, bytes] = {}
        self.reading_since = 0  # tick at which the request being read began; 0: none
        self.last_data = self.blocked_since = server.tick
        self._begin_request()

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
        server, head_end = self.server, -1
        self.last_data = server.tick
        if not self.reading_since:
            head_end = data.find(b"\r\n\r\n")
            if head_end >= 0:
                # A whole request whose line and header block are known needs no parser.
                line_end = data.find(b"\r\n")
                known = server.known_heads.blocks.get(data[line_end:head_end])
                if known is not None and len(data) == head_end + 4 + known[1]:
                    line = server.known_heads.lines.get(data[:line_end])
                    if line is not None:
                        method, path, query = line
                        body = data[head_end + 4 :]
                        request = Request(self, method, path, query, known[0], body)
                        if self.current is None and not self.waiting and not self.write_paused:
                            self._dispatch(request)
                        else:
                            self.waiting.append(request)
                        return
        self._parse(data, head_end)

    def _parse(self, data: bytes, head_end: int) -> None:
        completed = self.completed
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
            if self.reading_since:
                self._check_progress(data)
            elif head_end >= 0 and self.completed == completed + 1:
                self._learn_head(data, head_end)
        if self.waiting and len(self.waiting) >= PIPELINE_REQUESTS_MAX and not self.read_paused:
            self.read_paused = True
            assert self.transport is not None
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """A client may close its side and still wait for answers; not with TLS, not on a stream."""
        self.half_closed = True
        if self.transport is None:
            return False
        if self.body_stream is not None and not self.body_stream.is_finite:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        if self.current is not None and self.current.on_half_close is not None:
            self.current.on_half_close()
        return self.current is not None or bool(self.waiting)

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
        self.unsent_bytes = 0

    def resume_writing(self) -> None:
        self.write_paused = False
        stream = self.body_stream
        if stream is not None:
            if stream.on_drain is not None:
                stream.on_drain()
        else:
            self._dispatch_waiting()

    # From the parser

    def _learn_head(self, data: bytes, head_end: int) -> None:
        """Twice in a row on one connection: it will come again."""
        if len(data) - head_end - 4 > CHARGED_BODY_BYTES:
            return  # large bodies go through the accounting
        line_end = data.find(b"\r\n")
        block = data[line_end:head_end]
        if block == self.last_block:
            line = KnownLine(*self.last_line)
            self.server.known_heads.remember(data[:line_end], line, block, self.last_headers)
        self.last_block = block

    def on_message_begin(self) -> None:
        self.reading_since = self.server.tick

    def _begin_request(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = 0
        self.head_done = False
        self.body: bytes | bytearray = b""
        self.body_bytes = 0
        self.reading_since = 0

    def on_url(self, url: bytes) -> None:
        if self.url:
            url = self.url + url
        if len(url) > URL_BYTES_MAX:
            raise url_too_long()
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head_bytes += len(name) + len(value) + 4
        if self.head_done:
            self._drop_trailer()
            return
        name = name.lower()
        headers = self.headers
        if name in headers:
            value = headers[name] + b", " + value
        headers[name] = value

    def _drop_trailer(self) -> None:
        """Trailers come after the decision what to do with the request; nothing here uses one."""
        if self.head_bytes > self.server.limits.header_bytes:
            raise headers_too_large(self.server.limits.header_bytes)

    def on_headers_complete(self) -> None:
        headers, limits = self.headers, self.server.limits
        if self.head_bytes > limits.header_bytes:
            raise headers_too_large(limits.header_bytes)
        if b"host" not in headers or b"," in headers[b"host"]:
            self._judge_host()
        self.head_done = True
        self.progress = 0
        if b"content-length" in headers:
            if int(headers[b"content-length"]) > limits.body_bytes:
                self._check_body_size(int(headers[b"content-length"]))
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise Refusal(501, "unknown_transfer_encoding", "only chunked is understood")
        if b"expect" in headers and self.current is None and not self.waiting:
            self._continue(headers[b"expect"])

    def _judge_host(self) -> None:
        if b"host" in self.headers or self.parser.get_http_version() == "1.1":
            raise Refusal(400, "host_missing", "send exactly one Host header")

    def _continue(self, expectation: bytes) -> None:
        if expectation.lower() == b"100-continue":
            self.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        if not self.body_bytes:
            self.body = part
        elif isinstance(self.body, bytes):
            self.body = bytearray(self.body) + part
        else:
            self.body += part
        self.body_bytes += len(part)
        if self.body_bytes > CHARGED_BODY_BYTES:
            self._charge_body(len(part))
        if self.body_bytes > self.server.limits.body_bytes:
            self._check_body_size(self.body_bytes)

    def _check_body_size(self, size: int) -> None:
        limits = self.server.limits
        large = self.server.is_large(self.url)
        limit = max(limits.body_bytes, limits.large_body_bytes) if large else limits.body_bytes
        if size > limit:
            raise body_too_large(limit)

    def on_message_complete(self) -> None:
        parser, url, body = self.parser, self.url, self.body
        if (b"upgrade" in self.headers or url[0] != _SLASH) and parser.should_upgrade():
            return  # data_received hears of it next
        path, query = url, b""
        if b"?" in url:
            path, _, query = url.partition(b"?")
        if path[0] != _SLASH:
            path = _absolute_form_path(path)
        if not isinstance(body, bytes):
            body = bytes(body)
        request = Request(self, parser.get_method(), path, query, self.headers, body)
        # By default HTTP/1.1 stays open and nothing else does: no need to ask for the version.
        if b"connection" in self.headers or not parser.should_keep_alive():
            self._judge_version(request)
        self.completed += 1
        self.last_headers = self.headers
        self.last_line = (request.method, path, query)
        self._begin_request()
        if self.current is None and not self.waiting and not self.write_paused:
            self._dispatch(request)
        else:
            self.waiting.append(request)

    def _judge_version(self, request: Request) -> None:
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refusal(505, "unknown_http_version", "this server speaks HTTP/1.1")
        request.chunked = version == "1.1"
        request.keep_alive = request.chunked and self.parser.should_keep_alive()

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
        try:  # as `count` does; a call costs as much as everything else here
            server.counts[request.route][status] += 1
        except KeyError:
            server.count(request.route, status)
        transport = self.transport
        if transport is None or self.current is not request:
            return  # the client left
        if not request.keep_alive or server.is_closing:
            headers += _CLOSE
        if status == 204 or status == 304:
            transport.write(server.leads[status] + headers + b"\r\n")
        else:
            self._write_with_body(request, status, headers, body)
        if server.access_log is not None:
            server.access_log(request, status)
        if (
            self.waiting
            or self.charged_bytes
            or self.half_closed
            or not request.keep_alive
            or server.is_closing
        ):
            self._finish(request)
        else:
            self.current = None

    def _write_with_body(self, request: Request, status: int, headers: bytes, body: Body) -> None:
        assert self.transport is not None
        whole = isinstance(body, bytes | memoryview)
        length = len(body) if whole else sum(map(len, cast("list[bytes]", body)))
        lead = self.server.leads[status] + headers
        if request.method == b"HEAD":
            self.transport.write(lead + b"\r\n")
            return
        head = b"%bcontent-length: %d\r\n\r\n" % (lead, length)
        if whole and length < 16_384:
            self.transport.write(head + cast(bytes, body))
        else:
            parts = [body] if whole else body
            self.transport.writelines([head, *cast("list[bytes]", parts)])

    def start_stream(
        self, request: Request, status: int, headers: bytes, length: int | None, is_finite: bool
    ) -> BodyStream:
        self.server.count(request.route, status)
        chunked = request.chunked and length is None
        stream = BodyStream(self, chunked, is_finite)
        if self.transport is None or self.current is not request:
            stream.ended = True
            return stream
        if length is not None:
            headers += b"content-length: %d\r\n" % length
        elif chunked:
            headers += b"transfer-encoding: chunked\r\n"
        if not request.keep_alive or self.server.is_closing:
            headers += _CLOSE
        self.body_stream = stream
        self.write(self.server.leads[status] + headers + b"\r\n")
        if self.server.access_log is not None:
            self.server.access_log(request, status)
        return stream

    def limit_unsent(self, bytes_max: int) -> None:
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=bytes_max)

    def stream_ended(self) -> None:
        self.body_stream = None
        self.limit_unsent(self.server.limits.write_buffer_bytes)
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
        server.count("refused", refusal.status)
        body = server.error_body(refusal.code, refusal.message)
        head = b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (
            server.leads[refusal.status],
            server.refusal_headers.get(refusal.status, b""),
            len(body),
            _CLOSE,
        )
        transport.write(head + body)
        if transport.can_write_eof():
            transport.write_eof()
        server.loop.call_later(LINGER_SECONDS, self.abort)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """We stay with HTTP/1.1: the same request is read again as if it had not asked."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(Refusal(501, "connect_unsupported", "this server is no proxy"))
            return
        wishes = self.headers.pop(b"connection", b"").split(b",")
        kept = [wish for wish in wishes if wish.strip().lower() == b"close"]
        self.headers.pop(b"upgrade", None)
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [name + b": " + value for name, value in self.headers.items()]
        lines += [b"connection: close"] if kept else []
        self._begin_request()
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _check_progress(self, data: bytes) -> None:
        """An unfinished line of the head or a trailer waits in the parser: not too long a one."""
        if self.head_done and self.body_bytes != self.progress:
            self.progress, self.stalled_bytes = self.body_bytes, 0
            return
        line_start = data.rfind(b"\n") + 1
        self.stalled_bytes = len(data) - line_start + (0 if line_start else self.stalled_bytes)
        if self.stalled_bytes > self.server.limits.header_bytes:
            self._refuse(headers_too_large(self.server.limits.header_bytes))

    def _charge_body(self, part_bytes: int) -> None:
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
            if self._is_draining():
                self.blocked_since = tick
            elif tick - self.blocked_since > limits.stall_seconds:
                self.abort()
        elif self.current is not None or self.refused:
            return
        elif self.reading_since:
            since = self.last_data if self.head_done else self.reading_since
            if tick - since > limits.request_seconds:
                self._refuse(Refusal(408, "request_timeout", "the request did not arrive in time"))
        elif tick - self.last_data > limits.idle_seconds:
            self.close_if_idle()

    def _is_draining(self) -> bool:
        """Whether the client took some of a large answer since the last look."""
        left = 0 if self.transport is None else self.transport.get_write_buffer_size()
        draining, self.unsent_bytes = left < self.unsent_bytes, left
        return draining

    def close_if_idle(self) -> None:
        if self.current is None and not self.waiting and self.transport is not None:
            self.transport.close()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        if self.transport is not None:
            self.transport.writelines(parts)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _absolute_form_path(url: bytes) -> bytes:
    """`http://host/path` as proxies send it; `*` stays what it is."""
    _, scheme, rest = url.partition(b"://")
    if not scheme:
        return url
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
