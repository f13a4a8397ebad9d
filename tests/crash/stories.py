"""A short known story told to a real server, so that log record n is exactly request n.

Requests sent one after the other give one batch each; requests pipelined in one write arrive
together and share a batch.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.content import Content, Kind, encode_body
from tests.crash.verify import read_stream
from tests.crash.writers import BASE
from tests.support.http import Client
from tests.support.server import ServerProcess

State = dict[str, tuple[Kind, Content, bool]]  # by stream: kind, content, closed


@dataclass(frozen=True)
class Step:
    """One request and what all streams hold after it."""

    method: str
    stream: str
    headers: dict[str, str]
    body: bytes
    state: State

    def encode(self) -> bytes:
        lines = [f"{self.method} {BASE}{self.stream} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode() + self.body


class Story:
    """Steps in the order of their records, and which of them arrived together."""

    def __init__(self) -> None:
        self.groups: list[list[Step]] = []
        self.state: State = {}

    @property
    def steps(self) -> list[Step]:
        return [step for group in self.groups for step in group]

    def state_after(self, records: int) -> State:
        return self.steps[records - 1].state if records else {}

    def add(self, *steps: Step) -> None:
        self.groups.append(list(steps))

    def create(self, stream: str, kind: Kind, **headers: str) -> Step:
        self.state = self.state | {stream: (kind, kind.nothing, False)}
        sent = {"Content-Type": kind.value} | {k.replace("_", "-"): v for k, v in headers.items()}
        return Step("PUT", stream, sent, b"", self.state)

    def fork(self, stream: str, source: str) -> Step:
        kind, content, _ = self.state[source]
        self.state = self.state | {stream: (kind, content, False)}
        headers = {"Stream-Forked-From": BASE + source}
        return Step("PUT", stream, headers, b"", self.state)

    def append(self, stream: str, payload: Content, closes: bool = False, **headers: str) -> Step:
        kind, content, _ = self.state[stream]
        if isinstance(content, bytes) and isinstance(payload, bytes):
            content += payload
        elif isinstance(content, tuple) and isinstance(payload, tuple):
            content += payload
        self.state = self.state | {stream: (kind, content, closes)}
        sent = {"Content-Type": kind.value} | {k.replace("_", "-"): v for k, v in headers.items()}
        if closes:
            sent["Stream-Closed"] = "true"
        return Step("POST", stream, sent, encode_body(payload), self.state)

    def delete(self, stream: str) -> Step:
        self.state = {k: v for k, v in self.state.items() if k != stream}
        return Step("DELETE", stream, {}, b"", self.state)


def tell(server: ServerProcess, groups: Sequence[Sequence[Step]]) -> None:
    """Sends each group in one write and waits for all its answers."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        answers = connection.makefile("rb")
        with answers:
            for group in groups:
                connection.sendall(b"".join(step.encode() for step in group))
                for step in group:
                    status = _read_answer(answers.readline, answers.read)
                    assert status in (200, 201, 204), f"{step.method} {step.stream}: {status}"


def _read_answer(readline: object, read: object) -> int:
    assert callable(readline)
    assert callable(read)
    status = int(readline().split()[1])
    length = 0
    while (line := readline().strip().lower()) != b"":
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    read(length)
    return status


def check_state(client: Client, state: State, names: Sequence[str]) -> None:
    """The server holds exactly these streams out of all names of the story."""
    for stream in names:
        if stream not in state:
            assert client.head(BASE + stream).status == 404, f"{stream} should not be there"
            continue
        kind, content, closed = state[stream]
        found, _, found_closed = read_stream(client, stream, kind)
        assert (found, found_closed) == (content, closed), f"{stream} is not as it was"


def tell_reference_story() -> Story:
    """Small records, big ones, batches of several; forks, closes and deletes in between."""
    story = Story()
    story.add(story.create("notes", Kind.TEXT))
    story.add(story.create("events", Kind.JSON))
    story.add(story.append("notes", b"a"))
    story.add(story.append("events", (b'{"n":1.0}', b"[2]", b'"3"')))
    story.add(*(story.append("notes", f"together {i};".encode()) for i in range(5)))
    story.add(story.create("blob", Kind.BINARY))
    story.add(story.append("blob", bytes(range(256)) * 4))
    story.add(story.fork("notes-fork", "notes"))
    story.add(
        story.append("notes", b"source only;"),
        story.append("notes-fork", b"fork only;"),
        story.append("blob", bytes(700)),
    )
    story.add(story.append("blob", b"B" * 3000))
    story.add(story.append("events", tuple(f"{i}".encode() for i in range(40))))
    story.add(story.create("short-lived", Kind.TEXT))
    story.add(story.append("short-lived", b"x" * 500, closes=True))
    story.add(story.delete("short-lived"))
    for index in range(8):
        producer = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": str(index)}
        story.add(story.append("notes", f"line {index};".encode() * 20, **producer))
    story.add(*(story.append("events", (f'{{"e":{i}}}'.encode(),)) for i in range(6)))
    story.add(story.append("notes-fork", b"the end;", closes=True))
    story.add(*(story.append("blob", bytes([i]) * 90) for i in range(4)))
    return story


def leave_reference_store(folder: Path, *flags: str) -> Story:
    """A data folder as kill -9 leaves it right after the last answer."""
    story = tell_reference_story()
    server = ServerProcess(folder, *flags)
    try:
        tell(server, story.groups)
    finally:
        server.kill()
    return story
