"""Durable appends of 256 bytes over many streams, at growing numbers of connections.

The reference server on disk keeps 100 files open. With more streams than that under concurrent
appends it closes files it is about to sync and answers 404 for streams that exist (0.3.7), so its
rows with 1000 streams count what was left. The row with FEW_STREAMS is the one it can do in full.
"""

from dataclasses import dataclass
from typing import ClassVar

from bench.constant_server import running_beside
from bench.figures import Figures
from bench.load import Load, run_load
from bench.measure import fdatasync_p50_us
from bench.plan import Plan
from bench.servers import Server
from bench.wire import BINARY, create_streams

MESSAGE_BYTES = 256
MANY_STREAMS = 1000
FEW_STREAMS = 90
FULL_SIZES = [
    (1, MANY_STREAMS),
    (32, MANY_STREAMS),
    (128, MANY_STREAMS),
    (256, MANY_STREAMS),
    (128, FEW_STREAMS),
]
"""Connections and streams of each case."""


@dataclass(frozen=True)
class AppendCase:
    connections: int
    streams: int
    seconds: int
    warm_up_seconds: int

    workload: ClassVar[str] = "append"

    @property
    def label(self) -> str:
        return label(self.connections, self.streams)

    def measure(self, server: Server) -> Figures:
        load = Load("append-", self.streams, self.connections, BINARY, [b"a" * MESSAGE_BYTES])
        create_streams(server.port, load.stream_names(), BINARY)
        if self.warm_up_seconds:
            run_load(server, load, self.warm_up_seconds)
        # Just before the load, so that the row with one connection is judged by the disk it met.
        disk = (
            {"fdatasync_p50_us": fdatasync_p50_us(server.work_dir)} if server.kind.durable else {}
        )
        least = {} if server.kind.reference else self._least_cost(server, load)
        outcome = run_load(server, load, server.shorter(self.seconds))
        return {
            "appends_per_second": outcome.accepted_per_second,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "server_cpu_us_per_append": outcome.server_cpu_us_per_request,
            "not_2xx": outcome.not_2xx,
            "socket_errors": outcome.socket_errors,
            **disk,
            **least,
        }

    def _least_cost(self, server: Server, load: Load) -> Figures:
        """The same load on a server that does nothing, in the same minute."""
        with running_beside(server) as constant:
            outcome = run_load(constant, load, max(1, self.seconds // 2))
        return {"constant_cpu_us_per_request": outcome.server_cpu_us_per_request}


def label(connections: int, streams: int = MANY_STREAMS) -> str:
    return f"{connections} connection{'s' * (connections > 1)}, {streams} streams"


def cases(plan: Plan) -> list[AppendCase]:
    sizes = [(8, 50)] if plan.smoke else FULL_SIZES
    return [
        AppendCase(connections, streams, plan.seconds, plan.warm_up_seconds)
        for connections, streams in sizes
    ]
