"""Durable appends whose bodies differ in length, against the same with all of the mean length.

`Content-Length` makes every head another one, as with most clients. One server takes both loads in
turns, so that a slow minute of the machine hits both.
"""

import random
import statistics
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import Figures
from bench.load import Load, LoadOutcome, run_load
from bench.plan import Plan
from bench.servers import Server
from bench.wire import BINARY, create_streams

BODY_BYTES_MAX = 2000
BODIES = 4000  # each stream gets several lengths, each length comes to several streams
TURNS = 3
SECONDS_MAX = 2
"""Half a minute of 1000-byte messages would measure flushes more than appends."""


@dataclass(frozen=True)
class AppendVariedCase:
    connections: int
    streams: int
    seconds: int
    warm_up_seconds: int

    workload: ClassVar[str] = "append_varied"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.connections, self.streams)

    def measure(self, server: Server) -> Figures:
        loads = [self._load(bodies) for bodies in (varied_bodies(), [_body(BODY_BYTES_MAX // 2)])]
        create_streams(server.port, loads[0].stream_names(), BINARY)
        outcomes: list[list[LoadOutcome]] = [[], []]
        for load in loads:
            if self.warm_up_seconds:
                run_load(server, load, self.warm_up_seconds)
        for _ in range(TURNS):
            for load, taken in zip(loads, outcomes, strict=True):
                taken.append(run_load(server, load, self.seconds))
        return _compared(*outcomes)

    def _load(self, bodies: list[bytes]) -> Load:
        return Load("append-", self.streams, self.connections, BINARY, bodies)


def varied_bodies() -> list[bytes]:
    """All lengths are equally likely; half of BODY_BYTES_MAX is their mean."""
    dice = random.Random(1)
    return [_body(dice.randint(1, BODY_BYTES_MAX - 1)) for _ in range(BODIES)]


def _body(size: int) -> bytes:
    return b"a" * size


def _compared(varied: list[LoadOutcome], fixed: list[LoadOutcome]) -> Figures:
    def median(outcomes: list[LoadOutcome], figure: str) -> float:
        values: list[float] = [getattr(outcome, figure) for outcome in outcomes]
        return statistics.median(values)

    cpu_us, cpu_fixed_us = (
        median(outcomes, "server_cpu_us_per_request") for outcomes in (varied, fixed)
    )
    return {
        "appends_per_second": median(varied, "accepted_per_second"),
        "appends_per_second_fixed": median(fixed, "accepted_per_second"),
        "p50_us": median(varied, "p50_us"),
        "p99_us": median(varied, "p99_us"),
        "server_cpu_us_per_append": cpu_us,
        "server_cpu_us_per_append_fixed": cpu_fixed_us,
        "cpu_times_fixed": cpu_us / cpu_fixed_us,
        "not_2xx": sum(outcome.not_2xx for outcome in varied + fixed),
        "socket_errors": sum(outcome.socket_errors for outcome in varied + fixed),
    }


def label(connections: int, streams: int) -> str:
    return f"{connections} connections, {streams} streams, 1 to {BODY_BYTES_MAX - 1} bytes"


def cases(plan: Plan) -> list[AppendVariedCase]:
    connections, streams = (8, 50) if plan.smoke else (128, 1000)
    seconds = min(plan.seconds, SECONDS_MAX)
    return [AppendVariedCase(connections, streams, seconds, plan.warm_up_seconds)]
