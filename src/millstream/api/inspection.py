"""Descriptors: `_index_status` and `_details` of a stream, and the two of the server.

A stream's descriptor has a weak ETag. A client that has it already may wait for another one
(`live=true`): it hears of everything that changes the descriptor, or that nothing did in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import msgspec

from millstream.access.gate import Grant, unauthorized
from millstream.api.arguments import Query, matches_etag
from millstream.api.compression import Compression
from millstream.api.errors import respond_error
from millstream.api.headers import JSON, NO_STORE
from millstream.api.long_poll import ended
from millstream.api.steps import Steps, take_steps
from millstream.engine.engine import Engine
from millstream.errors import InvalidRequest
from millstream.http.message import Request
from millstream.inspection.holdings import HoldingsCount
from millstream.inspection.index_report import IndexReports
from millstream.inspection.server_report import ServerReport
from millstream.inspection.stream_report import (
    Described,
    Facts,
    describe_details,
    describe_index_status,
)
from millstream.limits import INSPECTION_WAIT_SECONDS
from millstream.protocol.content_types import JSON_CONTENT_TYPE
from millstream.state.stream import Stream

Describe = Callable[[Facts], Described]


class StreamDescriptors:
    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        holdings: HoldingsCount,
        indexes: IndexReports,
        compression: Compression,
        *,
        has_log: bool,
    ) -> None:
        """`has_log`: what is in no segment lies in a log on disk, not in memory alone."""
        self.engine = engine
        self.loop = loop
        self.compression = compression
        self._holdings = holdings
        self._indexes = indexes
        self._has_log = has_log

    def index_status(self, request: Request, key: bytes) -> None:
        self._open(request, key, describe_index_status)

    def details(self, request: Request, key: bytes) -> None:
        self._open(request, key, describe_details)

    def _open(self, request: Request, key: bytes, describe: Describe) -> None:
        wait_seconds = _wait_seconds(Query(request.query))
        stream = self.engine.find(key, self.engine.clock.now_ms())  # to look at it renews nothing
        DescriptorPoll(self, request, stream, describe, wait_seconds).look()

    def gather(self, stream: Stream) -> Generator[None, None, Facts]:
        held = yield from self._holdings.steps(stream)
        catalog_bytes = self._holdings.catalog_bytes
        return Facts(stream, held, self._indexes.of(stream), self._has_log, catalog_bytes)


class DescriptorPoll:
    """One request for a descriptor. It looks, and looks again whenever the stream has changed,
    until there is something to answer or the time is up."""

    def __init__(
        self,
        descriptors: StreamDescriptors,
        request: Request,
        stream: Stream,
        describe: Describe,
        wait_seconds: float,
    ) -> None:
        self._descriptors = descriptors
        self._request = request
        self._grant: Grant | None = request.grant
        self._stream = stream
        self._describe = describe
        self._until = descriptors.loop.time() + wait_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        request.on_disconnect = self._leave

    def look(self) -> None:
        take_steps(self._descriptors.engine, self._request, self._steps())

    def _steps(self) -> Steps:
        facts = yield from self._descriptors.gather(self._stream)
        if self._is_over:
            return
        if self._stream.deleted:
            self._end()
            respond_error(self._request, ended(self._stream))
            return
        document, tag = self._describe(facts)
        left_seconds = self._until - self._descriptors.loop.time()
        if not matches_etag(self._request.headers, tag):
            self._end()
            body = msgspec.json.encode(document)
            headers = JSON + b"etag: W/" + tag + b"\r\n"
            self._descriptors.compression.respond(self._request, headers, body, JSON_CONTENT_TYPE)
        elif left_seconds > 0:
            self._wait(left_seconds)
        else:
            self._end()
            vary = self._descriptors.compression.vary
            self._request.respond(304, NO_STORE + vary + b"etag: W/" + tag + b"\r\n")

    def _end(self) -> None:
        """What follows is the answer."""
        self._is_over = True
        self._request.on_disconnect = self._request.on_half_close = None

    # Waiting

    def _wait(self, seconds: float) -> None:
        """From here until the next turn of the loop nothing can change unheard."""
        descriptors, grant = self._descriptors, self._grant
        if grant is not None:
            seconds = grant.seconds_within(seconds, descriptors.engine.clock.now_ms())
        self._timer = descriptors.loop.call_later(seconds, self.shut_down)
        self._request.on_half_close = self.shut_down
        descriptors.engine.observe(self._stream, self)
        if grant is not None:
            grant.join(self)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._request.on_half_close = None
            self._descriptors.engine.unobserve(self._stream, self)
            if self._grant is not None:
                self._grant.leave(self)

    def stream_changed(self) -> None:
        """The batch has more to wake: the look comes when it is through. Until then it waits on,
        so that it hears of a stop."""
        self._descriptors.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._timer is not None:
            self._stop_waiting()
            self.look()

    def shut_down(self) -> None:
        """The time is up, or the server stops, or the client may have left."""
        self._stop_waiting()
        self._until = 0.0
        self.look()

    def revoked(self) -> None:
        """The key that opened it is no more."""
        if not self._is_over:
            self._stop_waiting()
            self._end()
            respond_error(self._request, unauthorized())

    def _leave(self) -> None:
        self._is_over = True
        self._stop_waiting()


class ServerDescriptors:
    def __init__(self, report: ServerReport, compression: Compression) -> None:
        self._report = report
        self._compression = compression

    def details(self, request: Request) -> None:
        self._respond(request, self._report.details())

    def memory(self, request: Request) -> None:
        self._respond(request, self._report.memory())

    def _respond(self, request: Request, document: object) -> None:
        body = msgspec.json.encode(document)
        self._compression.respond(request, JSON, body, JSON_CONTENT_TYPE)


def _wait_seconds(query: Query) -> float:
    """0: the request does not want to wait."""
    live = query.one(b"live")
    if live is None:
        return 0.0
    if live not in (b"true", b"1", b"long-poll"):
        raise InvalidRequest("live must be true or long-poll here")
    return query.timeout_seconds(INSPECTION_WAIT_SECONDS)
