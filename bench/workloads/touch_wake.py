"""How long after an append a `touch/wait` is answered: one waiter, and very many on one stream.

The change is waited for by one of them, as with queries of many users of which few are touched, or
by all of them at once.
"""

import json
import select
import socket
import time
from dataclasses import dataclass
from typing import ClassVar

import xxhash

from bench.errors import BenchError
from bench.figures import Figures
from bench.measure import percentile
from bench.plan import Plan
from bench.servers import Server
from bench.wire import JSON, Connection, connect, encode_append, encode_request, stream_path

STREAM = "touched"
ENTITY = "public.todos"
PROFILE = {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}
CHANGE = json.dumps(
    {"type": ENTITY, "key": "1", "value": {"a": 1}, "headers": {"operation": "insert"}}
).encode()
WAKE_SECONDS_MAX = 10
PAUSE_SECONDS = 0.15  # longer than any coalescing, so that each append is a wake of its own
ASKED_PER_SECOND = 2000  # waits that the server takes up, at the least


@dataclass(frozen=True)
class TouchWakeCase:
    waiters: int
    woken: int  # by each append
    rounds: int

    workload: ClassVar[str] = "touch_wake"
    ours_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.waiters, self.woken)

    def measure(self, server: Server) -> Figures:
        path = stream_path(STREAM)
        waits = [_wait(ENTITY), _wait("public.others")]
        took = list[float]()
        with Connection(server.port) as writer:
            writer.expect_ok(encode_request("PUT", path, JSON))
            profile = json.dumps(PROFILE).encode()
            writer.expect_ok(encode_request("POST", f"{path}/_profile", JSON, profile))
            with _Waiters(server.port, self.waiters) as waiters:
                waiters.ask(waits[1], self.waiters - self.woken)
                time.sleep(self.waiters / ASKED_PER_SECOND)  # all of them wait from here on
                for number in range(self.rounds + 1):  # the first one warms up
                    waiters.ask(waits[0], self.woken)
                    time.sleep(PAUSE_SECONDS + self.woken / ASKED_PER_SECOND)
                    began = time.monotonic()
                    writer.expect_ok(encode_append(STREAM, JSON, CHANGE))
                    took += waiters.hear(began) if number else waiters.hear(began)[:0]
        took.sort()
        return {"p50_ms": percentile(took, 50), "p99_ms": percentile(took, 99)}


def _wait(entity: str) -> bytes:
    table_key = xxhash.xxh3_64_hexdigest(b"tbl\0" + entity.encode())
    body = json.dumps({"cursor": "now", "keys": [table_key], "timeoutMs": 120_000}).encode()
    return encode_request("POST", f"{stream_path(STREAM)}/touch/wait", JSON, body)


class _Waiters:
    def __init__(self, port: int, count: int) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        for _ in range(count):
            sock = connect(port)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)
        self._idle = list(self._sockets)
        self._asked: set[int] = set()

    def __enter__(self) -> "_Waiters":
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._poll.close()

    def ask(self, request: bytes, count: int) -> None:
        """On so many connections on which nothing is asked for yet."""
        asked = [self._idle.pop() for _ in range(count)]
        for descriptor in asked:
            self._sockets[descriptor].sendall(request)
        self._asked = set(asked)

    def hear(self, began: float) -> list[float]:
        """Milliseconds until each of those that were asked last was answered."""
        took = list[float]()
        waiting = set(self._asked)
        while waiting:
            ready = self._poll.poll(WAKE_SECONDS_MAX)
            if not ready:
                raise BenchError(f"{len(waiting)} waiters were not woken")
            for descriptor, _ in ready:
                answer = self._sockets[descriptor].recv(65536)
                if not answer.startswith(b"HTTP/1.1 200") or b'"touched":true' not in answer:
                    raise BenchError(f"a waiter got {answer[:300]!r}")
                waiting.remove(descriptor)
                self._idle.append(descriptor)
                took.append((time.monotonic() - began) * 1000)
        return took


def label(waiters: int, woken: int) -> str:
    return f"{waiters} waiters, {woken} woken"


def cases(plan: Plan) -> list[TouchWakeCase]:
    if plan.smoke:
        return [TouchWakeCase(waiters=20, woken=10, rounds=2)]
    return [
        TouchWakeCase(waiters=1, woken=1, rounds=120),
        TouchWakeCase(waiters=10_000, woken=1, rounds=120),
        TouchWakeCase(waiters=10_000, woken=10_000, rounds=3),
    ]
