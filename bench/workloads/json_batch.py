"""JSON arrays of many small messages per POST: what splitting and validating them costs."""

from dataclasses import dataclass
from typing import ClassVar

from bench.figures import Figures
from bench.load import Load, run_load
from bench.plan import Plan
from bench.servers import Server
from bench.wire import JSON, create_streams

STREAMS = 8
CONNECTIONS = 8
SECONDS_MAX = 3
"""A million messages of 60 bytes a second fill a default hot budget of 256 MiB in four seconds."""


@dataclass(frozen=True)
class JsonBatchCase:
    messages: int
    seconds: int

    workload: ClassVar[str] = "json_batch"

    @property
    def label(self) -> str:
        return label(self.messages)

    def measure(self, server: Server) -> Figures:
        load = Load("json-", STREAMS, CONNECTIONS, JSON, [encode_batch(self.messages)])
        create_streams(server.port, load.stream_names(), JSON)
        outcome = run_load(server, load, server.shorter(self.seconds))
        return {
            "messages_per_second": outcome.accepted_per_second * self.messages,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "server_cpu_us_per_message": outcome.server_cpu_us_per_request / self.messages,
            "not_2xx": outcome.not_2xx,
            "socket_errors": outcome.socket_errors,
        }


def encode_batch(messages: int) -> bytes:
    """Objects of about 60 bytes with a number, a string and a boolean in each."""
    objects = (
        f'{{"id":{1_000_000 + index},"user":"user-{index % 97:04d}","value":{index / 7:.3f},'
        f'"ok":true}}'
        for index in range(messages)
    )
    return f"[{','.join(objects)}]".encode()


def label(messages: int) -> str:
    return f"{messages} messages per array"


def cases(plan: Plan) -> list[JsonBatchCase]:
    batches = [100] if plan.smoke else [100, 1000]
    return [JsonBatchCase(messages, min(plan.seconds, SECONDS_MAX)) for messages in batches]
