"""From bytes to requests: head, body and their limits. One reader per connection.

Whatever a client sends ends as a Request that is handed on, or as a Refusal that is raised. The
clock of a request that is still arriving is kept here too: a head has a deadline, a body has one
as well and has to come at a minimal pace.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, cast

import httptools

from millstream.http.known_heads import KnownLine
from millstream.http.message import Request
from millstream.http.pages import PageConnection, PageRules
from millstream.http.refusals import (
    URL_BYTES_MAX,
    Refusal,
    body_too_large,
    gave_way,
    headers_too_large,
    too_slow,
    url_too_long,
)
from millstream.limits import CHARGED_BODY_BYTES

if TYPE_CHECKING:
    from millstream.http.connection import Connection

_SLASH = ord("/")
_WITH_BODY = (b"POST", b"PUT")  # no handler looks at the body of any other request


class RequestReader:
    """`feed` is the way in. The rest is called by the parser, or by the connection's clock."""

    __slots__ = (
        "awaits_continue",
        "body",
        "body_bytes",
        "body_bytes_before",
        "body_bytes_then",
        "body_since",
        "charged_bytes",
        "completed",
        "connection",
        "head_bytes",
        "head_done",
        "headers",
        "is_rare",
        "known_hosts",
        "last_block",
        "last_headers",
        "last_length",
        "last_line",
        "limits",
        "page_headers",
        "pages",
        "parser",
        "progress",
        "queued_bytes",
        "server",
        "stalled_bytes",
        "url",
        "window_bytes",
        "window_since",
    )

    def __init__(self, connection: Connection, pages: PageRules) -> None:
        self.connection = connection
        self.pages, self.known_hosts = pages, pages.known_hosts
        self.server = connection.server
        self.limits = connection.server.limits
        self.parser = httptools.HttpRequestParser(self)
        self.progress = self.stalled_bytes = 0
        self.completed = 0  # requests the parser finished
        self.queued_bytes = 0  # of their bodies, as far as they wait and are not charged yet
        self.last_block = self.last_length = b""
        self.last_line = (b"", b"", b"")
        self.last_headers: dict[bytes, bytes] = {}
        self._forget_rare()
        self._begin_request()

    def drop(self) -> None:
        """The connection is gone. Parser and connection must not keep each other, nor the body."""
        self._begin_request()
        del self.parser, self.connection

    # Bytes in

    def feed(self, data: bytes, head_end: int) -> None:
        """Hands on every request that ends in `data`. Raises Refusal for what is none.

        `head_end` is where the first head in `data` ends, if that is known and nothing came before.
        """
        completed = self.completed
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            raise _reason(error) from None
        else:
            if self.connection.reading_since:
                self._check_progress(data)
            elif head_end >= 0 and self.completed == completed + 1:
                self._learn_head(data, head_end)

    def _ignore_upgrades(self, rest: memoryview) -> None:
        """We stay with HTTP/1.1: a request that asks for another protocol is read again as if it
        had not. `rest` is what came behind its head; there may be more such requests."""
        while not self.connection.refused:
            head = self._head_without_upgrade()
            self._begin_request()
            self.parser = httptools.HttpRequestParser(self)
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                raise _reason(error) from None
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        method, headers = self.parser.get_method(), self.headers
        if method == b"CONNECT":
            raise Refusal(501, "connect_unsupported", "this server is no proxy")
        wishes = headers.pop(b"connection", b"").split(b",")
        closes = any(wish.strip().lower() == b"close" for wish in wishes)
        headers.pop(b"upgrade", None)
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [name + b": " + value for name, value in headers.items()]
        lines += [b"connection: close"] if closes else []
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _check_progress(self, data: bytes) -> None:
        """An unfinished line of the head or a trailer waits in the parser: not too long a one."""
        if self.head_done and self.body_bytes != self.progress:
            self.progress, self.stalled_bytes = self.body_bytes, 0
            return
        line_start = data.rfind(b"\n") + 1
        self.stalled_bytes = len(data) - line_start + (0 if line_start else self.stalled_bytes)
        limit = self.limits.header_bytes
        if self.stalled_bytes > limit:
            raise headers_too_large(limit)

    def _learn_head(self, data: bytes, head_end: int) -> None:
        """Twice in a row on one connection, but for the length of the body: it will come again."""
        if len(data) - head_end - 4 > CHARGED_BODY_BYTES:
            return  # large bodies go through the accounting
        line_end = data.find(b"\r\n")
        block, headers = data[line_end:head_end], self.last_headers
        length = b": " + headers.get(b"content-length", b"")
        if block == self.last_block:
            line, heads = KnownLine(*self.last_line), self.connection.known_heads
            heads.remember(data[:line_end], line, block, headers)
        elif block == self.last_block.replace(self.last_length, length, 1):
            line, heads = KnownLine(*self.last_line), self.connection.known_heads
            bytes_max = self._shape_body_bytes_max(block)
            shape = heads.remember_shape(data[:line_end], line, block, headers, bytes_max)
            self.connection.shape = shape
        self.last_block, self.last_length = block, length

    def _shape_body_bytes_max(self, block: bytes) -> int:
        """Larger bodies go through the accounting, and so does what is near a limit."""
        limits = self.limits
        if 2 * len(block) > limits.header_bytes:
            return -1
        return min(CHARGED_BODY_BYTES, limits.body_bytes)

    # From the parser

    def on_message_begin(self) -> None:
        self.connection.reading_since = self.server.tick

    def _begin_request(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = 0
        self.head_done = False
        self.body: bytes | BytesIO = b""
        self.body_bytes = 0
        self.connection.reading_since = 0
        if self.is_rare:
            self._forget_rare()

    def _forget_rare(self) -> None:
        """What most requests never come to."""
        self.is_rare = False
        self.awaits_continue = False
        self.page_headers = b""  # for the web page that sent it
        self.charged_bytes = 0
        self.body_since = 0  # tick at which more of the body had to be waited for

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
        limit = self.limits.header_bytes
        if self.head_bytes > limit:
            raise headers_too_large(limit)

    def on_headers_complete(self) -> None:
        headers, limits = self.headers, self.limits
        if self.head_bytes > limits.header_bytes:
            raise headers_too_large(limits.header_bytes)
        if headers.get(b"host") not in self.known_hosts or b"origin" in headers:
            self._judge_page()
        self.head_done = True
        self.progress = 0
        if b"content-length" in headers:
            if int(headers[b"content-length"]) > limits.body_bytes:
                self._check_body_size(int(headers[b"content-length"]))
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise Refusal(501, "unknown_transfer_encoding", "only chunked is understood")
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
            self.is_rare = self.awaits_continue = True
            self.connection.invite_body()

    def _judge_page(self) -> None:
        host, parser = self.headers.get(b"host"), self.parser
        if parser.get_http_version() == "1.1" if host is None else b"," in host:
            raise Refusal(400, "host_missing", "send exactly one Host header")
        self.page_headers = self.pages.judge(parser.get_method(), host, self.headers.get(b"origin"))
        if self.page_headers:
            self.is_rare = True

    def on_body(self, part: bytes) -> None:
        if not self.body_bytes:
            self.body = part
        elif isinstance(self.body, bytes):
            first, self.body = self.body, BytesIO()
            self.body.write(first)
            self.body.write(part)
        else:
            self.body.write(part)
        self.body_bytes += len(part)
        if self.body_bytes > self.limits.body_bytes:
            self._check_body_size(self.body_bytes)

    def _check_body_size(self, size: int) -> None:
        limit = self.limits.body_bytes
        if self.server.is_large(self.url):
            limit = max(limit, self.limits.large_body_bytes)
        if size > limit:
            raise body_too_large(limit)

    def on_message_complete(self) -> None:
        parser, url = self.parser, self.url
        if (b"upgrade" in self.headers or url[0] != _SLASH) and parser.should_upgrade():
            return  # `feed` hears of it next
        path, query = url, b""
        if b"?" in url:
            path, _, query = url.partition(b"?")
        if path[0] != _SLASH:
            path = _absolute_form_path(path)
        body, connection = self.body, self.connection
        if self.is_rare or self.body_bytes > CHARGED_BODY_BYTES:
            body = self._rare_body()
        elif not isinstance(body, bytes):
            body = body.getvalue()  # not a copy, as bytes of a bytearray would be
        request = Request(connection, parser.get_method(), path, query, self.headers, body)
        if self.is_rare:
            self._mark_rare(request)
        # By default HTTP/1.1 stays open and nothing else does: no need to ask for the version.
        if b"connection" in self.headers or not parser.should_keep_alive():
            self._judge_version(request)
        self.completed += 1
        self.last_headers = self.headers
        self.last_line = (request.method, path, query)
        self._begin_request()
        connection.request_read(request)

    def _rare_body(self) -> bytes:
        """Large ones count against the server's budget. Raises Refusal."""
        if self.charged_bytes or self.body_bytes > CHARGED_BODY_BYTES:
            self.charge_body()
        return self.body if isinstance(self.body, bytes) else self.body.getvalue()

    def _mark_rare(self, request: Request) -> None:
        if self.charged_bytes:
            request.charged_bytes = self.charged_bytes
            self.server.body_budget.leave(self.connection)
        if self.page_headers:
            answering = PageConnection(self.connection, self.page_headers)
            request.connection = cast("Connection", answering)

    def take_queued(self) -> int:
        taken, self.queued_bytes = self.queued_bytes, 0
        return taken

    def _judge_version(self, request: Request) -> None:
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refusal(505, "unknown_http_version", "this server speaks HTTP/1.1")
        request.chunked = version == "1.1"
        request.keep_alive = request.chunked and self.parser.should_keep_alive()

    def line_read(self) -> tuple[bytes, bytes]:
        """Method and URL of the request that is being read, as far as they are known."""
        return (self.parser.get_method(), self.url) if self.url else (b"", b"")

    def forget_body(self) -> None:
        """Nothing of this connection is read any more."""
        self.body = b""
        self.body_bytes = self.charged_bytes = 0

    # Large and slow bodies

    def await_rest(self) -> None:
        """All that came was read, and the request is not whole. Raises Refusal."""
        if self.body_bytes:
            self.charge_body()
            if not self.body_since:
                self._start_clock(0)

    def charge_body(self) -> None:
        """What has come of the body counts against the server's budget. Raises Refusal."""
        if self.parser.get_method() not in _WITH_BODY:
            self.body = b""
            return
        self.is_rare = True
        added = self.body_bytes - self.charged_bytes
        self.charged_bytes += added
        if not self.connection.charge(added):
            raise gave_way()

    def _start_clock(self, body_bytes: int) -> None:
        self.is_rare = True
        self.body_since = self.window_since = self.server.tick
        self.window_bytes = self.body_bytes_then = self.body_bytes_before = body_bytes

    @property
    def recent_bytes(self) -> int:
        """What came of the body in the last second or two."""
        return self.body_bytes - self.body_bytes_before if self.body_since else self.body_bytes

    def hold_clock(self, tick: int) -> None:
        """The client is not asked for more now, so its time does not run."""
        self.connection.reading_since = tick
        if self.body_bytes:
            self._start_clock(self.body_bytes)

    def check_clock(self, tick: int) -> None:
        """Once a second while a request is arriving. Raises Refusal when it takes too long."""
        limits = self.limits
        if not self.body_bytes:
            if tick - self.connection.reading_since > limits.request_seconds:
                raise Refusal(408, "request_timeout", "the request did not arrive in time")
            return
        self.body_bytes_before, self.body_bytes_then = self.body_bytes_then, self.body_bytes
        if tick - self.body_since > limits.body_seconds:
            raise too_slow(f"a body must arrive within {limits.body_seconds:g} seconds")
        wanted_bytes = limits.body_rate_bytes * limits.request_seconds
        if self.body_bytes - self.window_bytes >= wanted_bytes:
            self.window_bytes, self.window_since = self.body_bytes, tick
        elif tick - self.window_since > limits.request_seconds:
            raise too_slow(f"a body must bring {limits.body_rate_bytes} bytes in a second")


def _reason(error: httptools.HttpParserError) -> BaseException:
    """Why the parser stopped: what one of our own methods raised, or what it found itself."""
    if isinstance(error, httptools.HttpParserCallbackError):
        return error.__context__ or error
    return Refusal(400, "malformed_http", f"not a well-formed request: {error}")


def _absolute_form_path(url: bytes) -> bytes:
    """`http://host/path` as proxies send it; `*` stays what it is."""
    _, scheme, rest = url.partition(b"://")
    if not scheme:
        return url
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
