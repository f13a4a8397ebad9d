"""One client connection: hands its requests on strictly in order and writes the answers.

The next request of a connection is handled when the one before it has its answer, so pipelined
requests behave as if they had been sent one by one. No task and no future per request. Whatever
one answer sets off is a turn of a loop here, never a call inside a call.

Nothing of a connection survives it: `connection_lost` takes apart whatever points back here, so
that all of it is freed at once and not when the collector comes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from millstream.http.known_heads import HeadShape
from millstream.http.message import Body, Request
from millstream.http.reader import RequestReader
from millstream.http.refusals import Refusal, gave_way
from millstream.http.streaming import BodyStream
from millstream.limits import PIPELINE_BYTES_MAX, PIPELINE_REQUESTS_MAX

if TYPE_CHECKING:
    from millstream.http.server import Listener, Server

LINGER_SECONDS = 2.0  # after a refusal, so that the client can read it before the reset

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"


class Connection(asyncio.Protocol):
    __slots__ = (
        "__weakref__",
        "blocked_since",
        "body_stream",
        "charged_bytes",
        "client",
        "current",
        "dispatching",
        "half_closed",
        "handler",
        "has_more_to_do",
        "known_heads",
        "last_data",
        "linger",
        "queued_bytes",
        "read_paused",
        "reader",
        "reading_since",
        "refused",
        "server",
        "shape",
        "transport",
        "unsent_bytes",
        "waiting",
        "watched",
        "watched_since",
        "write_paused",
    )

    def __init__(self, server: Server, listener: Listener) -> None:
        self.server = server
        self.handler = listener.handler
        self.known_heads = listener.known_heads
        self.transport: asyncio.Transport | None = None
        self.client = ""  # its address
        self.current: Request | None = None
        self.body_stream: BodyStream | None = None
        self.waiting: deque[Request | Refusal] = deque()
        self.write_paused = False
        self.unsent_bytes = 0  # when the client was last looked at while writing was paused
        self.read_paused = False
        self.dispatching = False
        self.refused = False  # whatever still arrives is thrown away
        self.half_closed = False
        self.has_more_to_do = False  # after the current answer, apart from what is waiting
        self.linger: asyncio.TimerHandle | None = None
        self.charged_bytes = 0  # of bodies that are arriving, waiting or being answered
        self.queued_bytes = 0  # of them: those that wait, or did since all were answered
        self.reading_since = 0  # tick at which the request being read began; 0: none
        self.last_data = self.blocked_since = server.tick
        self.watched: weakref.ref[Request] | None = None  # unanswered when it was last looked at
        self.watched_since = 0  # tick at which it was first so
        self.shape: HeadShape | None = None  # of its heads that differ in the length alone
        self.reader = RequestReader(self, listener.pages)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.client = str((transport.get_extra_info("peername") or ("",))[0])
        self.server.connections.add(self)
        self.transport.set_write_buffer_limits(high=self.server.limits.write_buffer_bytes)
        if self.server.is_closing or len(self.server.connections) > self.server.limits.connections:
            self._refuse(Refusal(503, "overloaded", "too many connections; try again later"))

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        head_end = -1
        self.last_data = self.server.tick
        if not self.reading_since:
            head_end = data.find(b"\r\n\r\n")
            if head_end >= 0:
                # A whole request whose line and header block are known needs no parser.
                line_end = data.find(b"\r\n")
                heads = self.known_heads
                block, body_bytes = data[line_end:head_end], len(data) - head_end - 4
                shape = self.shape
                if shape is not None and block == shape[0] + b"%d" % body_bytes + shape[1]:
                    known = shape[3] if body_bytes <= shape[2] else None
                else:
                    known = heads.blocks.get(block)
                    if known is not None and known[1] != body_bytes:
                        known = None
                if known is not None:
                    line = heads.lines.get(data[:line_end])
                    if line is not None:
                        method, path, query = line
                        body = data[head_end + 4 :]
                        request = Request(self, method, path, query, known[0], body)
                        if self.current is None and not self.waiting and not self.write_paused:
                            self._dispatch(request)
                        else:
                            self.waiting.append(request)
                            self._charge_queued(len(body))
                            self._pause_if_ahead()
                        return
        self._read(data, head_end)

    def _read(self, data: bytes, head_end: int) -> None:
        try:
            self.reader.feed(data, head_end)
            if self.reading_since:
                self.reader.await_rest()
            if self.reader.queued_bytes:
                self._charge_queued(self.reader.take_queued())
        except Refusal as refusal:
            self._refuse(refusal.bare())
        except Exception as error:
            self.server.faults.report("request", error)
            self._refuse(Refusal(500, "internal_error", "the server failed; see its log"))
        if self.waiting or self.reading_since:
            self._pause_if_ahead()

    def request_read(self, request: Request) -> None:
        """The reader has the next one."""
        if self.refused:
            return
        if self.current is None and not self.waiting and not self.write_paused:
            self._dispatch(request)
        else:
            self.waiting.append(request)
            if not request.charged_bytes:
                self.reader.queued_bytes += len(request.body)

    def invite_body(self) -> None:
        """Tells a client to go on that waits for it, once all before it is answered."""
        self.has_more_to_do = self.half_closed
        if not self.reader.awaits_continue:
            return
        if self.current is None and not self.waiting:
            self.reader.awaits_continue = False
            self.write(_CONTINUE)
        else:
            self.has_more_to_do = True

    def eof_received(self) -> bool:
        """A client may close its side and still wait for answers; not with TLS, not on a stream."""
        self.half_closed = self.has_more_to_do = True
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
        self.refused = True
        if self.linger is not None:
            self.linger.cancel()
            self.linger = None
        stream, request = self.body_stream, self.current
        self.body_stream = self.current = None
        self._forget_requests(request)
        self.reader.drop()
        if stream is not None:
            stream.connection_lost()
        if request is not None:
            self._leave(request)

    def _forget_requests(self, current: Request | None) -> None:
        """All but the current one, whose handler has the body until it has answered."""
        self.waiting.clear()
        self.queued_bytes = 0
        self._forget_arriving()
        self._release(self.charged_bytes - (0 if current is None else current.charged_bytes))

    def _forget_arriving(self) -> None:
        """The request that is being read, if there is one."""
        self.reading_since = 0
        self.server.body_budget.leave(self)
        self._release(self.reader.charged_bytes)
        self.reader.forget_body()

    def _leave(self, request: Request) -> None:
        on_disconnect = request.on_disconnect
        request.on_disconnect = request.on_half_close = None
        if on_disconnect is not None:  # no handler will answer then
            self.release_body(request)
            on_disconnect()

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

    # What came ahead of its turn

    def _charge_queued(self, bytes_more: int) -> None:
        """Small bodies that have to wait count together, until none of them does any more."""
        if not self.server.body_budget.take(bytes_more):
            self._refuse(gave_way())
            return
        self.queued_bytes += bytes_more
        self.charged_bytes += bytes_more

    def _release_queued(self) -> None:
        released, self.queued_bytes = self.queued_bytes, 0
        self._release(released)

    @property
    def _is_busy(self) -> bool:
        """What arrives now has to wait for its turn."""
        return self.current is not None or bool(self.waiting) or self.write_paused

    def _is_ahead(self, requests_max: int) -> bool:
        if not self._is_busy:
            return False
        return len(self.waiting) >= requests_max or self.charged_bytes > PIPELINE_BYTES_MAX

    def _pause_if_ahead(self) -> None:
        if self.transport is None or self.read_paused or self.refused:
            return
        if self._is_ahead(PIPELINE_REQUESTS_MAX):
            self.read_paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """After an answer, when there may be room again."""
        transport = self.transport
        if self.read_paused and not self._is_ahead(PIPELINE_REQUESTS_MAX // 2):
            self.read_paused = False
            if transport is not None and not transport.is_closing():
                transport.resume_reading()
        if self.reading_since:
            self.reader.hold_clock(self.server.tick)
            self.invite_body()

    # The server's budget of body bytes

    def charge(self, bytes_more: int) -> bool:
        """For the body that is arriving. False: the server has no room for it."""
        self.charged_bytes += bytes_more
        return self.server.body_budget.take_arriving(self, bytes_more)

    @property
    def recent_body_bytes(self) -> int:
        return self.reader.recent_bytes

    def give_way(self) -> None:
        """Others need the room that the arriving body takes."""
        self._refuse(gave_way())

    def _release(self, bytes_less: int) -> None:
        self.charged_bytes -= bytes_less
        self.server.body_budget.release(bytes_less)

    def release_body(self, request: Request) -> None:
        """The body is not needed any more."""
        if request.charged_bytes:
            self._release(request.charged_bytes)
            request.charged_bytes = 0
            request.body = b""

    # Handling, in order

    def _dispatch(self, request: Request) -> None:
        self.current = request
        try:
            self.handler(request)
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
        if self.queued_bytes and not self.waiting:
            self._release_queued()
        if self.read_paused or self.reading_since:
            self._read_on()

    def send_response(self, request: Request, status: int, headers: bytes, body: Body) -> None:
        server, transport = self.server, self.transport
        if transport is None or self.current is not request:
            self.release_body(request)
            return  # the client left, or waited long enough and was told so
        try:  # as `count` does; a call costs as much as everything else here
            server.counts[request.route][status] += 1
        except KeyError:
            server.count(request.route, status)
        if not request.keep_alive or server.is_closing:
            headers += _CLOSE
        if status == 204 or status == 304:
            transport.write(server.leads[status] + headers + b"\r\n")
        else:
            self._write_with_body(request, status, headers, body)
        if server.access_log is not None:
            self.log_answer(request, status)
        if (
            self.waiting
            or self.charged_bytes
            or self.has_more_to_do
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
        chunked = request.chunked and length is None
        stream = BodyStream(self, chunked, is_finite)
        self.release_body(request)
        if self.transport is None or self.current is not request:
            stream.ended = True
            return stream
        self.server.count(request.route, status)
        if length is not None:
            headers += b"content-length: %d\r\n" % length
        elif chunked:
            headers += b"transfer-encoding: chunked\r\n"
        if not request.keep_alive or self.server.is_closing:
            headers += _CLOSE
        self.body_stream = stream
        self.write(self.server.leads[status] + headers + b"\r\n")
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
        if request.charged_bytes:
            self.release_body(request)
        if not request.keep_alive or self.server.is_closing:
            self._close_when_sent()
        elif self.waiting:
            self._dispatch_waiting()
        elif self.half_closed:
            self._close_when_sent()
        else:
            self._read_on()

    def _close_when_sent(self) -> None:
        lingers, self.refused = self.refused, True
        self._forget_requests(self.current)
        if lingers:
            self._linger()
        elif self.transport is not None:
            self.transport.close()

    # Refusals, limits and ends

    def _refuse(self, refusal: Refusal) -> None:
        if self.refused:
            return
        self.refused = True
        refusal.headers = self.reader.page_headers
        self._forget_arriving()
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
            server.refusal_headers.get(refusal.status, b"") + refusal.headers,
            len(body),
            _CLOSE,
        )
        transport.write(head + body)
        self._linger()

    def _linger(self) -> None:
        """The answer was the last. What the client still sends would make the socket's end a reset,
        which may overtake the answer."""
        transport = self.transport
        if transport is None or self.linger is not None:
            return
        if transport.can_write_eof():
            transport.write_eof()
        self.linger = self.server.loop.call_later(LINGER_SECONDS, self.abort)

    def give_up(self, request: Request) -> bool:
        """The handler takes too long: the next answer to the request is the last on this
        connection, and what the handler says later is dropped. Requests behind it are not begun,
        so a client knows what was not done. False: it has an answer, or one that has begun.
        """
        if self.current is not request or self.body_stream is not None:
            return False
        self.refused, request.keep_alive = True, False
        self._leave(request)
        return True

    def sweep(self, tick: int) -> None:
        """Called every second: ends what takes too long."""
        limits = self.server.limits
        if self.write_paused:
            if self._is_draining():
                self.blocked_since = tick
            elif tick - self.blocked_since > limits.stall_seconds:
                self.abort()
                return
        if self.refused:
            return
        if self.current is not None and limits.answer_seconds:
            self._watch(self.current, tick)
        if self.reading_since:
            if self._is_busy:
                self.reader.hold_clock(tick)
            else:
                self._check_clock(tick)
        elif not self._is_busy and tick - self.last_data > limits.idle_seconds:
            self.close_if_idle()

    def _watch(self, request: Request, tick: int) -> None:
        """A request is found here twice before its time counts: no answer pays for this."""
        if self.body_stream is not None:
            self.watched = None
        elif self.watched is None or self.watched() is not request:
            self.watched, self.watched_since = weakref.ref(request), tick
        elif tick - self.watched_since >= self.server.limits.answer_seconds:
            self.server.note_overdue(request)

    def _check_clock(self, tick: int) -> None:
        try:
            self.reader.check_clock(tick)
        except Refusal as refusal:
            self._refuse(refusal.bare())

    def _is_draining(self) -> bool:
        """Whether the client took some of a large answer since the last look."""
        left = 0 if self.transport is None else self.transport.get_write_buffer_size()
        draining, self.unsent_bytes = left < self.unsent_bytes, left
        return draining

    def log_answer(self, request: Request, status: int) -> None:
        """For the access log; access_log.py has the connection that can."""

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
