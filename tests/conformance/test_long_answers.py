"""A read goes to the tail in one answer, however long, and holds no more of it than it must."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api, token
from tests.conformance.conftest import speak_to
from tests.support.server import ServerProcess, running_server
from tests.support.waiting import wait_until

MIB = 2**20
MESSAGE_BYTES = 64 * 1024
PAGE = 4 * MIB


def messages(count: int, size: int = MESSAGE_BYTES) -> list[bytes]:
    """Each unlike the others, so that none can be lost, doubled or moved unseen."""
    return [(b"%08d" % number) * (size // 8) for number in range(count)]


class SlowReader:
    """A client with a tiny receive buffer that reads only when told to."""

    def __init__(self, port: int, path: str, head: str = "", version: str = "1.1") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{head}\r\n".encode())
        self.received = b""
        while b"\r\n\r\n" not in self.received:
            self.received += self._receive(1024)
        self.head, _, self.received = self.received.partition(b"\r\n\r\n")

    def _receive(self, size: int) -> bytes:
        received = self.socket.recv(size)
        if not received:
            raise ConnectionError("the connection ended")
        return received

    @property
    def length(self) -> int:
        found = re.search(rb"content-length: (\d+)", self.head)
        assert found is not None, self.head
        return int(found[1])

    def read_rest(self) -> bytes:
        """The whole body. Raises ConnectionError when it ends early."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        parts, left = [self.received], self.length - len(self.received)
        while left:
            parts.append(self._receive(min(left, MIB)))
            left -= len(parts[-1])
        return b"".join(parts)

    def __enter__(self) -> SlowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def forgetful_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Keeps 4 MiB in memory; the rest is in the cold store a moment later."""
    flags = ("--hot-bytes", "4MiB", "--flush-bytes", "1MiB", "--cold-cache-bytes", "4MiB")
    with running_server(tmp_path_factory.mktemp("data"), *flags) as server:
        yield from speak_to(server)


@pytest.mark.parametrize("content_type", [BINARY, JSON])
def test_one_answer_goes_to_the_tail(api: Api, content_type: str) -> None:
    sent = messages(3 * PAGE // MESSAGE_BYTES)
    if content_type == JSON:
        sent = [b'"' + message + b'"' for message in sent]
    path = api.stream(*sent, content_type=content_type)
    whole = b"[" + b",".join(sent) + b"]" if content_type == JSON else b"".join(sent)
    read = api.get(path)
    assert (read.status, len(read.body)) == (200, len(whole))
    assert read.body == whole
    assert read.headers["content-length"] == str(len(whole))
    assert read.headers["stream-up-to-date"] == "true"
    assert read.next_offset == read.headers["stream-end-offset"] == api.tail(path)
    assert read.headers["etag"] == api.head(path).headers["etag"]
    again = api.get(path, headers={"If-None-Match": read.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    first = api.get(f"{path}?max_bytes=100000")
    rest = api.get(f"{path}?offset={first.next_offset}")
    if content_type == BINARY:
        assert first.body + rest.body == whole
    else:
        assert first.json() + rest.json() == read.json()
    assert rest.next_offset == read.next_offset


def test_max_bytes_still_asks_for_pages(memory_api: Api) -> None:
    path = memory_api.stream(*messages(80), content_type=BINARY)
    page = memory_api.get(f"{path}?max_bytes={MIB}")
    assert len(page.body) == MIB
    assert "stream-up-to-date" not in page.headers
    largest = memory_api.get(f"{path}?max_bytes={2**50}")
    assert len(largest.body) == PAGE
    assert "stream-up-to-date" not in largest.headers


def test_live_answers_come_in_pages(memory_api: Api) -> None:
    path = memory_api.stream(*messages(80), content_type=TEXT)
    polled = memory_api.get(f"{path}?offset=-1&live=long-poll")
    assert len(polled.body) == PAGE
    assert "stream-up-to-date" not in polled.headers
    events = memory_api.events(f"{path}?offset=-1&live=sse").until_up_to_date()
    sizes = [len(event.data) for event in events if event.kind == "data"]
    assert sum(sizes) == 80 * MESSAGE_BYTES
    assert max(sizes) <= PAGE


def test_what_is_appended_meanwhile_is_not_in_the_answer(api: Api) -> None:
    sent = messages(100)
    path = api.stream(*sent, content_type=BINARY)
    tail = api.tail(path)
    with SlowReader(api.server.port, path) as reader:
        assert api.append(path, b"later", BINARY).status == 204
        assert reader.read_rest() == b"".join(sent)
        assert f"stream-next-offset: {tail}".encode() in reader.head
        reader.socket.sendall(
            f"GET {path}?offset={tail} HTTP/1.1\r\nHost: localhost\r\n".encode()
            + b"Connection: close\r\n\r\n"
        )
        reply = http.client.HTTPResponse(reader.socket)
        reply.begin()
        assert reply.read() == b"later"  # on the same connection


def test_an_old_client_gets_it_all_and_then_the_end(api: Api) -> None:
    sent = messages(100)
    path = api.stream(*sent, content_type=BINARY)
    with SlowReader(api.server.port, path, version="1.0") as reader:
        assert reader.read_rest() == b"".join(sent)
        assert b"connection: close" in reader.head
        assert reader.socket.recv(1) == b""


def test_a_client_that_has_said_all_it_wants_still_gets_its_answer(api: Api) -> None:
    sent = messages(100)
    path = api.stream(*sent, content_type=BINARY)
    with SlowReader(api.server.port, path) as reader:
        reader.socket.shutdown(socket.SHUT_WR)
        assert reader.read_rest() == b"".join(sent)
        assert reader.socket.recv(1) == b""


def test_requests_behind_a_long_answer_wait_their_turn(memory_api: Api) -> None:
    sent = messages(100)
    path = memory_api.stream(*sent, content_type=BINARY)
    with socket.create_connection(("127.0.0.1", memory_api.server.port), timeout=20) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 3)
        received = client.makefile("rb")
        for _ in range(3):
            head = b"".join(iter(received.readline, b"\r\n"))
            assert head.startswith(b"HTTP/1.1 200 ")
            assert received.read(100 * MESSAGE_BYTES) == b"".join(sent)


def test_a_fork_is_read_to_its_tail(api: Api) -> None:
    sent = messages(100)
    source = api.stream(*sent, content_type=BINARY)
    fork, created = api.fork(source, offset=token(90, 90 * MESSAGE_BYTES))
    assert created.status == 201
    assert api.append(fork, b"own", BINARY).status == 204
    assert api.append(source, b"not the fork's", BINARY).status == 204
    assert api.get(fork).body == b"".join(sent[:90]) + b"own"


@pytest.mark.parametrize("how", ["delete", "trim"])
def test_a_stream_that_goes_away_ends_its_readers_visibly(api: Api, how: str) -> None:
    path = api.bucketed(*messages(200), content_type=BINARY)
    with SlowReader(api.server.port, path) as reader:
        if how == "delete":
            assert api.delete(path).status == 204
        else:
            assert api.publish(path, api.tail(path)).status == 204
        with pytest.raises(ConnectionError):
            reader.read_rest()
    assert api.get("/healthz").status == 200


def test_what_goes_cold_under_a_slow_reader_still_arrives(forgetful_api: Api) -> None:
    api, sent = forgetful_api, messages(160)
    path = api.stream(*sent[:60], content_type=BINARY)
    with contextlib.ExitStack() as stack:
        port = api.server.port
        early = [stack.enter_context(SlowReader(port, path)) for _ in range(5)]
        for message in sent[60:]:
            assert api.append(path, message, BINARY).status == 204
        late = [stack.enter_context(SlowReader(port, path)) for _ in range(5)]
        other = api.stream(*messages(160), content_type=BINARY)
        for reader in early:
            assert reader.read_rest() == b"".join(sent[:60])
        for reader in late:
            assert reader.read_rest() == b"".join(sent)
        assert len(api.get(other).body) == 160 * MESSAGE_BYTES


def memory_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("is_cold", [False, True])
def test_many_slow_readers_cost_little_memory(tmp_path: Path, is_cold: bool) -> None:
    """Each of them at another place of a stream that is far larger than they may hold."""
    readers, sent = 80, messages(1024)
    flags = ("--hot-bytes", "8MiB", "--cold-cache-bytes", "4MiB") if is_cold else ()
    with running_server(tmp_path if is_cold else None, *flags) as server:
        api = Api(server)
        path = api.stream(*sent, content_type=BINARY)
        before = memory_bytes(server)
        with contextlib.ExitStack() as stack:
            for number in range(readers):
                place = token(number * 10, number * 10 * MESSAGE_BYTES)
                reader = SlowReader(server.port, f"{path}?offset={place}")
                stack.enter_context(reader)
            api.settle()
            grown = memory_bytes(server) - before
            # To hold what is left for each would be 3 GiB, 4 MiB for each 320 MiB.
            assert grown < 220 * MIB, grown // MIB
            # The server goes on with others meanwhile, and these get all they asked for.
            assert api.append(path, b"x", BINARY).status == 204
            assert reader.read_rest() == b"".join(sent[(readers - 1) * 10 :])
        api.close()


def test_a_reader_that_leaves_is_let_go_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, "--hot-bytes", "8MiB") as server:
        api = Api(server)
        path = api.stream(*messages(512), content_type=BINARY)
        for _ in range(10):
            with contextlib.ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(SlowReader(server.port, path))
        wait_until(lambda: "millstream_http_connections 1.0" in api.get("/metrics").body.decode())
        assert len(api.get(path).body) == 512 * MESSAGE_BYTES
        api.close()


def test_a_long_answer_does_not_hold_up_others(memory_api: Api) -> None:
    """While fast readers take a long stream again and again, small requests are answered."""
    path = memory_api.stream(*messages(1024), content_type=BINARY)
    small = memory_api.stream(b"small")
    stop = threading.Event()

    def read_again_and_again() -> None:
        client = http.client.HTTPConnection("127.0.0.1", memory_api.server.port)
        while not stop.is_set():
            client.request("GET", path)
            response = client.getresponse()
            while response.read(MIB):
                pass
        client.close()

    thread = threading.Thread(target=read_again_and_again)
    thread.start()
    try:
        took = []
        for _ in range(200):
            began = time.monotonic()
            assert memory_api.get(small).body == b"small"
            took.append(time.monotonic() - began)
    finally:
        stop.set()
        thread.join()
    assert sorted(took)[len(took) // 2] < 0.25
