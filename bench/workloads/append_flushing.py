"""Durable appends while content goes cold all the time, against the same while none does.

Two servers, one that flushes a shard as soon as it holds half a MiB and one that never has to, are
put under the same load in turns, so that a slow minute of the machine hits both.
"""

import functools
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.figures import Figures
from bench.load import Load, LoadOutcome, run_load
from bench.own_server import OwnServer
from bench.payloads import Payloads
from bench.plan import Plan
from bench.servers import ServerKind
from bench.wire import BINARY, create_streams

MESSAGE_BYTES = 256
BODIES = 20_000  # so that what is flushed does not compress to nothing
TURNS = 3
STILL = ("--flush-bytes", "8GiB", "--flush-age", "1h", "--hot-bytes", "16GiB")
STILL_LOG = ("--checkpoint-wal-bytes", "64GiB", "--resident-streams", "1000000")


@dataclass(frozen=True)
class AppendFlushingCase:
    connections: int
    streams: int
    flush_bytes: str
    seconds: int
    warm_up_seconds: int

    workload: ClassVar[str] = "append_flushing"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.connections, self.streams)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        busy_dir, still_dir = work_dir / "flushing", work_dir / "still"
        flushing = ("--flush-bytes", self.flush_bytes)
        with (
            OwnServer(kind, busy_dir, *flushing, *STILL_LOG) as busy,
            OwnServer(kind, still_dir, *STILL, *STILL_LOG) as still,
        ):
            for own in (busy, still):
                own.start()
                create_streams(own.port, self._load.stream_names(), BINARY)
                if self.warm_up_seconds:
                    run_load(own.server, self._load, self.warm_up_seconds)
            flushes_before = busy.metrics()["millstream_flushes_total"]
            outcomes: list[list[LoadOutcome]] = [[], []]
            for _ in range(TURNS):
                for own, taken in zip((busy, still), outcomes, strict=True):
                    taken.append(run_load(own.server, self._load, self.seconds))
            flushes = busy.metrics()["millstream_flushes_total"] - flushes_before
        return _compared(*outcomes) | {
            "flushes_per_second": flushes / (TURNS * self.seconds),
        }

    @functools.cached_property
    def _load(self) -> Load:
        payloads = Payloads()
        bodies = [payloads.text(MESSAGE_BYTES) for _ in range(BODIES)]
        return Load("append-", self.streams, self.connections, BINARY, bodies)


def _compared(busy: list[LoadOutcome], still: list[LoadOutcome]) -> Figures:
    def median(outcomes: list[LoadOutcome], figure: str) -> float:
        values: list[float] = [getattr(outcome, figure) for outcome in outcomes]
        return statistics.median(values)

    p99_us, p99_still_us = median(busy, "p99_us"), median(still, "p99_us")
    return {
        "appends_per_second": median(busy, "accepted_per_second"),
        "appends_per_second_still": median(still, "accepted_per_second"),
        "p50_us": median(busy, "p50_us"),
        "p50_still_us": median(still, "p50_us"),
        "p99_us": p99_us,
        "p99_still_us": p99_still_us,
        "p99_times_still": p99_us / p99_still_us,
        "server_cpu_us_per_append": median(busy, "server_cpu_us_per_request"),
        "not_2xx": sum(outcome.not_2xx for outcome in busy + still),
        "socket_errors": sum(outcome.socket_errors for outcome in busy + still),
    }


def label(connections: int, streams: int) -> str:
    return f"{connections} connections, {streams} streams"


def cases(plan: Plan) -> list[AppendFlushingCase]:
    if plan.smoke:
        return [AppendFlushingCase(8, 50, "16KiB", plan.seconds, 0)]
    return [
        AppendFlushingCase(128, streams, "512KiB", plan.seconds, plan.warm_up_seconds)
        for streams in (1000, 10_000)
    ]
