"""Writers, readers and the checker of a soak: threads over one connection each."""

import base64
import json
import random
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.errors import BenchError
from bench.soak_content import Content
from bench.wire import BINARY, JSON, Connection, Reply, encode_request

BUCKET = "soak"
PIECE_BYTES = (0, 1000, 4000, 16_000)  # of one append; 0 is a single message
BATCH_FRAMES_MAX = 512
HOT_SHARE = 100  # one of so many streams gets half of all appends
FULL_SECONDS = 0.2
LONG_POLL = "2s"
SSE_BYTES_MAX = 2**20
MISMATCHES_MAX = 20


def path_of(stream: int) -> str:
    return f"/{BUCKET}/stream-{stream:07d}"


@dataclass
class Progress:
    """Shared by all threads; each number has one kind of writer, so a torn sum is a stale one."""

    given: "array[int]"  # messages of each stream that were acknowledged
    bytes_written: int = 0
    appends: int = 0
    full: int = 0  # appends answered with 503
    bytes_read: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    harm: dict[str, int] = field(default_factory=dict)  # by hostile clients
    mismatches: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    def differs(self, stream: int, first: int, mode: str, text: str) -> None:
        self.mismatches.append(f"{path_of(stream)} from message {first}, {mode}: {text}")
        if len(self.mismatches) >= MISMATCHES_MAX:
            self.ended.set()


