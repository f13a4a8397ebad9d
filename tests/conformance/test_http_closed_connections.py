"""Nothing of a closed connection survives it, in whatever state it was closed.

With the collector switched off: what points back at a connection has to be taken apart, because a
server full of long-lived objects hardly ever runs a full collection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop

from millstream.assemble import running
from millstream.config import Config
from millstream.http.server import Server
from millstream.storage import Stop
from tests.conformance.api import BINARY, Api
from tests.support.server import ServerProcess, running_server

MIB = 1024 * 1024
KINDS = (  # by name: some are written in C
    *("Connection", "LoggedConnection", "CountedTransport", "RequestReader", "HttpRequestParser"),
    *("Request", "Refusal", "BodyStream", "LongPoll", "Subscriber", "Feed", "BodyWriter"),
    *("TCPTransport", "SSLProtocol", "_SSLProtocolTransport"),
)
HEAD = b"Host: localhost\r\nContent-Type: text/plain\r\n"
PUT = b"PUT /v1/stream/s HTTP/1.1\r\n" + HEAD
POST = b"POST /v1/stream/s HTTP/1.1\r\n" + HEAD
GET = b"GET /v1/stream/s%b HTTP/1.1\r\n" + HEAD
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
LONG_POLL = GET % b"?offset=now&live=long-poll" + b"\r\n"
EVENTS = GET % b"?offset=-1&live=sse" + b"\r\n"
PART = b"x" * 300_000

STATES = {
    "silent": b"",
    "idle": GET % b"" + b"\r\n",
    "in the request line": b"POST /v1/str",
    "in the headers": POST + b"X-Half: ",
    "in a body": POST + b"Content-Length: 9000000\r\n\r\n" + PART,
    "in a short body": POST + b"Content-Length: 10\r\n\r\nhalf",
    "in a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n" + PART,
    "in the trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Half:",
    "in a body of a read": GET % b"" + b"Content-Length: 9000000\r\n\r\n" + PART,
    "waiting for a body": POST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "answered": POST + b"Content-Length: 300000\r\n\r\n" + PART,
    "waiting": LONG_POLL,
    "waiting with a body": LONG_POLL[:-2] + b"Content-Length: 300000\r\n\r\n" + PART,
    "pipelined": LONG_POLL + (POST + b"Content-Length: 3\r\n\r\none") * 50,
    "pipelined bodies": LONG_POLL + (POST + b"Content-Length: 300000\r\n\r\n" + PART) * 3,
    "in a pipelined body": LONG_POLL + POST + b"Content-Length: 9000000\r\n\r\n" + PART * 3,
    "refused": b"nonsense\r\n\r\n",
    "refused in a body": POST + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n" + PART + b"\r\nzz",
    "refused for its size": POST + b"Content-Length: 900000000\r\n\r\n",
    "refused behind a wait": LONG_POLL + b"nonsense\r\n\r\n",
    "upgraded": (POST + UPGRADE + b"Content-Length: 3\r\n\r\none") * 50,
    "upgraded, in a body": POST + UPGRADE + b"Content-Length: 9000000\r\n\r\n" + PART,
    "events": EVENTS,
    "events with a body": EVENTS[:-2] + b"Content-Length: 300000\r\n\r\n" + PART,
    "events with more behind": EVENTS + (POST + b"Content-Length: 3\r\n\r\none") * 50,
}


class Watched:
    """A whole server in this process, and what is alive of its connections."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("://")[2].rpartition(":")
        self.address = (host, int(port))
        self.server = next(each for each in gc.get_objects() if isinstance(each, Server))

    async def turn_until(self, is_so: Callable[[], bool], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.002)

    async def end(self, client: socket.socket, *, rudely: bool) -> None:
        if rudely:
            plain = struct.pack("ii", 1, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, plain)
        await asyncio.to_thread(client.close)
        await self.turn_until(lambda: not self.server.connections)
        for _ in range(5):
            await asyncio.sleep(0.001)


def alive() -> Counter[str]:
    found = (type(each).__name__ for each in gc.get_objects())
    return Counter(name for name in found if name in KINDS)


@contextlib.asynccontextmanager
async def watched(tmp_path: Path, **settings: Any) -> AsyncIterator[Watched]:
    # Where a client sent too far ahead nothing is read, and its end is seen when something is
    # written: soon.
    settings |= {"long_poll_timeout": 0.5, "sse_heartbeat": 0.2, "pipeline": "off"}
    config = Config(listen="127.0.0.1:0", data_dir=tmp_path, **settings)
    with structlog.testing.capture_logs() as logs:
        async with running(config, Stop()) as url:
            yield Watched(url)
    assert not [line for line in logs if line["log_level"] == "error"]


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


async def close_in_every_state(watched: Watched, connect: Callable[[], socket.socket]) -> None:
    creator = await asyncio.to_thread(connect)
    await asyncio.to_thread(creator.sendall, PUT + b"Content-Length: 3\r\n\r\none")
    await asyncio.to_thread(creator.recv, 1000)
    await watched.end(creator, rudely=False)
    gc.freeze()  # what is there now is not looked at again and again
    before = alive()
    for state, sent in STATES.items():
        for rudely in (False, True):
            client = await asyncio.to_thread(connect)
            await watched.turn_until(lambda: len(watched.server.connections) == 1)
            await asyncio.to_thread(send_all_it_takes, client, sent)
            await asyncio.sleep(0.02)
            assert alive() != before
            await watched.end(client, rudely=rudely)
            with contextlib.suppress(TimeoutError):  # what it appended may still be on its way
                await watched.turn_until(lambda: alive() == before, seconds=3)
            assert alive() == before, (state, rudely, alive() - before)
            assert watched.server.body_budget.held_bytes == 0, (state, rudely)
            del client


def send_all_it_takes(client: socket.socket, data: bytes) -> None:
    """A server that waits for its turn reads no further."""
    client.settimeout(0.2)
    with contextlib.suppress(TimeoutError, ConnectionError, ssl.SSLError):
        client.sendall(data)


@pytest.mark.usefixtures("_no_collector")
def test_a_closed_connection_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched(tmp_path) as server:
            await close_in_every_state(server, lambda: socket.create_connection(server.address))

    uvloop.run(run())


@pytest.mark.usefixtures("_no_collector")
def test_a_closed_connection_with_tls_and_an_access_log_leaves_nothing(
    tmp_path: Path, certificate: tuple[Path, Path], trusting: ssl.SSLContext
) -> None:
    async def run() -> None:
        cert, key = certificate
        async with watched(tmp_path, tls_cert=cert, tls_key=key, access_log=True) as server:

            def connect() -> socket.socket:
                plain = socket.create_connection(server.address)
                return trusting.wrap_socket(plain, server_hostname="localhost")

            await close_in_every_state(server, connect)

    uvloop.run(run())


def resident_bytes(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_aborted_uploads_give_their_memory_back() -> None:
    with running_server() as server, contextlib.closing(Api(server)) as api:
        path = api.stream(content_type=BINARY)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BINARY}\r\n"
        head += f"Content-Length: {64 * MIB}\r\n\r\n"
        before = resident_bytes(server)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head.encode() + bytes(24 * MIB))
        assert api.get(path).body == b""
        assert resident_bytes(server) - before < 80 * MIB  # of 480
