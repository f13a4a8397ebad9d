"""One reader that does not read must not cost the others anything, nor the server its memory."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import BINARY, Api
from tests.support.server import ServerProcess, running_server

MESSAGE_BYTES, MESSAGES, STALLED = 64 * 1024, 128, 30
STREAM_BYTES = MESSAGE_BYTES * MESSAGES
ROOM_BYTES = (
    120 * 1024 * 1024
)  # far below STALLED * STREAM_BYTES * 4/3, the price of buffering it all


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    flags = ("--subscriber-stall-timeout", "1", "--page-bytes", str(STREAM_BYTES))
    with running_server(None, *flags) as server:
        yield server


def memory_bytes(server: ServerProcess) -> int:
    """The most memory that the server's process ever used."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def stalled_reader(port: int, path: str, query: str = "?offset=-1&live=sse") -> socket.socket:
    """Asks for events and then never reads them."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(15)
    reader.connect(("127.0.0.1", port))
    reader.sendall(f"GET {path}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader


def wait_until_dropped(server: ServerProcess, connections_left: int) -> None:
    """The stalled readers cannot notice their end without reading, so the server is counted."""
    deadline = time.monotonic() + 10
    while open_connections(server.port) > connections_left:
        assert time.monotonic() < deadline, "stalled readers are still connected"
        time.sleep(0.05)


def open_connections(port: int) -> int:
    """Established TCP connections of the server, as the kernel lists them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def bytes_until_the_end(reader: socket.socket) -> int:
    """How much a stalled reader can still read; the server has to have ended the connection."""
    total = 0
    with contextlib.suppress(ConnectionError):
        while received := reader.recv(1 << 20):
            total += len(received)
    return total


def test_stalled_event_readers_are_dropped_and_the_others_get_everything(
    server: ServerProcess,
) -> None:
    with contextlib.closing(Api(server)) as api, contextlib.ExitStack() as stack:
        path = api.stream(content_type=BINARY)
        stalled = [stack.enter_context(stalled_reader(server.port, path)) for _ in range(STALLED)]
        fast = api.events(f"{path}?offset=-1&live=sse")
        fast.until_up_to_date()
        before, received = memory_bytes(server), 0
        for _ in range(MESSAGES):
            assert api.append(path, b"x" * MESSAGE_BYTES, BINARY).status == 204
            for event in fast.until_up_to_date():
                if event.kind == "data":
                    received += len(event.data.replace("\n", "")) * 3 // 4
        assert STREAM_BYTES <= received <= STREAM_BYTES + 2 * MESSAGES
        assert memory_bytes(server) - before < ROOM_BYTES
        wait_until_dropped(server, connections_left=2)
        assert bytes_until_the_end(stalled[0]) < STREAM_BYTES
        assert api.get("/healthz").status == 200


def test_a_download_that_is_not_read_is_dropped_too(server: ServerProcess) -> None:
    with contextlib.closing(Api(server)) as api, contextlib.ExitStack() as stack:
        path = api.stream(*[b"x" * MESSAGE_BYTES] * MESSAGES, content_type=BINARY)
        stalled = [
            stack.enter_context(stalled_reader(server.port, path, "?offset=-1"))
            for _ in range(STALLED)
        ]
        assert len(api.get(path).body) == STREAM_BYTES
        wait_until_dropped(server, connections_left=1)
        assert bytes_until_the_end(stalled[0]) < STREAM_BYTES
