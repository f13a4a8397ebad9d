"""Many long-polls at the tail of one stream, woken by one append: when has the last its answer?"""

import select
import socket
import time
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.measure import percentile
from bench.plan import Plan
from bench.servers import Server
from bench.wire import (
    BINARY,
    Connection,
    connect,
    create_streams,
    encode_append,
    encode_request,
    stream_path,
)

STREAM = "long-poll"
SETTLE_SECONDS = 0.3
"""No server says that a long-poll is waiting; after this pause on an idle machine it is."""
ANSWER_SECONDS_MAX = 15
MESSAGE_BYTES = 100
BUFFER_BYTES = 64 * 1024


@dataclass(frozen=True)
class LongPollCase:
    waiters: int
    rounds: int

    workload: ClassVar[str] = "long_poll"

    @property
    def label(self) -> str:
        return label(self.waiters)

    def measure(self, server: Server) -> Figures:
        count = server.shorter(self.rounds)
        create_streams(server.port, [STREAM], BINARY)
        waiters = Waiters(server.port, self.waiters)
        try:
            with Connection(server.port) as writer:
                rounds = [_wake_all(writer, waiters, number) for number in range(count)]
        finally:
            waiters.close()
        latencies_ms = sorted(latency for answers in rounds for latency in answers)
        return {
            "last_ms": median(max(answers) for answers in rounds),
            "p50_ms": percentile(latencies_ms, 50),
            "p99_ms": percentile(latencies_ms, 99),
            "answers_missing": self.waiters * count - len(latencies_ms),
        }


def _wake_all(writer: Connection, waiters: "Waiters", number: int) -> list[float]:
    """One round: everybody waits, one append, the latencies of the answers in milliseconds."""
    head = writer.expect_ok(encode_request("GET", f"{stream_path(STREAM)}?offset=now"))
    waiters.ask(head.next_offset)
    time.sleep(SETTLE_SECONDS)
    message = b"round-%04d" % number
    body = message + b"." * (MESSAGE_BYTES - len(message))
    # The waiters' answers first: they are what is timed, and the append's own may wait.
    sent_at = time.monotonic()
    writer.send(encode_append(STREAM, BINARY, body))
    answered_at = waiters.collect(message)
    if not writer.receive().ok:
        raise BenchError("the append that should wake everybody was refused")
    return [(moment - sent_at) * 1000 for moment in answered_at]


class Waiters:
    """Connections that all ask the same question and wait."""

    def __init__(self, port: int, count: int) -> None:
        self._poll = select.epoll()
        self._buffer = bytearray(BUFFER_BYTES)
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(count):
            sock = connect(port)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._poll.close()

    def ask(self, offset: str) -> None:
        path = f"{stream_path(STREAM)}?offset={offset}&live=long-poll"
        request = encode_request("GET", path)
        for sock in self._sockets.values():
            sock.sendall(request)

    def collect(self, message: bytes) -> list[float]:
        """The moment each connection had `message`; those too late for it are left out."""
        answered_at: list[float] = []
        unanswered = dict.fromkeys(self._sockets, b"")
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while unanswered and time.monotonic() < deadline:
            for descriptor, _ in self._poll.poll(1.0):
                if self._has_answer(descriptor, message, unanswered):
                    answered_at.append(time.monotonic())
        if not answered_at:
            raise BenchError("not one long-poll was answered")
        return answered_at

    def _has_answer(self, descriptor: int, message: bytes, unanswered: dict[int, bytes]) -> bool:
        received = self._sockets[descriptor].recv_into(self._buffer)
        if not received:
            raise BenchError("the server closed a connection that was waiting")
        if descriptor not in unanswered:
            # What ends a chunked answer may come after the message.
            return False
        unanswered[descriptor] += self._buffer[:received]
        if message not in unanswered[descriptor]:
            return False
        del unanswered[descriptor]
        return True


def label(waiters: int) -> str:
    return f"{waiters} waiting long-polls"


def cases(plan: Plan) -> list[LongPollCase]:
    return [LongPollCase(50, 2)] if plan.smoke else [LongPollCase(1000, 10)]
