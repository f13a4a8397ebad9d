"""One key, or one moment, in a long stream that is in the object store only.

The stream is written, flushed and closed with a stop; the server that is asked is a new one. Keys
are spread evenly over the whole stream, so that the entries of one are as far apart as can be.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.figures import Figures
from bench.measure import percentile
from bench.own_server import OwnServer
from bench.plan import Plan
from bench.servers import ServerKind
from bench.wire import JSON, Connection, encode_request, send_all, send_bulk, stream_path

STREAM = "lookups"
BATCH = 1000  # entries in one request
ROUTING_KEY = {"routingKey": {"jsonPointer": "/k", "required": True}}
SEED = 20_261_117


@dataclass(frozen=True)
class ColdLookupsCase:
    entries: int
    keys: int
    asked: int

    workload: ClassVar[str] = "cold_lookups"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True
    repeats_max: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return label(self.entries, self.keys)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        with OwnServer(kind, work_dir) as own:
            own.start("--flush-age", "1s")
            moments = self._write(own)
            own.wait_flushed()
            own.stop()
            own.start()
            chosen = random.Random(SEED)
            keys = [chosen.randrange(self.keys) for _ in range(self.asked)]
            times = [chosen.choice(moments) for _ in range(self.asked)]
            by_key = self._ask(own, [f"key=k{key:08d}" for key in keys])
            by_time = self._ask(own, [f"since={moment}&max_bytes=4096" for moment in times])
        return {
            "key_p50_ms": percentile(by_key, 50),
            "key_p99_ms": percentile(by_key, 99),
            "since_p50_ms": percentile(by_time, 50),
            "since_p99_ms": percentile(by_time, 99),
        }

    def _write(self, own: OwnServer) -> list[int]:
        """The moments before the batches."""
        path, moments = stream_path(STREAM), list[int]()
        send_all(own.port, [encode_request("PUT", path, JSON)], connections=1)
        update = json.dumps(ROUTING_KEY).encode()
        send_all(own.port, [encode_request("POST", f"{path}/_schema", JSON, update)], connections=1)

        def batches() -> Iterator[bytes]:
            for first in range(0, self.entries, BATCH):
                moments.append(time.time_ns())
                yield encode_request("POST", path, JSON, self._batch(first))

        send_bulk(own.port, batches(), connections=2)
        return moments

    def _batch(self, first: int) -> bytes:
        entries = (
            b'{"k":"k%08d","n":%d,"pad":"%b"}' % (n % self.keys, n, b"p" * 120)
            for n in range(first, min(first + BATCH, self.entries))
        )
        return b"[" + b",".join(entries) + b"]"

    def _ask(self, own: OwnServer, queries: list[str]) -> list[float]:
        """Milliseconds of each, in order of size; each follows its pages to the end or the first
        entry."""
        took = list[float]()
        with Connection(own.port) as connection:
            for query in queries:
                began = time.monotonic()
                self._follow(connection.expect_ok, query)
                took.append((time.monotonic() - began) * 1000)
        return sorted(took)

    def _follow(self, get: Callable[[bytes], object], query: str) -> None:
        offset = ""
        while True:
            path = f"{stream_path(STREAM)}?{query}{offset}"
            reply = get(encode_request("GET", path))
            if query.startswith("since") or reply.up_to_date:  # type: ignore[attr-defined]
                return
            offset = f"&offset={reply.next_offset}"  # type: ignore[attr-defined]


def label(entries: int, keys: int) -> str:
    return f"{keys} keys in {entries} cold entries"


def cases(plan: Plan) -> list[ColdLookupsCase]:
    if plan.smoke:
        return [ColdLookupsCase(entries=5000, keys=500, asked=5)]
    return [ColdLookupsCase(entries=1_000_000, keys=100_000, asked=300)]
