"""A disk that does not answer: appends end with a 408 and an unknown outcome, never with two
answers, and what becomes durable later is there once."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.raw import RawConnection
from tests.support.http import Client, Reply
from tests.support.server import ServerProcess
from tests.support.waiting import wait_until

APPEND_SECONDS = 0.6
HEAD = "Host: localhost\r\nContent-Type: text/plain\r\n"
UNKNOWN = "append timed out; append outcome is unknown, check Stream-Next-Offset before retrying"


class HangingServer(ServerProcess):
    def __init__(self, data_dir: Path, *flags: str) -> None:
        super().__init__(data_dir, *flags, module="tests.crash.hanging_server")
        self.hang_file = data_dir / "hang"

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        self.hang_file.touch()
        try:
            yield
        finally:
            self.hang_file.unlink(missing_ok=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HangingServer]:
    flags = ("--append-timeout", str(APPEND_SECONDS), "--answer-timeout", "1")
    server = HangingServer(tmp_path / "data", *flags)
    yield server
    try:
        server.hang_file.unlink(missing_ok=True)
        assert server.stop() == 0
        assert "Traceback" not in server.output.decode(errors="replace")
    finally:
        server.kill()


@pytest.fixture
def client(server: HangingServer) -> Iterator[Client]:
    with contextlib.closing(server.client()) as client:
        yield client


def post(path: str, body: str) -> str:
    return f"POST {path} HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n{body}"


def error_of(reply: Reply) -> tuple[int, str, str]:
    error = json.loads(reply.body)["error"]
    return reply.status, error["code"], error["message"]


def count_of(client: Client, route: str, status: int) -> int:
    text = client.get("/metrics").body.decode()
    wanted = rf'millstream_http_requests_total{{route="{route}",status="{status}"}} ([0-9.]+)'
    found = re.search(wanted, text)
    return int(float(found[1])) if found else 0


def wait_for_content(client: Client, path: str, content: bytes) -> None:
    wait_until(lambda: client.get(path).body == content)


def test_an_append_that_is_not_durable_in_time_is_answered_once_and_kept_once(
    server: HangingServer, client: Client
) -> None:
    client.put("/v1/stream/a", content_type="text/plain")
    connection = RawConnection(server.port, 10.0)
    with server.hanging():
        began = time.monotonic()
        connection.send(post("/v1/stream/a", "late"))
        reply = connection.answer()
        waited = time.monotonic() - began
        assert error_of(reply) == (408, "append_timeout", UNKNOWN)
        assert reply.headers["connection"] == "close"
        assert APPEND_SECONDS <= waited < APPEND_SECONDS + 2
        assert client.get("/v1/stream/a").body == b""  # not durable: not shown
    wait_for_content(client, "/v1/stream/a", b"late")
    assert connection.is_ended_by_server()  # and nothing behind the one answer
    connection.close()
    assert count_of(client, "append", 408) == 1
    assert count_of(client, "append", 204) == 0
    assert client.post("/v1/stream/a", "!", content_type="text/plain").status == 204
    assert client.get("/v1/stream/a").body == b"late!"


def test_requests_behind_one_that_timed_out_are_not_begun(
    server: HangingServer, client: Client
) -> None:
    client.put("/v1/stream/p", content_type="text/plain")
    connection = RawConnection(server.port, 10.0)
    connection.send(post("/v1/stream/p", "0"))
    assert connection.answer("POST").status == 204
    with server.hanging():
        connection.send("".join(post("/v1/stream/p", str(number)) for number in range(1, 60)))
        assert error_of(connection.answer())[:2] == (408, "append_timeout")
        assert connection.is_ended_by_server()
    connection.close()
    wait_for_content(client, "/v1/stream/p", b"01")
    client.post("/v1/stream/p", "end", content_type="text/plain")
    assert client.get("/v1/stream/p").body == b"01end"


def test_every_way_to_write_content_has_the_time_limit_and_others_have_theirs(
    server: HangingServer, client: Client
) -> None:
    client.put("/pool0")
    client.put("/pool0/s", content_type="text/plain")
    client.put("/pool0/gone", content_type="text/plain")
    large = "x" * 300_000
    late = {
        "content": f"PUT /v1/stream/new HTTP/1.1\r\n{HEAD}Content-Length: 3\r\n\r\nnew",
        "closure": f"PUT /v1/stream/shut HTTP/1.1\r\n{HEAD}Stream-Closed: true\r\n\r\n",
        "batch": f"POST /pool0/s/append-batch HTTP/1.1\r\n{HEAD}Content-Length: 5\r\n\r\n\0\0\0\1b",
        "large": post("/pool0/s", large),
        "empty": f"PUT /v1/stream/empty HTTP/1.1\r\n{HEAD}\r\n",
        "delete": f"DELETE /pool0/gone HTTP/1.1\r\n{HEAD}\r\n",
    }
    connections = {name: RawConnection(server.port, 15.0) for name in late}
    with server.hanging():
        for name, request in late.items():
            connections[name].send(request)
        assert client.get("/pool0/s").status == 200  # reads do not wait
        for name, connection in connections.items():
            is_append = name not in ("empty", "delete")
            code = "append_timeout" if is_append else "request_timeout"
            assert error_of(connection.answer())[:2] == (408, code), name
    wait_until(lambda: client.head("/pool0/gone").status == 404)
    assert client.get("/v1/stream/new").body == b"new"
    assert client.head("/v1/stream/shut").headers["stream-closed"] == "true"
    assert client.head("/v1/stream/empty").status == 200
    assert sorted(client.get("/pool0/s").body) == sorted(b"b" + large.encode())
    for connection in connections.values():
        assert connection.is_ended_by_server()
        connection.close()


def test_a_producer_learns_by_a_retry_what_became_of_its_append(
    server: HangingServer, client: Client
) -> None:
    client.put("/v1/stream/x", content_type="text/plain")
    headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}

    def send() -> Reply:
        return client.post("/v1/stream/x", "once", content_type="text/plain", headers=headers)

    with server.hanging():
        assert send().status == 408
    assert send().status == 204  # a duplicate: the first one is there
    assert client.get("/v1/stream/x").body == b"once"


def test_a_stream_that_was_created_late_still_ends_when_its_time_comes(
    server: HangingServer, client: Client
) -> None:
    with server.hanging():
        headers = {"Stream-TTL": "2"}
        created = client.put("/v1/stream/t", "x", content_type="text/plain", headers=headers)
        assert created.status == 408
    wait_until(lambda: client.head("/v1/stream/t").status == 200)
    wait_until(lambda: client.get("/v1/streams").json() == [], seconds=20)


def test_live_readers_wait_as_long_as_they_like(server: HangingServer, client: Client) -> None:
    client.put("/v1/stream/l", content_type="text/plain")
    offset = client.head("/v1/stream/l").next_offset
    poll = RawConnection(server.port, 10.0)
    poll.send(f"GET /v1/stream/l?live=long-poll&offset={offset}&timeout=4s HTTP/1.1\r\n{HEAD}\r\n")
    assert poll.answer().status == 204
    poll.close()


def test_a_read_that_the_cold_store_keeps_waiting_is_answered_and_its_own_answer_dropped(
    server: HangingServer, client: Client
) -> None:
    client.put("/v1/stream/cold", b"x" * 200_000, content_type="text/plain")
    assert client.post("/__millstream/flush").status == 200
    assert server.stop() == 0
    client.close()
    again = HangingServer(server.hang_file.parent, *server.flags)
    hang_store = again.hang_file.with_name("hang-store")
    try:
        hang_store.touch()
        began = time.monotonic()
        reader = RawConnection(again.port, 10.0)
        reader.send(f"GET /v1/stream/cold HTTP/1.1\r\n{HEAD}\r\n" * 3)
        assert error_of(reader.answer()) == (408, "request_timeout", "request timed out")
        assert 1.0 <= time.monotonic() - began < 5.0
        assert reader.is_ended_by_server()
        reader.close()
        hang_store.unlink()
        with contextlib.closing(again.client()) as client:
            assert client.get("/v1/stream/cold").body == b"x" * 200_000
            assert (count_of(client, "read", 408), count_of(client, "read", 200)) == (1, 1)
        assert again.stop() == 0
        assert "Traceback" not in again.output.decode(errors="replace")
    finally:
        hang_store.unlink(missing_ok=True)
        again.kill()


def test_content_beyond_what_may_wait_is_refused_at_once(tmp_path: Path) -> None:
    flags = ("--queue-bytes", "1000", "--append-timeout", "0", "--answer-timeout", "0")
    server = HangingServer(tmp_path / "data", *flags)
    try:
        with contextlib.closing(server.client()) as client:
            client.put("/v1/stream/q", content_type="text/plain")
            waiting = [RawConnection(server.port, 20.0) for _ in range(4)]
            with server.hanging():
                for connection in waiting[:2]:
                    connection.send(post("/v1/stream/q", "x" * 400))
                    time.sleep(0.1)
                waiting[2].send(post("/v1/stream/q", "y" * 400))
                reply = waiting[2].answer()
                assert error_of(reply)[:2] == (429, "queue_full")
                assert reply.headers["retry-after"] == "1"
                waiting[3].send(post("/v1/stream/q", "z" * 200))
                waiting[3].socket.settimeout(3.0)
                with pytest.raises(TimeoutError):
                    waiting[3].socket.recv(1, socket.MSG_PEEK)
                waiting[3].socket.settimeout(20.0)
            for connection in (*waiting[:2], waiting[3]):
                assert connection.answer("POST").status == 204
            assert client.get("/v1/stream/q").body == b"x" * 800 + b"z" * 200
            waiting[2].send(post("/v1/stream/q", "y"))  # refused, and good for the next request
            assert waiting[2].answer("POST").status == 204
            for connection in waiting:
                connection.close()
            assert server.stop() == 0
    finally:
        server.hang_file.unlink(missing_ok=True)
        server.kill()


def test_requests_beyond_as_many_as_may_wait_are_refused_at_once(tmp_path: Path) -> None:
    flags = ("--queue-requests", "2", "--append-timeout", "0", "--answer-timeout", "0")
    server = HangingServer(tmp_path / "data", *flags)
    try:
        with contextlib.closing(server.client()) as client:
            client.put("/v1/stream/q", content_type="application/json")
            waiting = [RawConnection(server.port, 20.0) for _ in range(3)]
            request = post("/v1/stream/q", "[1]").replace("text/plain", "application/json")
            with server.hanging():
                for connection in waiting:
                    connection.send(request)
                    time.sleep(0.1)
                assert error_of(waiting[2].answer())[:2] == (429, "queue_full")
            assert [each.answer("POST").status for each in waiting[:2]] == [204, 204]
            assert client.get("/v1/stream/q").json() == [1, 1]
            for connection in waiting:
                connection.close()
            assert server.stop() == 0
    finally:
        server.hang_file.unlink(missing_ok=True)
        server.kill()
