"""Uploads that hardly come must not take anything away from those that do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.conformance.api import BINARY, Api
from tests.conformance.raw import RawConnection
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

MIB = 1024 * 1024
BUDGET_BYTES, DRIPPING = 8 * MIB, 9


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with running_server(None, "--max-inflight-body-bytes", str(BUDGET_BYTES)) as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerProcess]:
    flags = ("--request-timeout", "2", "--min-body-rate", "4KiB", "--body-timeout", "6")
    with running_server(None, *flags) as server:
        yield server


@pytest.fixture(autouse=True)
def _all_are_closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


OPENED = list[RawConnection]()


class Uploader:
    """Sends a body as it pleases."""

    def __init__(self, port: int, path: str, body_bytes: int) -> None:
        self.connection = RawConnection(port, timeout_seconds=60)
        OPENED.append(self.connection)
        self.connection.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BINARY}\r\n"
            f"Content-Length: {body_bytes}\r\n\r\n"
        )

    def send(self, body_bytes: int) -> None:
        self.connection.send(bytes(body_bytes))

    def answer(self) -> Reply:
        return self.connection.answer("POST")


@contextlib.contextmanager
def dripping(uploaders: list[Uploader], seconds: float) -> Iterator[None]:
    """One byte now and then, from each of them."""
    done = threading.Event()

    def drip() -> None:
        while not done.wait(seconds):
            for uploader in uploaders:
                with contextlib.suppress(OSError):
                    uploader.send(1)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_dripping_uploads_do_not_stop_a_good_one(server: ServerProcess) -> None:
    with contextlib.closing(Api(server)) as api:
        path = api.stream(content_type=BINARY)
        share = BUDGET_BYTES // DRIPPING - 1
        slow = [Uploader(server.port, path, share + 1000) for _ in range(DRIPPING)]
        for uploader in slow:
            uploader.send(share)
        with dripping(slow, seconds=0.5):
            time.sleep(3)  # now everybody can see how slow they are
            good = Uploader(server.port, path, 4 * MIB)
            for _ in range(16):
                good.send(MIB // 4)
                time.sleep(0.05)
            assert good.answer().status == 204
        assert len(api.get(f"{path}?offset=-1").body) == 4 * MIB
        refused = [answer for uploader in slow if (answer := first_word(uploader))]
        assert refused
        assert all(answer.status == 503 for answer in refused)
        assert all(answer.headers["retry-after"] for answer in refused)


def first_word(uploader: Uploader) -> Reply | None:
    uploader.connection.socket.settimeout(0.01)
    try:
        return uploader.answer()
    except OSError:
        return None


def test_promises_take_nothing_from_the_budget(server: ServerProcess) -> None:
    with contextlib.closing(Api(server)) as api:
        path = api.stream(content_type=BINARY)
        promised = [Uploader(server.port, path, 60 * MIB) for _ in range(50)]
        assert api.append(path, bytes(BUDGET_BYTES // 2), BINARY).status == 204
        assert not any(first_word(uploader) for uploader in promised)


def test_bodies_of_reads_are_thrown_away(server: ServerProcess) -> None:
    """A read may wait for a minute, and nobody ever looks at its body."""
    with contextlib.closing(Api(server)) as api:
        path = api.stream(content_type=BINARY)
        readers = []
        for _ in range(DRIPPING):
            readers.append(RawConnection(server.port))
            readers[-1].send(
                f"GET {path}?offset=now&live=long-poll&timeout_ms=20000 HTTP/1.1\r\n"
                "Host: localhost\r\n"
                f"Content-Length: {MIB}\r\n\r\n".encode()
                + bytes(MIB)
            )
        time.sleep(0.5)
        assert api.append(path, bytes(BUDGET_BYTES // 2), BINARY).status == 204
        for reader in readers:
            assert len(reader.answer().body) == BUDGET_BYTES // 2
            reader.close()


def test_many_that_are_half_way_at_once_all_come_through_in_the_end(server: ServerProcess) -> None:
    """Twice the budget at once: some are told to come again, nobody waits for ever."""
    size, statuses, start = MIB, list[int](), threading.Barrier(16)

    def upload(path: str) -> None:
        start.wait()
        for _ in range(100):
            status = upload_steadily(server.port, path, size)
            statuses.append(status)
            if status == 204:
                return
            time.sleep(0.2)

    with contextlib.closing(Api(server)) as api:
        path = api.stream(content_type=BINARY)
        threads = [threading.Thread(target=upload, args=(path,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses.count(204) == 16
        assert set(statuses) <= {204, 503}
        assert api.get("/metrics").status == 200


def upload_steadily(port: int, path: str, size: int) -> int:
    uploader = Uploader(port, path, size)
    try:
        for _ in range(16):
            uploader.send(size // 16)
            time.sleep(0.02)
    except OSError:
        pass  # it was told to stop
    try:
        return uploader.answer().status
    except OSError:
        return 503  # the answer was overtaken by the reset of what was still on its way


def seconds_until_refused(uploader: Uploader, bytes_each: int, pause_seconds: float) -> float:
    """Sends on until there is an answer, which must be a 408."""
    started = time.monotonic()
    uploader.connection.socket.setblocking(False)
    while True:
        time.sleep(pause_seconds)
        with contextlib.suppress(BlockingIOError):
            uploader.connection.socket.send(bytes(bytes_each))
        with contextlib.suppress(BlockingIOError):
            assert uploader.connection.socket.recv(4096, socket.MSG_PEEK).startswith(
                b"HTTP/1.1 408"
            )
            return time.monotonic() - started
        assert time.monotonic() - started < 60


def test_a_dripping_body_is_ended(impatient: ServerProcess) -> None:
    with contextlib.closing(Api(impatient)) as api:
        path = api.stream(content_type=BINARY)
        uploader = Uploader(impatient.port, path, 10 * MIB)
        assert 1 < seconds_until_refused(uploader, 1, 0.1) < 20


def test_a_good_start_does_not_pay_for_dripping_later(impatient: ServerProcess) -> None:
    with contextlib.closing(Api(impatient)) as api:
        path = api.stream(content_type=BINARY)
        uploader = Uploader(impatient.port, path, 10 * MIB)
        uploader.send(9 * MIB)
        assert 1 < seconds_until_refused(uploader, 1, 0.1) < 20


def test_a_body_has_a_deadline_however_steadily_it_comes(impatient: ServerProcess) -> None:
    with contextlib.closing(Api(impatient)) as api:
        path = api.stream(content_type=BINARY)
        uploader = Uploader(impatient.port, path, 60 * MIB)
        assert 5 < seconds_until_refused(uploader, 20_000, 0.2) < 30


def test_a_slow_body_above_the_rate_is_taken(impatient: ServerProcess) -> None:
    with contextlib.closing(Api(impatient)) as api:
        path = api.stream(content_type=BINARY)
        uploader = Uploader(impatient.port, path, 200_000)
        for _ in range(20):
            uploader.send(10_000)
            time.sleep(0.2)
        assert uploader.answer().status == 204


def test_the_time_of_a_body_does_not_run_while_its_turn_has_not_come(
    impatient: ServerProcess,
) -> None:
    with contextlib.closing(Api(impatient)) as api:
        path = api.stream(content_type=BINARY)
        connection = RawConnection(impatient.port, timeout_seconds=30)
        connection.send(
            f"GET {path}?offset=now&live=long-poll&timeout_ms=5000 HTTP/1.1\r\n"
            "Host: localhost\r\n\r\n"
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BINARY}\r\n"
            "Content-Length: 10\r\n\r\nhalf"
        )
        assert connection.answer().status == 204
        connection.send("others")
        assert connection.answer("POST").status == 204
        connection.close()
