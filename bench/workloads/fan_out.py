"""SSE fan-out: one writer, one stream, many subscribers; how late does each delivery come?

The writer is this process, the subscribers are `bench.sse_readers` in a process of their own, so
that neither makes the other wait. Both sit on the machine under test: latencies include the
reader's own work.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

from bench import processes
from bench.errors import BenchError
from bench.figures import Figures
from bench.plan import Plan
from bench.servers import REPO, Server
from bench.sse_readers import encode_event
from bench.wire import JSON, Connection, create_streams, encode_append

STREAM = "fan-out"
EVENTS_PER_SECOND = 50
SECONDS_MAX = 40
"""Millstream ends an SSE answer after about a minute; the subscribers here do not reconnect."""


@dataclass(frozen=True)
class FanOutCase:
    subscribers: int
    seconds: int

    workload: ClassVar[str] = "fan_out"

    @property
    def label(self) -> str:
        return label(self.subscribers)

    def measure(self, server: Server) -> Figures:
        create_streams(server.port, [STREAM], JSON)
        seconds = server.shorter(self.seconds)
        rss_before_mib = server.rss_mib()
        readers = _start_readers(server.port, self.subscribers)
        try:
            _wait_subscribed(readers)
            cpu_before = server.cpu_seconds()
            events = _write_events(server.port, seconds)
            expected = events * self.subscribers
            deliveries = _collect(readers, expected)
            cpu_seconds = server.cpu_seconds() - cpu_before
        finally:
            processes.stop(readers)
        return {
            **deliveries,
            "events_per_second": events / seconds,
            "deliveries_expected": expected,
            "deliveries_missing": expected - deliveries["deliveries"],
            "server_cpu_us_per_delivery": cpu_seconds * 1e6 / max(1, deliveries["deliveries"]),
            "rss_before_mib": rss_before_mib,
            "rss_after_mib": server.rss_mib(),
        }


def _start_readers(port: int, subscribers: int) -> subprocess.Popen[bytes]:
    return processes.start(
        [sys.executable, "-m", "bench.sse_readers", STREAM, str(port), str(subscribers)],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _wait_subscribed(readers: subprocess.Popen[bytes]) -> None:
    assert readers.stdout is not None
    line = readers.stdout.readline()
    if line != b"subscribed\n":
        raise _failed(line + readers.stdout.read())


def _write_events(port: int, seconds: int) -> int:
    """Append at a steady pace and return the count: fewer than asked if the server is slower."""
    with Connection(port) as connection:
        started = time.monotonic()
        for number in range(seconds * EVENTS_PER_SECOND):
            time.sleep(max(0.0, started + number / EVENTS_PER_SECOND - time.monotonic()))
            if time.monotonic() - started > seconds:
                return number
            connection.expect_ok(encode_append(STREAM, JSON, encode_event(time.monotonic_ns())))
    return seconds * EVENTS_PER_SECOND


def _collect(readers: subprocess.Popen[bytes], deliveries: int) -> Figures:
    output, _ = readers.communicate(b"%d\n" % deliveries)
    if readers.returncode:
        raise _failed(output)
    figures: Figures = json.loads(output)
    return figures


def _failed(output: bytes) -> BenchError:
    return BenchError(f"the subscribers failed: {output.decode()[-800:]}")


def label(subscribers: int) -> str:
    return f"{subscribers} SSE subscribers, {EVENTS_PER_SECOND} events/s"


def cases(plan: Plan) -> list[FanOutCase]:
    if plan.smoke:
        return [FanOutCase(subscribers=50, seconds=plan.seconds)]
    return [FanOutCase(subscribers=1000, seconds=min(2 * plan.seconds, SECONDS_MAX))]
