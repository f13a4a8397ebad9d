"""JSON arrays to streams with a schema of ten fields: what checking every message costs."""

import json
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import Figures
from bench.load import Load, run_load
from bench.plan import Plan
from bench.servers import Server
from bench.wire import JSON, create_streams, encode_request, send_all, stream_path

STREAMS = 8
CONNECTIONS = 8
SECONDS_MAX = 5
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "user", "kind", "value", "ok"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "user": {"type": "string", "minLength": 1},
        "kind": {"enum": ["open", "edit", "close"]},
        "value": {"type": "number"},
        "ok": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
        "size": {"type": "object", "properties": {"w": {"type": "integer"}}},
        "rank": {"type": "integer", "maximum": 100},
    },
}


@dataclass(frozen=True)
class ValidatedJsonCase:
    messages: int
    seconds: int

    workload: ClassVar[str] = "validated_json"
    ours_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.messages)

    def measure(self, server: Server) -> Figures:
        load = Load("valid-", STREAMS, CONNECTIONS, JSON, [encode_batch(self.messages)])
        create_streams(server.port, load.stream_names(), JSON)
        update = json.dumps({"schema": SCHEMA}).encode()
        send_all(
            server.port,
            [
                encode_request("POST", f"{stream_path(name)}/_schema", JSON, update)
                for name in load.stream_names()
            ],
        )
        outcome = run_load(server, load, self.seconds)
        return {
            "messages_per_second": outcome.accepted_per_second * self.messages,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "server_cpu_us_per_message": outcome.server_cpu_us_per_request / self.messages,
            "not_2xx": outcome.not_2xx,
            "socket_errors": outcome.socket_errors,
        }


def encode_batch(messages: int) -> bytes:
    """Objects of about 190 bytes, with all ten fields."""
    return json.dumps(
        [
            {
                "id": 1_000_000 + index,
                "user": f"user-{index % 97:04d}",
                "kind": ("open", "edit", "close")[index % 3],
                "value": round(index / 7, 3),
                "ok": True,
                "at": "2026-01-31T12:00:00Z",
                "tags": ["a", "b"],
                "note": None,
                "size": {"w": index},
                "rank": index % 100,
            }
            for index in range(messages)
        ],
        separators=(",", ":"),
    ).encode()


def label(messages: int) -> str:
    return f"{messages} messages per array, schema of 10 fields"


def cases(plan: Plan) -> list[ValidatedJsonCase]:
    batches = [100] if plan.smoke else [1, 1000]
    return [ValidatedJsonCase(messages, min(plan.seconds, SECONDS_MAX)) for messages in batches]
