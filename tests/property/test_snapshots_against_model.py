"""Appends, batches, snapshots, forks and bootstraps in any order, against a model; restarts too.

Clients bootstrap at some moment and tail from there, while snapshots are published under them. At
the end of every chapter each of them must know exactly what the model knows.
"""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterator
from functools import singledispatchmethod

from hypothesis import given, settings

from tests.conformance.api import Events
from tests.conformance.multipart import bootstrap
from tests.property.driver import Server
from tests.property.snapshot_model import (
    BINARY,
    JSON,
    SNAPSHOT_TYPE,
    STREAMS,
    TEXT,
    Append,
    Batch,
    Bootstrap,
    CatchUp,
    Chapter,
    Delete,
    Follow,
    Fork,
    Model,
    Operation,
    Publish,
    Read,
    Story,
    Stream,
    stories,
)
from tests.property.test_against_model import COMMON
from tests.support.http import Client, Event, Reply

FOLLOWERS_MAX = 3


class Follower:
    """A client as the protocol describes it: bootstrap, tail, bootstrap again after 410."""

    def __init__(self, server: Server, path: str, kind: str) -> None:
        self.server, self.path, self.kind = server, path, kind
        self.events: Events | None = None
        self.unread: Iterator[Event] = iter(())
        self.bootstrap()

    def bootstrap(self) -> None:
        found = bootstrap(self.server.client, self.path)
        self.state = found.snapshot.body + Stream(self.kind).wire(found.messages)
        self.offset = found.next_offset

    def tail(self) -> None:
        self.close()
        client = self.server.client
        query = f"{self.path}?offset={self.offset}&live=sse"
        self.events = Events(client.host, client.port, query)
        if self.events.status == 410:
            self.close()
            self.bootstrap()
            self.tail()
            return
        assert self.events.status == 200
        self.unread = iter(self.events)

    def catch_up(self, offset: str) -> None:
        """Until everything before this offset is known."""
        if self.events is None:
            self.tail()
        for _ in range(10_000):
            if self.offset == offset:
                return
            event = next(self.unread, None)
            if event is None:
                self.tail()  # ended by the server: what comes next was replaced by a snapshot
            elif event.kind == "data":
                self.state += self.decode(event.data)
            elif event.kind == "control":
                self.offset = event.json()["streamNextOffset"]
        raise AssertionError(f"{self.path} never reaches {offset}, now at {self.offset}")

    def decode(self, data: str) -> bytes:
        if self.kind == BINARY:
            return base64.b64decode(data.replace("\n", ""), validate=True)
        return data.encode()[1:-1] + b"," if self.kind == JSON else data.encode()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()
        self.events = None


