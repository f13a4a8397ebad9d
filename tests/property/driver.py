"""Does to a real server and to the model the same things, and compares what they answer."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterator
from functools import singledispatchmethod
from pathlib import Path

from tests.conformance.api import Events
from tests.property.model import JSON, Answer, ForkFrom, Model, Producer, Stream
from tests.property.operations import (
    STREAMS,
    Append,
    Chapter,
    Create,
    Delete,
    Fork,
    Misread,
    Operation,
    Read,
    Story,
)
from tests.support.http import Client, Reply
from tests.support.server import ServerProcess

# Log files so small that segments roll and checkpoints happen all the time.
SMALL_LOG = ("--wal-segment-bytes", "65536", "--checkpoint-wal-bytes", "200000")


PAGES_MAX = 12


class Server:
    """A server that can be ended and brought back; the memory journal is never ended."""

    def __init__(self, data_dir: Path | None, *flags: str) -> None:
        self.data_dir = data_dir
        self.flags = () if data_dir is None else (*SMALL_LOG, *flags)
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(self.data_dir, *self.flags)
        self.client = self.process.client()

    def restart(self, ending: str) -> None:
        if self.data_dir is None or ending == "goes on":
            return
        self.client.close()
        if ending == "SIGTERM":
            assert self.process.stop() == 0
        else:
            self.process.kill()
        self.start()

    def close(self) -> None:
        self.client.close()
        self.process.kill()


class Driver:
    """One example: four stream names of its own, and a model that knows only them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.model = Model()
        self.prefix = f"/v1/stream/{uuid.uuid4().hex}"
        self.tags = dict[str, tuple[str, Stream, str, bool]]()
        self.client.close()  # every example opens a connection of its own

    @property
    def client(self) -> Client:
        return self.server.client

    def path(self, stream: int) -> str:
        return f"{self.prefix}-{stream}"

    def tell(self, story: Story) -> None:
        for stream, kind in enumerate(story.kinds):
            self.do(Create(stream, kind, body=None, closed=False, lifetime=None))
        for chapter in story.chapters:
            self.tell_chapter(chapter)

    def tell_chapter(self, chapter: Chapter) -> None:
        for operation in chapter.operations:
            self.do(operation)
        self.server.restart(chapter.ending)
        for stream in range(STREAMS):
            self.read(Read(stream, offset=0, max_bytes=10**6))

    @singledispatchmethod
    def do(self, operation: Operation) -> None:
        raise NotImplementedError(operation)

    @do.register
    def create(self, operation: Create) -> None:
        path = self.path(operation.stream)
        messages = [] if operation.body is None else operation.body.messages(operation.kind)
        expected = self.model.create(
            path, operation.kind, messages, operation.closed, operation.lifetime, None
        )
        headers = {"Content-Type": operation.kind}
        self.put(path, operation, encode(operation.kind, messages), expected, headers)

    @do.register
    def fork(self, operation: Fork) -> None:
        path, source_path = self.path(operation.stream), self.path(operation.source)
        source = self.model.streams.get(source_path)
        if path == source_path:
            return
        length = 0 if source is None else len(source.messages)
        offset = None if operation.offset is None else operation.offset % (length + 1)
        if operation.beyond:
            offset = length + 1
        headers = {"Stream-Forked-From": source_path}
        if offset is not None:
            headers["Stream-Fork-Offset"] = spell(source, offset)
        if operation.sub_offset:
            headers["Stream-Fork-Sub-Offset"] = str(operation.sub_offset)
        if operation.kind is not None:
            headers["Content-Type"] = operation.kind
        kind = operation.kind or ("" if source is None else source.content_type)
        messages = [] if operation.body is None or not kind else operation.body.messages(kind)
        fork_from = ForkFrom(source_path, offset, operation.sub_offset)
        expected = self.model.create(
            path, operation.kind, messages, operation.closed, operation.lifetime, fork_from
        )
        self.put(path, operation, encode(kind, messages), expected, headers)

    def put(
        self,
        path: str,
        operation: Create | Fork,
        body: bytes | None,
        expected: Answer | None,
        headers: dict[str, str],
    ) -> None:
        if expected is None:
            return
        if operation.closed:
            headers["Stream-Closed"] = "true"
        if operation.lifetime is not None:
            name = "Stream-TTL" if operation.lifetime.isdigit() else "Stream-Expires-At"
            headers[name] = operation.lifetime
        check(self.client.put(path, body, headers=headers), expected)

    @do.register
    def append(self, operation: Append) -> None:
        path = self.path(operation.stream)
        stream = self.model.streams.get(path)
        kind = "text/plain" if stream is None else stream.content_type
        if operation.wrong_kind:
            kind = "application/x-other"
        broken = operation.broken and kind == JSON
        messages = [] if operation.body is None or broken else operation.body.messages(kind)
        producer = self.producer(operation, stream)
        seq = None if operation.body is None else operation.seq
        expected = self.model.append(path, kind, messages, broken, operation.close, producer, seq)
        headers = {"Stream-Closed": "true"} if operation.close else {}
        if producer is not None:
            headers["Producer-Id"] = producer.name
            headers["Producer-Epoch"] = str(producer.epoch)
            headers["Producer-Seq"] = str(producer.seq)
        if seq is not None:
            headers["Stream-Seq"] = seq
        body = b'{"broken' if broken else encode(kind, messages)
        check(self.client.post(path, body, headers=headers, content_type=kind), expected)

    def producer(self, operation: Append, stream: Stream | None) -> Producer | None:
        if operation.producer is None:
            return None
        known = {} if stream is None else stream.producers
        epoch, last = known.get(operation.producer, (1, -1))
        epoch += operation.epoch_step
        fresh = operation.epoch_step > 0 and operation.seq_step == 1
        seq = 0 if fresh else max(0, last + operation.seq_step)
        return Producer(operation.producer, max(0, epoch), seq)

    @do.register
    def delete(self, operation: Delete) -> None:
        path = self.path(operation.stream)
        check(self.client.delete(path), self.model.delete(path))

    @do.register
    def misread(self, operation: Misread) -> None:
        path = self.path(operation.stream)
        stream = self.model.streams.get(path)
        if stream is None or stream.deleted:
            return
        ordinal = max(0, len(stream.messages) // 2 + operation.ordinal_step)
        byte = max(0, int(spell(stream, ordinal).split("_")[1]) + operation.byte_step)
        offset = f"{ordinal:016d}_{byte:016d}"
        real = {stream.offset(place) for place in range(len(stream.messages) + 1)}
        behind = {one_byte_behind(place) for place in real}  # means that place too
        for live in ("", "&live=long-poll&timeout_ms=1"):
            refused = self.client.get(f"{path}?offset={offset}{live}").status == 400
            assert refused == (offset not in real | behind), offset

    @do.register
    def read(self, operation: Read) -> None:
        path = self.path(operation.stream)
        expected = self.model.look(path)
        check(self.client.head(path), expected)
        if expected.status != 200:
            assert self.client.get(path).status == expected.status
            return
        stream = self.model.streams[path]
        start = operation.offset % (len(stream.messages) + 1)
        self.read_pages(path, stream, start, operation.max_bytes)
        self.read_long_poll(path, stream, start)
        self.read_events(path, stream, start)
        self.read_again(path, stream)

    def read_pages(self, path: str, stream: Stream, start: int, max_bytes: int) -> None:
        place, pages = start, 0
        while True:
            pages += 1
            if pages == PAGES_MAX:
                max_bytes = 10**6  # enough of the small ones
            page = self.client.get(f"{path}?offset={stream.offset(place)}&max_bytes={max_bytes}")
            end = int(page.next_offset.split("_")[0])
            assert (page.status, page.next_offset) == (200, stream.offset(end))
            assert page.body == stream.body(place, end)
            assert end - place <= 1 or sum(map(len, stream.messages[place:end])) <= max_bytes
            assert page.headers["stream-end-offset"] == stream.tail
            at_tail = end == len(stream.messages)
            assert ("stream-up-to-date" in page.headers) == at_tail
            assert ("stream-closed" in page.headers) == (at_tail and stream.closed)
            if at_tail:
                return
            assert end > place
            place = end

    def read_long_poll(self, path: str, stream: Stream, start: int) -> None:
        offset = stream.offset(start)
        polled = self.client.get(f"{path}?offset={offset}&live=long-poll&timeout_ms=1")
        at_tail = start == len(stream.messages)
        check(polled, Answer(204 if at_tail else 200, stream.tail, stream.closed))
        assert polled.body == (b"" if at_tail else stream.body(start, len(stream.messages)))

    def read_events(self, path: str, stream: Stream, start: int) -> None:
        """Every control event names the place that the data events before it have led to."""
        query = f"{path}?offset={stream.offset(start)}&live=sse"
        place = start
        with contextlib.closing(Events(self.client.host, self.client.port, query)) as events:
            assert events.status == 200
            data: bytes | None = None
            for event in events.until_up_to_date():
                if event.kind == "data":
                    assert data is None
                    data = decode(stream, event.data)
                    continue
                control = event.json()
                end = int(control["streamNextOffset"].split("_")[0])
                assert control["streamNextOffset"] == stream.offset(end)
                assert data == (None if end == place else stream.body(place, end))
                place, data = end, None
            assert place == len(stream.messages)
            assert control.get("streamClosed", False) == stream.closed
            if stream.closed:
                assert list(events) == []

    def read_again(self, path: str, stream: Stream) -> None:
        """A tag from an earlier read is good exactly as long as nothing has changed."""
        state = (stream.tail, stream.closed)
        known = self.tags.get(path)
        if known is not None:
            tag, owner, *then = known
            same = owner is stream and tuple(then) == state
            reply = self.client.get(path, headers={"If-None-Match": tag})
            assert reply.status == (304 if same else 200)
        reply = self.client.get(path)
        assert reply.body == stream.body(0, len(stream.messages))
        self.tags[path] = (reply.headers["etag"], stream, *state)


def spell(stream: Stream | None, ordinal: int) -> str:
    """The offset after that many messages, even where there are not so many."""
    if stream is None:
        stream = Stream("text/plain")
    missing = max(0, ordinal - len(stream.messages))
    count, byte = map(int, stream.offset(ordinal - missing).split("_"))
    return f"{count + missing:016d}_{byte + missing:016d}"


def encode(content_type: str, messages: list[bytes]) -> bytes | None:
    if not messages:
        return None
    return b"[" + b" , ".join(messages) + b"]" if content_type == JSON else b"".join(messages)


def decode(stream: Stream, data: str) -> bytes:
    is_text = stream.content_type in ("text/plain", JSON)
    return data.encode() if is_text else base64.b64decode(data.replace("\n", ""), validate=True)


def one_byte_behind(offset: str) -> str:
    ordinal, _, byte = offset.partition("_")
    return f"{ordinal}_{int(byte) + 1:016d}"


def check(reply: Reply, expected: Answer) -> None:
    assert reply.status == expected.status, (reply, expected)
    if expected.next_offset is not None:
        assert reply.next_offset == expected.next_offset, (reply, expected)
        assert ("stream-closed" in reply.headers) == expected.closed, (reply, expected)
    for name, value in expected.headers:
        assert reply.headers.get(name) == value, (reply, expected)


@contextlib.contextmanager
def running(data_dir: Path | None, *flags: str) -> Iterator[Server]:
    server = Server(data_dir, *flags)
    try:
        yield server
    finally:
        server.close()
