"""Writers and readers that go on while something breaks, and know exactly what must be there.

Every writer has a stream of its own and is its only producer, so what the stream holds is known to
the byte: all that was acknowledged, in order, once, and at most the one request that is in doubt.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator

from millstream.formats.wal import crc32c
from tests.support.http import Client, Reply
from tests.support.server import ServerProcess

LOST = (OSError, http.client.HTTPException)
RETRY_SECONDS = 0.02
JOIN_SECONDS = 30.0


def message(name: str, number: int, size: int) -> bytes:
    return f"<{name} {number}>".encode().ljust(size, b".")


def path_in_shard(label: str, shard: int, shards: int) -> str:
    """A stream of the plain surface that lies in this shard."""
    for number in range(100_000):
        name = f"{label}-{number}"
        if crc32c(f"_default/{name}".encode()) % shards == shard:
            return f"/v1/stream/{name}"
    raise AssertionError("no name found")


def read_all(client: Client, path: str, offset: str = "-1") -> bytes:
    """Everything to the tail; raises Refused at the first page that is not there.

    An answer that is cut short does not say why: then the same is asked for page by page.
    """
    data = bytearray()
    pages = ""
    while True:
        try:
            reply = client.get(f"{path}?offset={offset}{pages}")
        except http.client.IncompleteRead:
            assert not pages, "a page comes whole or not at all"
            client.close()
            pages = "&max_bytes=1000000"
            continue
        if reply.status != 200:
            raise Refused(reply)
        data += reply.body
        offset = reply.next_offset
        if reply.headers.get("stream-up-to-date") == "true":
            return bytes(data)
        assert reply.body, "an empty page that is not the end"


class Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status} {reply.body[:300]!r}")
        self.reply = reply


def code(reply: Reply) -> str:
    return str(reply.json()["error"]["code"])


class Writer(threading.Thread):
    """Appends numbered messages as a producer, each until it is acknowledged."""

    def __init__(self, port: int, path: str, size: int) -> None:
        super().__init__(daemon=True)
        self.port, self.path, self.size = port, path, size
        self.acknowledged = 0
        self.answers = Counter[str]()
        self.problems = list[str]()
        self.ending = threading.Event()

    @property
    def label(self) -> str:
        return self.path.rpartition("/")[2]

    def expected(self, count: int | None = None) -> bytes:
        numbers = range(self.acknowledged if count is None else count)
        return b"".join(message(self.label, number, self.size) for number in numbers)

    def run(self) -> None:
        client = Client("127.0.0.1", self.port)
        with contextlib.closing(client):
            try:
                while not self.ending.is_set():
                    self.append(client)
            except LOST as error:
                if not self.ending.is_set():
                    self.problems.append(f"{self.label}: {error!r}")

    def append(self, client: Client) -> None:
        headers = {"Producer-Id": "writer", "Producer-Epoch": "0"}
        headers["Producer-Seq"] = str(self.acknowledged)
        body = message(self.label, self.acknowledged, self.size)
        began = time.monotonic()
        reply = client.post(self.path, body, headers=headers, content_type="text/plain")
        if time.monotonic() - began > 10:
            self.problems.append(f"{self.label}: an append took {time.monotonic() - began:.1f} s")
        if reply.status in (200, 204):
            self.answers[str(reply.status)] += 1
            self.acknowledged += 1
            return
        self.answers[code(reply)] += 1
        if reply.status != 503 or "retry-after" not in reply.headers:
            self.problems.append(f"{self.label}: {reply}")
        self.ending.wait(RETRY_SECONDS)


class Reader(threading.Thread):
    """Reads whole streams again and again: right, or refused with 503 in time."""

    def __init__(self, port: int, writers: list[Writer], seconds_max: float) -> None:
        super().__init__(daemon=True)
        self.port, self.writers, self.seconds_max = port, writers, seconds_max
        self.answers = Counter[str]()
        self.problems = list[str]()
        self.ending = threading.Event()

    def run(self) -> None:
        with contextlib.closing(Client("127.0.0.1", self.port)) as client:
            try:
                while not self.ending.is_set():
                    for writer in self.writers:
                        self.read(client, writer)
            except LOST as error:
                if not self.ending.is_set():
                    self.problems.append(f"reader: {error!r}")

    def read(self, client: Client, writer: Writer) -> None:
        least = writer.acknowledged
        place = least // 2 * writer.size
        offset = f"{least // 2:016d}_{place:016d}"
        began = time.monotonic()
        reply = client.get(f"{writer.path}?offset={offset}")
        seconds = time.monotonic() - began
        if seconds > self.seconds_max:
            self.problems.append(f"a read of {writer.label} took {seconds:.1f} s")
        if reply.status == 200:
            self.answers["200"] += 1
            expected = writer.expected(writer.acknowledged + 1)[place:]
            if not expected.startswith(reply.body):
                self.problems.append(f"{writer.label} at {offset}: wrong content")
        else:
            self.answers[code(reply)] += 1
            if reply.status != 503 or "retry-after" not in reply.headers:
                self.problems.append(f"{writer.label}: {reply}")
            self.ending.wait(RETRY_SECONDS)


@contextlib.contextmanager
def busy(
    server: ServerProcess, paths: list[str], size: int, read_seconds_max: float = 8.0
) -> Iterator[tuple[list[Writer], Reader]]:
    """Writers, one per new stream, and a reader of them all, for the length of the block."""
    with contextlib.closing(server.client()) as client:
        for path in paths:
            assert client.put(path, content_type="text/plain").status == 201
    writers = [Writer(server.port, path, size) for path in paths]
    reader = Reader(server.port, writers, read_seconds_max)
    threads: list[Writer | Reader] = [*writers, reader]
    for thread in threads:
        thread.start()
    try:
        yield writers, reader
    finally:
        for thread in threads:
            thread.ending.set()
        for thread in threads:
            thread.join(JOIN_SECONDS)
            assert not thread.is_alive(), "a client hangs"
    for thread in threads:
        assert not thread.problems, thread.problems[:5]


def check_streams(server: ServerProcess, writers: list[Writer]) -> None:
    """All that was acknowledged, in order, once; at the end at most the request in doubt."""
    with contextlib.closing(server.client()) as client:
        for writer in writers:
            found = read_all(client, writer.path)
            allowed = (writer.expected(), writer.expected(writer.acknowledged + 1))
            assert found in allowed, (writer.label, len(found), writer.acknowledged, writer.size)
            headers = {"Producer-Id": "writer", "Producer-Epoch": "0"}
            headers["Producer-Seq"] = str(max(0, writer.acknowledged - 1))
            again = client.post(writer.path, b"again", headers=headers, content_type="text/plain")
            assert again.status == (204 if writer.acknowledged else 200), again
