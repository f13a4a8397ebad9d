"""Catch-up of one stream from its start to its tail by one reader, again and again."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.plan import Plan
from bench.servers import Server
from bench.wire import BINARY, Connection, encode_request, fill_stream, stream_path

STREAM = "catch-up"
READ_BUFFER_BYTES = 256 * 1024

SMALL_MESSAGE_SHARE_OF_REFERENCE = 16
"""The reference writes some 600 small messages a second to disk, so it gets a shorter stream."""


@dataclass(frozen=True)
class CatchUpCase:
    message_bytes: int
    messages: int
    seconds: int

    workload: ClassVar[str] = "catch_up"

    @property
    def label(self) -> str:
        return label(self.messages * self.message_bytes, self.message_bytes)

    def measure(self, server: Server) -> Figures:
        messages = self._messages_for(server)
        fill_stream(server.port, STREAM, BINARY, b"c" * self.message_bytes, messages)
        stream_bytes = messages * self.message_bytes
        with Connection(server.port, READ_BUFFER_BYTES) as connection:
            _read_checked(connection, stream_bytes)
            return _read_for(connection, server, server.shorter(self.seconds), stream_bytes)

    def _messages_for(self, server: Server) -> int:
        if server.kind.reference and self.message_bytes < 1024:
            return self.messages // SMALL_MESSAGE_SHARE_OF_REFERENCE
        return self.messages


def _read_for(connection: Connection, server: Server, seconds: int, stream_bytes: int) -> Figures:
    passes = 0
    cpu_before = server.cpu_seconds()
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        _read_checked(connection, stream_bytes)
        passes += 1
    megabytes = passes * stream_bytes / 1e6
    return {
        "megabytes_per_second": megabytes / elapsed,
        "server_cpu_us_per_megabyte": (server.cpu_seconds() - cpu_before) * 1e6 / megabytes,
        "stream_megabytes": stream_bytes / 1e6,
    }


def _read_checked(connection: Connection, stream_bytes: int) -> None:
    received = read_to_tail(connection)
    if received != stream_bytes:
        raise BenchError(f"catch-up returned {received} bytes of a stream of {stream_bytes}")


def read_to_tail(connection: Connection) -> int:
    """Follow Stream-Next-Offset from the start until the server says up to date."""
    received = 0
    offset = "-1"
    while True:
        request = encode_request("GET", f"{stream_path(STREAM)}?offset={offset}")
        reply = connection.expect_ok(request)
        received += reply.body_bytes
        if reply.up_to_date:
            return received
        if reply.next_offset == offset:
            raise BenchError(f"catch-up makes no progress at offset {offset}")
        offset = reply.next_offset


def label(stream_bytes: int, message_bytes: int) -> str:
    size = f"{message_bytes // 1024} KiB" if message_bytes >= 1024 else f"{message_bytes} B"
    return f"{stream_bytes / 2**20:g} MiB in messages of {size}"


def cases(plan: Plan) -> list[CatchUpCase]:
    if plan.smoke:
        return [CatchUpCase(64 * 1024, 32, plan.seconds), CatchUpCase(256, 2048, plan.seconds)]
    return [CatchUpCase(64 * 1024, 1024, plan.seconds), CatchUpCase(256, 65536, plan.seconds)]
