"""What the conformance tests speak through: one client that can also leave requests waiting.

`Api` keeps every connection it opened and closes them all at the end of the test. The raw sockets
of the HTTP tests live next door in `raw.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.http import Client, Event, EventStream, Reply
from tests.support.server import ServerProcess

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
START = "0000000000000000_0000000000000000"


def fresh_path(label: str = "stream") -> str:
    return f"/v1/stream/{label}-{uuid.uuid4().hex[:16]}"


def fresh_bucket(label: str = "bucket") -> str:
    """The path of a bucket that nobody has created yet."""
    return f"/{label}-{uuid.uuid4().hex[:16]}"


def token(ordinal: int, byte: int) -> str:
    return f"{ordinal:016d}_{byte:016d}"


def halves(offset: str) -> tuple[int, int]:
    ordinal, _, byte = offset.partition("_")
    return int(ordinal), int(byte)


def producer(name: str, epoch: int | str, seq: int | str) -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def error_code(reply: Reply) -> str:
    """The code word of an error body, after checking that the body has the promised shape."""
    assert reply.headers["content-type"].startswith("application/json")
    error = json.loads(reply.body)["error"]
    assert isinstance(error["code"], str)
    assert error["code"]
    assert isinstance(error["message"], str)
    assert error["message"]
    return str(error["code"])


@dataclass
class Call:
    """A request as a value, so that several can be sent at the same moment."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


class WaitingCall:
    """A request that has been sent and whose answer is read later."""

    def __init__(self, host: str, port: int, call: Call, timeout_seconds: float = 15.0) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
        self.connection.connect()
        self.call = call

    def send(self) -> None:
        self.connection.request(
            self.call.method, self.call.path, body=self.call.body, headers=self.call.headers
        )

    def reply(self) -> Reply:
        response = self.connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, response.read())

    def close(self) -> None:
        self.connection.close()


class Events(EventStream):
    """Events decoded by the rules of the HTML standard; comments come as kind `comment`."""

    def __iter__(self) -> Iterator[Event]:
        kind, lines = "message", list[str]()
        while raw := self.response.readline():
            for line in raw.decode().removesuffix("\n").removesuffix("\r").split("\r"):
                if not line:
                    if lines:
                        yield Event(kind, "\n".join(lines))
                    kind, lines = "message", []
                    continue
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "":
                    yield Event("comment", value)
                elif name == "event":
                    kind = value
                elif name == "data":
                    lines.append(value)

    def until_up_to_date(self) -> list[Event]:
        """The events up to the control event that says that the reader has everything."""
        seen = list[Event]()
        for event in self:
            seen.append(event)
            if event.kind == "control" and (
                event.json().get("upToDate") or event.json().get("streamClosed")
            ):
                return seen
        raise AssertionError(f"the stream of events ended before it was up to date: {seen}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class Api(Client):
    """A client of one server, with the few phrases that most tests begin with."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__("127.0.0.1", server.port)
        self.server = server
        self.opened = list[WaitingCall | Events]()

    def stream(
        self,
        *messages: bytes | str,
        content_type: str = TEXT,
        headers: Mapping[str, str] | None = None,
        path: str | None = None,
    ) -> str:
        """The path of a new stream that holds these messages, one append each."""
        path = path or fresh_path()
        created = self.put(path, content_type=content_type, headers=headers)
        assert created.status == 201, created
        for message in messages:
            assert self.append(path, message, content_type=content_type).status == 204
        return path

    def bucket(self, label: str = "bucket") -> str:
        """The path of a new, empty bucket."""
        path = fresh_bucket(label)
        created = self.put(path)
        assert created.status == 201, created
        return path

    def bucketed(
        self,
        *messages: bytes | str,
        content_type: str = TEXT,
        headers: Mapping[str, str] | None = None,
        name: str = "stream",
    ) -> str:
        """The path of a new stream in a new bucket of its own."""
        path = f"{self.bucket()}/{name}"
        return self.stream(*messages, content_type=content_type, headers=headers, path=path)

    def publish(
        self,
        path: str,
        offset: str,
        body: bytes | str | None = b"snapshot",
        content_type: str | None = None,
    ) -> Reply:
        return self.put(f"{path}/snapshot/{offset}", body, content_type=content_type)

    def append(
        self,
        path: str,
        body: bytes | str,
        content_type: str | None = TEXT,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """A mostly cold server takes large messages as fast as its store: this waits for it."""
        while True:
            reply = self.post(path, body, content_type=content_type, headers=headers)
            if reply.status != 503 or error_code(reply) != "hot_budget_used":
                return reply
            time.sleep(0.01)

    def close_stream(self, path: str) -> Reply:
        reply = self.post(path, headers={"Stream-Closed": "true"})
        assert reply.status == 204, reply
        return reply

    def fork(
        self,
        source: str,
        offset: str | None = None,
        sub_offset: int | str | None = None,
        path: str | None = None,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[str, Reply]:
        path = path or fresh_path("fork")
        sent = {"Stream-Forked-From": source, **(headers or {})}
        if offset is not None:
            sent["Stream-Fork-Offset"] = offset
        if sub_offset is not None:
            sent["Stream-Fork-Sub-Offset"] = str(sub_offset)
        return path, self.put(path, body, headers=sent)

    def tail(self, path: str) -> str:
        return self.head(path).next_offset

    def wait(self, path: str) -> WaitingCall:
        """A GET that the server has certainly begun to work on."""
        waiting = self.hold(Call("GET", path))
        waiting.send()
        self.settle()
        return waiting

    def hold(self, call: Call) -> WaitingCall:
        waiting = WaitingCall(self.host, self.port, call)
        self.opened.append(waiting)
        return waiting

    def together(self, calls: Sequence[Call]) -> list[Reply]:
        """Sends all calls before reading the first answer; each has its own connection."""
        waiting = [WaitingCall(self.host, self.port, call) for call in calls]
        with contextlib.ExitStack() as stack:
            for each in waiting:
                stack.callback(each.close)
            for each in waiting:
                each.send()
            return [each.reply() for each in waiting]

    def settle(self) -> None:
        """Whatever was sent before is now in the server's hands.

        One round trip lets the server accept the other connection, one lets it read from it, and
        the third is answered after both.
        """
        for _ in range(3):
            assert self.get("/healthz").status == 200

    def events(self, path: str, timeout_seconds: float = 10.0) -> Events:
        events = Events(self.host, self.port, path, timeout_seconds)
        self.opened.append(events)
        return events

    def close(self) -> None:
        for each in self.opened:
            each.close()
        super().close()
