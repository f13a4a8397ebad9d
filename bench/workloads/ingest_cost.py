"""What a GiB of appends over very many streams costs at the object store, with default settings.

Counted by the server itself, which counts every try. What is still in memory at the end is not paid
for yet, so the cost is that of the content that was flushed.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.own_server import OwnServer
from bench.payloads import Payloads, in_turn
from bench.plan import Plan
from bench.servers import ServerKind
from bench.wire import BINARY, JSON, encode_request, send_all, send_bulk

BUCKET = "benchmark"
REQUEST_BYTES = 4096  # so each stream gets its GiB's share in many small pieces


@dataclass(frozen=True)
class IngestCostCase:
    streams: int
    message_bytes: int
    is_json: bool
    bytes_in_all: int
    flags: tuple[str, ...] = ()

    workload: ClassVar[str] = "ingest_cost"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True
    repeats_max: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return label(self.streams, self.message_bytes)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        with OwnServer(kind, work_dir, *self.flags) as own:
            own.start()
            content_type = JSON if self.is_json else BINARY
            send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
            creates = (encode_request("PUT", _stream(n), content_type) for n in range(self.streams))
            send_bulk(own.port, creates)
            cpu_before, began = own.server.cpu_seconds(), time.monotonic()
            refused = send_bulk(own.port, self._appends())
            seconds = time.monotonic() - began
            cpu_seconds = own.server.cpu_seconds() - cpu_before
            metrics = own.wait_idle()
            flushed = self.bytes_in_all - metrics["millstream_hot_bytes"]
            if flushed <= 0:
                raise BenchError("nothing was flushed; write more or flush earlier")
            puts = metrics['millstream_cold_requests_total{kind="put"}']
            put_bytes = metrics['millstream_cold_bytes_total{direction="written"}']
            return {
                "puts_per_gib": puts / flushed * 2**30,
                "put_mib_per_gib": put_bytes / flushed * 2**10,
                "flushes": metrics["millstream_flushes_total"],
                "checkpoints": metrics["millstream_checkpoints_total"],
                "megabytes_per_second": self.bytes_in_all / 1e6 / seconds,
                "server_cpu_us_per_megabyte": cpu_seconds * 1e12 / self.bytes_in_all,
                "answers_full": refused,
                "rss_after_mib": own.server.rss_mib(),
                "rss_peak_mib": own.server.rss_peak_mib(),
            }

    def _appends(self) -> Iterator[bytes]:
        payloads = Payloads()
        count = max(1, REQUEST_BYTES // self.message_bytes)
        for number in in_turn(self.streams, self.bytes_in_all // (count * self.message_bytes)):
            path = _stream(number)
            if self.is_json:
                body = payloads.json_array(count, self.message_bytes)
                yield encode_request("POST", path, JSON, body)
            else:
                body = payloads.records(count, self.message_bytes)
                yield encode_request("POST", f"{path}/append-batch", BINARY, body)


def _stream(number: int) -> str:
    return f"/{BUCKET}/stream-{number:05d}"


def label(streams: int, message_bytes: int) -> str:
    return f"{streams} streams, messages of {message_bytes} bytes"


def cases(plan: Plan) -> list[IngestCostCase]:
    if plan.smoke:
        return [IngestCostCase(50, 256, False, 2**21, ("--flush-bytes", "64KiB"))]
    return [
        IngestCostCase(10_000, 256, False, 2**30),
        IngestCostCase(10_000, 1024, True, 2**30),
    ]
