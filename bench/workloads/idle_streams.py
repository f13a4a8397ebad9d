"""Streams that nobody uses: what each costs in memory, and what all of them cost at a start.

One case is one story: create the streams, wait until they have left memory, write the history,
stop and start, write until the log is long, kill -9 and start again. Every start is timed from the
start of the process until /readyz says yes.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.figures import Figures
from bench.own_server import OwnServer
from bench.payloads import Payloads, in_turn
from bench.plan import Plan
from bench.servers import ServerKind
from bench.wire import BINARY, encode_request, send_all, send_bulk

BUCKET = "benchmark"
RECORD_BYTES = 1024
HISTORY_RECORDS = 64  # in one request
TAIL_RECORD_BYTES = 256
TAIL_RECORDS = 16
WRITTEN_SHARE = 100  # one of so many streams has the history


@dataclass(frozen=True)
class IdleStreamsCase:
    streams: int
    history_bytes: int
    log_bytes: int  # written after the last checkpoint and before the kill -9

    workload: ClassVar[str] = "idle_streams"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True
    repeats_max: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return label(self.streams, self.history_bytes)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        with OwnServer(kind, work_dir) as own:
            own.start()
            figures = self._create(own)
            if self.history_bytes:
                send_bulk(own.port, self._history())
                own.wait_idle()
                figures["rss_with_history_mib"] = own.server.rss_mib()
            figures["stop_seconds"] = own.stop()
            figures["start_seconds"] = own.start()
            figures["rss_after_start_mib"] = own.server.rss_mib()
            send_bulk(own.port, self._tail())
            figures["log_mib"] = own.metrics()["millstream_wal_bytes"] / 2**20
            own.kill()
            figures["start_after_kill_seconds"] = own.start()
            figures["rss_after_kill_mib"] = own.server.rss_mib()
            figures["rss_peak_mib"] = own.server.rss_peak_mib()
        return figures

    def _create(self, own: OwnServer) -> Figures:
        empty_mib = own.server.rss_mib()
        send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
        began = time.monotonic()
        names = (_stream(number) for number in range(self.streams))
        send_bulk(own.port, (encode_request("PUT", name, BINARY) for name in names))
        seconds = time.monotonic() - began
        metrics = own.wait_idle()
        idle_mib = own.server.rss_mib()
        return {
            "creates_per_second": self.streams / seconds,
            "rss_empty_mib": empty_mib,
            "rss_idle_mib": idle_mib,
            "rss_bytes_per_stream": (idle_mib - empty_mib) * 2**20 / self.streams,
            "streams_resident": metrics["millstream_resident_streams"],
        }

    @property
    def _written_streams(self) -> int:
        return max(1, self.streams // WRITTEN_SHARE)

    def _history(self) -> Iterator[bytes]:
        payloads = Payloads()
        requests = self.history_bytes // (HISTORY_RECORDS * RECORD_BYTES)
        for number in in_turn(self._written_streams, requests):
            body = payloads.records(HISTORY_RECORDS, RECORD_BYTES)
            path = _stream(number * WRITTEN_SHARE)
            yield encode_request("POST", f"{path}/append-batch", BINARY, body)

    def _tail(self) -> Iterator[bytes]:
        payloads = Payloads(2)
        requests = self.log_bytes // (TAIL_RECORDS * TAIL_RECORD_BYTES)
        for number in in_turn(self._written_streams, requests):
            body = payloads.records(TAIL_RECORDS, TAIL_RECORD_BYTES)
            path = _stream(number * WRITTEN_SHARE)
            yield encode_request("POST", f"{path}/append-batch", BINARY, body)


def _stream(number: int) -> str:
    return f"/{BUCKET}/stream-{number:08d}"


def label(streams: int, history_bytes: int) -> str:
    history = f" and {history_bytes / 2**30:g} GiB of history" if history_bytes else ""
    return f"{streams} streams{history}"


def cases(plan: Plan) -> list[IdleStreamsCase]:
    if plan.smoke:
        return [IdleStreamsCase(500, 2**20, 2**18)]
    return [
        IdleStreamsCase(100_000, 0, 2**26),
        IdleStreamsCase(1_000_000, 2**30, 200 * 2**20),
    ]