class BodyConnection(Connection):
    """Keeps the body of the last answer."""

    body: bytes = b""

    def _skip_body(self, status: int, headers: dict[bytes, bytes]) -> int:
        if status in (204, 304):
            self.body = b""
        elif headers.get(b"transfer-encoding") == b"chunked":
            self.body = b"".join(iter(self._take_chunk, b""))
        else:
            self.body = self._take(int(headers.get(b"content-length", b"0")))
        return len(self.body)

    def head(self, request: bytes) -> Reply:
        """An answer without a body, whatever its Content-Length says."""
        self.send(request)
        head = self._read_until(b"\r\n\r\n").split(b"\r\n")
        return Reply(int(head[0].split(b" ", 2)[1]), {}, 0)

    def _take_chunk(self) -> bytes:
        size = int(self._read_until(b"\r\n").partition(b";")[0], 16)
        return self._take(size + 2)[:-2]

    def _take(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            if self._start == self._end:
                self._receive()
            end = min(self._end, self._start + length - len(parts))
            parts += self._view[self._start : end]
            self._start = end
        return bytes(parts)


class Writer:
    """Owns every `of`-th stream, so that nobody else decides what comes next in it."""

    def __init__(
        self, port: int, content: Content, progress: Progress, number: int, of: int, seed: int
    ) -> None:
        self._port = port
        self._content = content
        self._progress = progress
        self._streams = range(number, len(progress.given), of)
        self._dice = random.Random(f"{seed} writer {number}")

    def write(self, bytes_in_all: int, seconds: float) -> None:
        """So many bytes over so many seconds, or more when the server is slower."""
        began, written, turn = time.monotonic(), 0, 0
        with BodyConnection(self._port) as connection:
            while written < bytes_in_all and not self._progress.ended.is_set():
                hot = self._dice.random() < 0.5
                stream = self._streams[self._hot() if hot else turn % len(self._streams)]
                turn += not hot
                written += self._append(connection, stream)
                ahead = seconds * written / bytes_in_all - (time.monotonic() - began)
                if ahead > 0:
                    self._progress.ended.wait(ahead)

    def _hot(self) -> int:
        return self._dice.randrange(max(1, len(self._streams) // HOT_SHARE))

    def _append(self, connection: BodyConnection, stream: int) -> int:
        content, progress = self._content, self._progress
        count = self._dice.choice(PIECE_BYTES) // content.message_bytes(stream)
        messages = content.messages(
            stream, progress.given[stream], min(max(count, 1), BATCH_FRAMES_MAX)
        )
        request = self._encode(stream, messages)
        while (reply := connection.exchange(request)).status == 503:
            progress.full += 1
            time.sleep(FULL_SECONDS)
        if reply.status != 204:
            raise BenchError(
                f"append to {path_of(stream)}: {reply.status} {connection.body[:200]!r}"
            )
        size = sum(map(len, messages))
        progress.given[stream] += len(messages)
        with progress.lock:
            progress.bytes_written += size
            progress.appends += 1
        return size

    def _encode(self, stream: int, messages: list[bytes]) -> bytes:
        path = path_of(stream)
        if self._content.is_json(stream):
            return encode_request("POST", path, JSON, b"[%b]" % b",".join(messages))
        if len(messages) == 1:
            return encode_request("POST", path, BINARY, messages[0])
        body = b"".join(struct.pack(">I", len(message)) + message for message in messages)
        request = encode_request("POST", f"{path}/append-batch", BINARY, body)
        return request.replace(b"\r\n", b"\r\nPrefer: return=minimal\r\n", 1)


class Reader:
    """Reads what the writers wrote, in every way there is, and compares."""

    def __init__(
        self, port: int, content: Content, progress: Progress, number: int, seed: int
    ) -> None:
        self._port = port
        self._content = content
        self._progress = progress
        self._dice = random.Random(f"{seed} reader {number}")
        self._modes: dict[str, Callable[[int], None]] = {
            "catch-up": self._catch_up,
            "middle": self._middle,
            "now": self._now,
            "long-poll": self._long_poll,
            "sse": self._sse,
            "bootstrap": self._bootstrap,
            "head": self._head,
        }

    def read(self, pause_seconds: float) -> None:
        modes, streams = list(self._modes), len(self._progress.given)
        with BodyConnection(self._port) as self._connection:
            while not self._progress.ended.wait(pause_seconds):
                mode = self._dice.choice(modes)
                hot = self._dice.random() < 0.3
                stream = self._dice.randrange(max(1, streams // HOT_SHARE) if hot else streams)
                self._modes[mode](stream)
                with self._progress.lock:
                    self._progress.reads[mode] += 1

    def _catch_up(self, stream: int) -> None:
        read_whole(self._connection, self._content, self._progress, stream, is_final=False)

    def _middle(self, stream: int) -> None:
        first = self._dice.randint(0, self._progress.given[stream])
        self._compare_page(stream, first, "middle", f"offset={self._content.offset(stream, first)}")

    def _now(self, stream: int) -> None:
        given = self._progress.given[stream]
        reply = self._get(stream, "?offset=now")
        if int(reply.next_offset.partition("_")[0]) < given:
            self._progress.differs(stream, given, "now", f"next is {reply.next_offset}")

    def _long_poll(self, stream: int) -> None:
        first = self._progress.given[stream]
        offset = self._content.offset(stream, first)
        self._compare_page(stream, first, "long-poll", f"offset={offset}&live=long-poll")

    def _head(self, stream: int) -> None:
        reply = self._connection.head(encode_request("HEAD", path_of(stream)))
        if reply.status != 200:
            self._progress.differs(stream, 0, "head", f"status {reply.status}")

    def _bootstrap(self, stream: int) -> None:
        given = self._progress.given[stream]
        reply = self._get(stream, "/bootstrap")
        boundary = reply.headers[b"content-type"].rpartition(b"boundary=")[2]
        parts = self._connection.body.split(b"\r\n--" + boundary)
        found = [part.partition(b"\r\n\r\n")[2] for part in parts if b"\r\n\r\n" in part]
        found = found[1:]  # the first one is the snapshot, here an empty one
        with self._progress.lock:
            self._progress.bytes_read += len(self._connection.body)
        if len(found) < given:
            text = f"{len(found)} of {given} messages"
            self._progress.differs(stream, 0, "bootstrap", text)
        elif found != self._content.messages(stream, 0, len(found)):
            self._progress.differs(stream, 0, "bootstrap", "another content")

    def _sse(self, stream: int) -> None:
        """From somewhere to the tail, then hang up."""
        given = self._progress.given[stream]
        first = next_message = self._dice.randint(max(0, given - 200), given)
        path = f"{path_of(stream)}?offset={self._content.offset(stream, first)}&live=sse"
        received = 0
        with EventConnection(self._port) as connection:
            for kind, data in connection.events(encode_request("GET", path)):
                if kind == b"control":
                    if json.loads(data).get("upToDate") or received > SSE_BYTES_MAX:
                        break
                    continue
                body = data if self._content.is_json(stream) else base64.b64decode(data)
                received += len(body)
                if body != self._content.page(stream, next_message, len(body)):
                    self._progress.differs(stream, next_message, "sse", "another content")
                    break
                next_message += self._content.count(stream, len(body))
        with self._progress.lock:
            self._progress.bytes_read += received

    def _compare_page(self, stream: int, first: int, mode: str, query: str) -> None:
        self._get(stream, f"?{query}")
        body = self._connection.body
        with self._progress.lock:
            self._progress.bytes_read += len(body)
        if body and body != b"[]" and body != self._content.page(stream, first, len(body)):
            self._progress.differs(stream, first, mode, f"another content in {len(body)} bytes")

    def _get(self, stream: int, below: str) -> Reply:
        return get_until_taken(
            self._connection, encode_request("GET", path_of(stream) + below), self._progress
        )


class EventConnection(BodyConnection):
    """One SSE answer, chunk by chunk."""

    def events(self, request: bytes) -> Iterable[tuple[bytes, bytes]]:
        self.send(request)
        head = self._read_until(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise BenchError(f"SSE was answered with {head.splitlines()[0]!r}")
        is_chunked = b"chunked" in head.lower()
        pending = b""
        while True:
            if is_chunked:
                chunk = self._take_chunk()
            else:
                self._receive()
                chunk = self._take(self._end - self._start)
            if not chunk:
                return
            *whole, pending = (pending + chunk).split(b"\n\n")
            for event in whole:
                lines = event.split(b"\n")
                if lines[0].startswith(b"event: "):
                    data = b"\n".join(line.removeprefix(b"data:") for line in lines[1:])
                    yield lines[0].removeprefix(b"event: "), data


def get_until_taken(connection: BodyConnection, request: bytes, progress: Progress) -> Reply:
    while (reply := connection.exchange(request)).status == 503:
        progress.reads["full"] += 1
        time.sleep(FULL_SECONDS)
    if not reply.ok:
        line = request.partition(b"\r\n")[0]
        raise BenchError(f"{line!r}: {reply.status} {connection.body[:200]!r}")
    return reply


def read_whole(
    connection: BodyConnection, content: Content, progress: Progress, stream: int, *, is_final: bool
) -> None:
    """From the start to the tail, page by page; `is_final`: nothing more and nothing less."""
    given, position, offset = progress.given[stream], 0, "-1"
    mode = "final check" if is_final else "catch-up"
    while True:
        request = encode_request("GET", f"{path_of(stream)}?offset={offset}")
        reply = get_until_taken(connection, request, progress)
        body = connection.body
        with progress.lock:
            progress.bytes_read += len(body)
        if body != b"[]":
            if body != content.page(stream, position, len(body)):
                progress.differs(stream, position, mode, f"another content in {len(body)} bytes")
                return
            position += content.count(stream, len(body))
        if reply.up_to_date:
            break
        offset = reply.next_offset
    if position < given or (is_final and position != given):
        progress.differs(stream, position, mode, f"ends, but was given {given} messages")


def check_streams(port: int, content: Content, progress: Progress, streams: Iterable[int]) -> None:
    with BodyConnection(port) as connection:
        for stream in streams:
            if progress.ended.is_set():
                return
            read_whole(connection, content, progress, stream, is_final=True)
            with progress.lock:
                progress.reads["final check"] += 1
