"""Bootstrap of a snapshot and the messages behind it, by many clients at the same moment."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.measure import percentile
from bench.plan import Plan
from bench.servers import Server
from bench.wire import JSON, Connection, encode_request

BUCKET = "benchmark"
STREAM = f"/{BUCKET}/bootstrap"
SNAPSHOT_BYTES = 100_000
MESSAGES_PER_APPEND = 500


@dataclass(frozen=True)
class BootstrapCase:
    messages: int
    clients: int
    rounds: int

    workload: ClassVar[str] = "bootstrap"
    ours_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"snapshot and {self.messages} messages, {self.clients} clients at once"

    def measure(self, server: Server) -> Figures:
        self._prepare(server.port)
        barrier = Barrier(self.clients)
        cpu_before = server.cpu_seconds()
        with ThreadPoolExecutor(self.clients) as pool:
            fetches = [
                pool.submit(_fetch, server.port, self.rounds, barrier) for _ in range(self.clients)
            ]
            taken = [milliseconds for fetch in fetches for milliseconds in fetch.result()]
        cpu_us = (server.cpu_seconds() - cpu_before) * 1e6
        taken.sort()
        return {
            "p50_ms": percentile(taken, 50),
            "p99_ms": percentile(taken, 99),
            "server_cpu_us_per_message": cpu_us / len(taken) / self.messages,
        }

    def _prepare(self, port: int) -> None:
        """The snapshot stands in the middle: as many messages before it as behind."""
        message = b'{"kind":"set","path":["title"],"value":"hello, this is a message of ours"}'
        batch = b"[" + b",".join([message] * MESSAGES_PER_APPEND) + b"]"
        appends = self.messages // MESSAGES_PER_APPEND
        with Connection(port) as connection:
            connection.expect_ok(encode_request("PUT", f"/{BUCKET}"))
            connection.expect_ok(encode_request("PUT", STREAM, JSON))
            for _ in range(appends):
                offset = connection.expect_ok(
                    encode_request("POST", STREAM, JSON, batch)
                ).next_offset
            snapshot = encode_request(
                "PUT", f"{STREAM}/snapshot/{offset}", JSON, b"s" * SNAPSHOT_BYTES
            )
            connection.expect_ok(snapshot)
            for _ in range(appends):
                connection.expect_ok(encode_request("POST", STREAM, JSON, batch))


def _fetch(port: int, rounds: int, barrier: Barrier) -> list[float]:
    taken = []
    with Connection(port) as connection:
        for _ in range(rounds):
            barrier.wait()
            began = time.monotonic()
            reply = connection.expect_ok(encode_request("GET", f"{STREAM}/bootstrap"))
            taken.append((time.monotonic() - began) * 1000)
            if reply.body_bytes < SNAPSHOT_BYTES:
                raise BenchError("a bootstrap came without its snapshot")
    return taken


def cases(plan: Plan) -> list[BootstrapCase]:
    return [BootstrapCase(500, 5, 2)] if plan.smoke else [BootstrapCase(10_000, 100, 5)]
