"""A short known story told to a real server, so that log record n is exactly one known request.

Requests sent one after the other give one batch each. Requests of one group are sent on connections
of their own while the server is paused, so that they share a batch or two; the log itself tells in
which order they came.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.content import Content, Kind, encode_body, join
from tests.crash.history import ProducerMark
from tests.crash.verify import read_stream
from tests.crash.wal_files import load_wal, parse_records, segment_names
from tests.crash.writers import BASE
from tests.support.http import Client
from tests.support.server import NO_OWN_STREAMS, ServerProcess

State = dict[str, tuple[Kind, Content, bool]]  # by stream: kind, content, closed


@dataclass(frozen=True)
class Step:
    """One request that changes one stream."""

    method: str
    stream: str
    kind: Kind
    payload: Content
    closes: bool = False
    source: str | None = None  # of a fork
    producer: ProducerMark | None = None

    def change(self, state: State) -> State:
        """All streams after this request."""
        if self.method == "DELETE":
            return {name: held for name, held in state.items() if name != self.stream}
        if self.source is not None:
            content = state[self.source][1]
        else:
            content = state[self.stream][1] if self.stream in state else self.kind.nothing
        return state | {self.stream: (self.kind, join(content, self.payload), self.closes)}

    @property
    def body(self) -> bytes:
        return encode_body(self.payload) if len(self.payload) else b""

    def encode(self) -> bytes:
        lines = [f"{self.method} {BASE}{self.stream} HTTP/1.1", "Host: 127.0.0.1"]
        if self.method != "DELETE":
            lines.append(f"Content-Type: {self.kind.value}")
        if self.source is not None:
            lines.append(f"Stream-Forked-From: {BASE}{self.source}")
        if self.closes:
            lines.append("Stream-Closed: true")
        if self.producer is not None:
            lines += [f"{name}: {value}" for name, value in self.producer.headers.items()]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode() + self.body


class Story:
    """The steps in the order of their records."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.names = sorted({step.stream for step in steps})

    def state_after(self, records: int) -> State:
        state: State = {}
        for step in self.steps[:records]:
            state = step.change(state)
        return state


@contextlib.contextmanager
def paused(server: ServerProcess) -> Iterator[None]:
    """What is sent meanwhile reaches the server all at once."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def tell(server: ServerProcess, groups: Sequence[Sequence[Step]]) -> None:
    for group in groups:
        with contextlib.ExitStack() as stack:
            connections = [
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), timeout=30)
                )
                for _ in group
            ]
            with paused(server) if len(group) > 1 else contextlib.nullcontext():
                for step, connection in zip(group, connections, strict=True):
                    connection.sendall(step.encode())
            for step, connection in zip(group, connections, strict=True):
                status = connection.recv(65536).split(b" ", 2)[1]
                assert status in (b"200", b"201", b"204"), (
                    f"{step.method} {step.stream}: {status!r}"
                )


def check_state(client: Client, state: State, names: Sequence[str]) -> None:
    """The server holds exactly these streams out of all names of the story."""
    for stream in names:
        if stream not in state:
            assert client.head(BASE + stream).status == 404, f"{stream} should not be there"
            continue
        kind, content, closed = state[stream]
        found, _, found_closed = read_stream(client, stream, kind)
        assert (found, found_closed) == (content, closed), f"{stream} is not as it was"


def reference_groups() -> list[list[Step]]:
    """Small records, big ones, batches of several; forks, closes and deletes in between."""
    text, blob, events = Kind.TEXT, Kind.BINARY, Kind.JSON

    def note(data: bytes) -> Step:
        return Step("POST", "notes", text, data)

    groups = [
        [Step("PUT", "notes", text, b"")],
        [Step("PUT", "events", events, ())],
        [note(b"a")],
        [Step("POST", "events", events, (b'{"n":1.0}', b"[2]", b'"3"'))],
        [note(f"together {i};".encode()) for i in range(6)],
        [Step("PUT", "blob", blob, b"initial")],
        [Step("POST", "blob", blob, bytes(range(256)) * 4)],
        [Step("PUT", "notes-fork", text, b"", source="notes")],
        [note(b"source only;"), Step("POST", "notes-fork", text, b"fork only;")],
        [Step("POST", "blob", blob, b"B" * 3000)],
        [Step("POST", "events", events, tuple(f"{i}".encode() for i in range(40)))],
        [Step("PUT", "short-lived", text, b"")],
        [Step("POST", "short-lived", text, b"x" * 500, closes=True)],
        [Step("DELETE", "short-lived", text, b"")],
    ]
    for index in range(8):
        line = f"line {index};".encode() * 20
        producer = ProducerMark("p", 0, index)
        groups.append([Step("POST", "notes", text, line, producer=producer)])
    groups += [
        [Step("POST", "events", events, (f'{{"e":{i}}}'.encode(),)) for i in range(6)],
        [Step("POST", "notes-fork", text, b"the end;", closes=True)],
        [Step("POST", "blob", blob, f"<{i}>".encode() * 40) for i in range(6)],
    ]
    return groups


def order_steps(groups: Sequence[Sequence[Step]], payloads: Sequence[bytes]) -> list[Step]:
    """Each group in the order its records have in the log."""
    ordered = list[Step]()
    for group in groups:
        places = payloads[len(ordered) : len(ordered) + len(group)]
        if len(group) == 1:
            ordered += group
        else:
            ordered += sorted(
                group, key=lambda s: [s.body in place for place in places].index(True)
            )
    return ordered


def leave_reference_store(folder: Path, *flags: str) -> Story:
    """A data folder as kill -9 leaves it right after the last answer."""
    groups = reference_groups()
    server = ServerProcess(folder, *NO_OWN_STREAMS, *flags)
    try:
        tell(server, groups)
    finally:
        server.kill()
    files = load_wal(folder / "wal")
    records = [r for name in segment_names(files) for r in parse_records(files[name])]
    assert len(records) == sum(map(len, groups)), "one record per request"
    return Story(order_steps(groups, [record.payload for record in records]))