class Driver:
    def __init__(self, server: Server) -> None:
        self.server, self.model = server, Model()
        self.client.close()  # every example opens a connection of its own
        self.bucket = f"/{uuid.uuid4().hex}"
        assert self.client.put(self.bucket).status == 201
        self.followers = list[Follower]()

    @property
    def client(self) -> Client:
        return self.server.client

    def path(self, stream: int) -> str:
        return f"{self.bucket}/s{stream}"

    def tell(self, story: Story) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.close_followers)
            for stream, kind in enumerate(story.kinds):
                assert self.client.put(self.path(stream), content_type=kind).status == 201
                self.model.streams[self.path(stream)] = Stream(kind)
            for chapter in story.chapters:
                self.tell_chapter(chapter)

    def tell_chapter(self, chapter: Chapter) -> None:
        for operation in chapter.operations:
            self.do(operation)
        self.server.restart(chapter.ending)
        if self.server.data_dir is not None:
            self.close_followers()
        for stream in range(STREAMS):
            self.bootstrap(Bootstrap(stream))
        self.catch_up(CatchUp())
        listed = self.client.get(f"{self.bucket}/streams").json()["streams"]
        assert {
            f"{self.bucket}/{entry['stream_id']}": int(entry["tail_offset"].partition("_")[2])
            for entry in listed
        } == {
            path: len(stream.state())
            for path, stream in self.model.streams.items()
            if not stream.deleted
        }

    def close_followers(self) -> None:
        for follower in self.followers:
            follower.close()

    def is_missing(self, path: str, *replies: Reply) -> bool:
        """Whether there is no such stream; then every one of these must say so."""
        if self.model.live(path) is not None:
            return False
        for reply in replies:
            assert reply.status == self.model.missing_status(path), reply
        return True

    @singledispatchmethod
    def do(self, operation: Operation) -> None:
        raise NotImplementedError(operation)

    @do.register
    def append(self, operation: Append) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        kind = TEXT if stream is None else stream.kind
        body = fitting(kind, operation.body)
        reply = self.client.post(path, body, content_type=kind)
        if stream is None:
            assert self.is_missing(path, reply)
            return
        stream.messages += messages_in(kind, body)
        assert (reply.status, reply.next_offset) == (204, stream.tail)

    @do.register
    def batch(self, operation: Batch) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        kind = TEXT if stream is None else stream.kind
        payloads = [fitting(kind, frame) for frame in operation.frames]
        headers = {"Content-Type": kind}
        if operation.retries:
            payloads = [payload for payload in payloads if payload] or [b"1"]
            seq = 0 if stream is None else stream.producer_seq + 1
            headers |= {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
        body = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
        replies = [
            self.client.post(f"{path}/append-batch", body, headers=headers)
            for _ in range(1 + operation.retries)
        ]
        found = [
            [(ack["status"], ack.get("stream_next_offset")) for ack in reply.json()]
            for reply in replies
        ]
        if stream is None:
            status = self.model.missing_status(path)
            assert found == [[(status, None)] * len(payloads)] * len(replies)
            return
        expected = list[tuple[int, str | None]]()
        for payload in payloads:
            stream.messages += messages_in(kind, payload)
            expected.append((204, stream.tail) if payload else (400, None))
        stream.producer_seq += 1 if operation.retries else 0
        assert found == [expected] * len(replies)

    @do.register
    def publish(self, operation: Publish) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        if stream is None:
            reply = self.client.put(f"{path}/snapshot/{Stream(TEXT).tail}", b"x")
            assert self.is_missing(path, reply)
            return
        count = len(stream.messages)
        place = stream.first + operation.place % (count - stream.first + 1)
        if operation.flaw in ("again", "rival"):
            if stream.snapshot is None:
                return
            place = stream.snapshot
        offset, status = stream.offset(place), 204
        body = stream.state(place)
        if operation.flaw == "rival":
            body, status = b"rival" + body, 409
        elif operation.flaw == "gone":
            if not stream.first:
                return
            offset, status = stream.offset(operation.place % stream.first), 410
        elif operation.flaw == "beyond":
            offset, status = f"{count + 1:016d}_{len(stream.state()) + 1:016d}", 409
        elif operation.flaw == "misaligned":
            if place == count or len(stream.messages[place]) < 2:
                return
            offset, status = f"{place:016d}_{len(body) + 1:016d}", 400
        reply = self.client.put(f"{path}/snapshot/{offset}", body, content_type=SNAPSHOT_TYPE)
        assert reply.status == status, (reply, stream)
        if status == 204:
            stream.first = stream.snapshot = place
            assert reply.next_offset == stream.tail
        elif status == 410:
            assert reply.headers["stream-earliest-offset"] == stream.earliest

    @do.register
    def fork(self, operation: Fork) -> None:
        path, source_path = self.path(operation.stream), self.path(operation.source)
        source = self.model.live(source_path)
        if path in self.model.streams or source is None:
            return
        headers = {"Stream-Forked-From": source_path}
        place = len(source.messages)
        if operation.place is not None:
            place = source.first + operation.place % (place - source.first + 1)
            if operation.below and source.first:
                place = operation.place % source.first
            headers["Stream-Fork-Offset"] = source.offset(place)
        reply = self.client.put(path, headers=headers)
        if place < source.first:
            assert reply.status == 410
            assert reply.headers["stream-earliest-offset"] == source.earliest
            return
        fork = self.model.streams[path] = source.fork(source_path, place)
        source.forks += 1
        assert (reply.status, reply.next_offset) == (201, fork.tail)

    @do.register
    def delete(self, operation: Delete) -> None:
        path = self.path(operation.stream)
        reply = self.client.delete(path)
        if self.is_missing(path, reply):
            return
        assert reply.status == 204
        self.model.delete(path)
        for follower in [each for each in self.followers if each.path == path]:
            follower.close()
            self.followers.remove(follower)

    @do.register
    def bootstrap(self, operation: Bootstrap) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        if stream is None:
            below = ("", "/bootstrap", "/snapshot")
            assert self.is_missing(path, *[self.client.get(path + each) for each in below])
            return
        found = bootstrap(self.client, path)
        latest, head = self.client.get(f"{path}/snapshot"), self.client.head(path)
        assert found.messages == stream.messages[stream.first :]
        assert {part.content_type for part in found.updates} <= {stream.kind}
        assert found.next_offset == head.next_offset == stream.tail
        if stream.snapshot is None:
            assert (found.snapshot_offset, found.snapshot.body) == ("-1", b"")
            assert found.snapshot.content_type == BINARY
            assert latest.status == 404
            assert "stream-snapshot-offset" not in head.headers
            return
        offset = stream.offset(stream.snapshot)
        assert found.snapshot_offset == head.headers["stream-snapshot-offset"] == offset
        assert latest.headers["location"].endswith(f"{path}/snapshot/{offset}")
        read = self.client.get(f"{path}/snapshot/{offset}")
        assert read.body == found.snapshot.body == stream.state(stream.snapshot)
        assert read.headers["content-type"] == found.snapshot.content_type == SNAPSHOT_TYPE
        up_to_date = stream.snapshot == len(stream.messages)
        assert read.headers["stream-up-to-date"] == ("true" if up_to_date else "false")

    @do.register
    def read(self, operation: Read) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        if stream is None:
            return
        count = len(stream.messages)
        place = operation.place % (count + 1)
        query = f"{path}?offset={stream.offset(place)}&max_bytes={operation.max_bytes}"
        for live in ("", "&live=long-poll&timeout_ms=1"):
            page = self.client.get(query + live)
            if place < stream.first:
                assert page.status == 410
                assert page.headers["stream-earliest-offset"] == stream.earliest
                continue
            end = int(page.next_offset.split("_")[0])
            assert page.next_offset == stream.offset(end)
            if live and place == count:
                assert page.status == 204
            else:
                assert (page.status, page.body) == (200, stream.body(place, end))
            assert end > place or place == count
        whole = self.client.get(path)
        assert whole.status == (410 if stream.first else 200)

    @do.register
    def follow(self, operation: Follow) -> None:
        path = self.path(operation.stream)
        stream = self.model.live(path)
        if stream is None or len(self.followers) == FOLLOWERS_MAX:
            return
        follower = Follower(self.server, path, stream.kind)
        self.followers.append(follower)
        assert (follower.state, follower.offset) == (stream.state(), stream.tail)
        if operation.tails:
            follower.tail()

    @do.register
    def catch_up(self, operation: CatchUp) -> None:
        for follower in self.followers:
            stream = self.model.streams[follower.path]
            follower.catch_up(stream.tail)
            assert follower.state == stream.state()


def fitting(kind: str, body: bytes) -> bytes:
    """The same idea as a body of this kind: in JSON a string, or an array of its lines."""
    if kind == TEXT:
        return body.replace(b"\r", b"")  # which no event stream can carry
    if kind != JSON or not body:
        return body
    lines = [b'"%d %d"' % (number, len(line)) for number, line in enumerate(body.split(b"\n"))]
    return lines[0] if len(lines) == 1 else b"[" + b" , ".join(lines) + b"]"


def messages_in(kind: str, body: bytes) -> list[bytes]:
    if not body:
        return []
    if kind == JSON and body.startswith(b"["):
        return body[1:-1].split(b" , ")
    return [body]


@settings(COMMON, max_examples=120)
@given(story=stories(2, 30, ("goes on",)))
def test_the_memory_journal_agrees_with_the_model(memory_server: Server, story: Story) -> None:
    Driver(memory_server).tell(story)


@settings(COMMON, max_examples=20)
@given(story=stories(3, 20, ("SIGTERM", "kill -9")))
def test_the_durable_journal_agrees_with_the_model_across_restarts(
    wal_server: Server, story: Story
) -> None:
    Driver(wal_server).tell(story)


@settings(COMMON, max_examples=6)
@given(story=stories(3, 20, ("SIGTERM", "kill -9")))
def test_a_server_with_nearly_everything_cold_agrees_with_the_model_across_restarts(
    cold_server: Server, story: Story
) -> None:
    Driver(cold_server).tell(story)


@settings(COMMON, max_examples=10)
@given(story=stories(2, 40, ("goes on", "goes on", "goes on", "kill -9")))
def test_a_server_with_nearly_everything_cold_agrees_with_the_model_as_it_goes(
    cold_server: Server, story: Story
) -> None:
    Driver(cold_server).tell(story)


@settings(COMMON, max_examples=5)
@given(story=stories(2, 20, ("goes on", "SIGTERM", "kill -9")))
def test_a_server_with_nearly_everything_on_s3_agrees_with_the_model(
    s3_server: Server, story: Story
) -> None:
    Driver(s3_server).tell(story)
