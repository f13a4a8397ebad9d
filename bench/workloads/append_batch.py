"""append-batch: 500 records of 100 bytes in one request, the cheapest way to write many."""

import struct
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import Figures
from bench.load import Load, run_load
from bench.plan import Plan
from bench.servers import Server
from bench.wire import BINARY, encode_request, send_all

BUCKET = "benchmark"
STREAMS = 8
CONNECTIONS = 8
RECORD_BYTES = 100
SECONDS_MAX = 3
"""Half a million records of 100 bytes a second fill memory quickly."""


@dataclass(frozen=True)
class AppendBatchCase:
    records: int
    seconds: int

    workload: ClassVar[str] = "append_batch"
    ours_only: ClassVar[bool] = True  # the reference server has no such route

    @property
    def label(self) -> str:
        return label(self.records)

    def measure(self, server: Server) -> Figures:
        body = struct.pack(">I", RECORD_BYTES) + b"r" * RECORD_BYTES
        root = f"/{BUCKET}/"
        load = Load(
            "batch-", STREAMS, CONNECTIONS, BINARY, [body * self.records], root, "/append-batch"
        )
        send_all(server.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
        creates = [encode_request("PUT", root + name, BINARY) for name in load.stream_names()]
        send_all(server.port, creates)
        outcome = run_load(server, load, self.seconds)
        return {
            "messages_per_second": outcome.accepted_per_second * self.records,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "server_cpu_us_per_message": outcome.server_cpu_us_per_request / self.records,
            "not_2xx": outcome.not_2xx,
            "socket_errors": outcome.socket_errors,
        }


def label(records: int) -> str:
    return f"{records} records of {RECORD_BYTES} bytes per request"


def cases(plan: Plan) -> list[AppendBatchCase]:
    return [AppendBatchCase(50 if plan.smoke else 500, min(plan.seconds, SECONDS_MAX))]
