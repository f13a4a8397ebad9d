"""How long after an append a `touch/wait` is answered: one waiter, and very many on one stream.

Each waiter waits for the table's key, so that every append wakes all of them.
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
PAUSE_SECONDS = 0.3  # longer than any coalescing, so that each append is a wake of its own


@dataclass(frozen=True)
class TouchWakeCase:
    waiters: int
    rounds: int

    workload: ClassVar[str] = "touch_wake"
    ours_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.waiters)

    def measure(self, server: Server) -> Figures:
        path = stream_path(STREAM)
        table_key = xxhash.xxh3_64_hexdigest(b"tbl\0" + ENTITY.encode())
        body = json.dumps({"cursor": "now", "keys": [table_key], "timeoutMs": 60_000}).encode()
        wait = encode_request("POST", f"{path}/touch/wait", JSON, body)
        took = list[float]()
        with Connection(server.port) as writer:
            writer.expect_ok(encode_request("PUT", path, JSON))
            profile = json.dumps(PROFILE).encode()
            writer.expect_ok(encode_request("POST", f"{path}/_profile", JSON, profile))
            with _Waiters(server.port, self.waiters) as waiters:
                for _ in range(self.rounds):
                    waiters.ask(wait)
                    time.sleep(PAUSE_SECONDS + self.waiters / 10_000)
                    began = time.monotonic()
                    writer.expect_ok(encode_append(STREAM, JSON, CHANGE))
                    took += waiters.hear(began)
        took.sort()
        return {"p50_ms": percentile(took, 50), "p99_ms": percentile(took, 99)}


class _Waiters:
    def __init__(self, port: int, count: int) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        for _ in range(count):
            sock = connect(port)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def __enter__(self) -> "_Waiters":
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._poll.close()

    def ask(self, request: bytes) -> None:
        for sock in self._sockets.values():
            sock.sendall(request)

    def hear(self, began: float) -> list[float]:
        """Milliseconds until each was answered."""
        took = list[float]()
        waiting = set(self._sockets)
        while waiting:
            ready = self._poll.poll(WAKE_SECONDS_MAX)
            if not ready:
                raise BenchError(f"{len(waiting)} waiters were not woken")
            for descriptor, _ in ready:
                answer = self._sockets[descriptor].recv(65536)
                if not answer.startswith(b"HTTP/1.1 200") or b'"touched":true' not in answer:
                    raise BenchError(f"a waiter got {answer[:300]!r}")
                waiting.discard(descriptor)
                took.append((time.monotonic() - began) * 1000)
        return took


def label(waiters: int) -> str:
    return f"{waiters} waiters"


def cases(plan: Plan) -> list[TouchWakeCase]:
    if plan.smoke:
        return [TouchWakeCase(waiters=20, rounds=2)]
    return [TouchWakeCase(waiters=1, rounds=60), TouchWakeCase(waiters=10_000, rounds=5)]
