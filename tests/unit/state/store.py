"""A state machine spoken to in few words, and the whole of its state as plain values."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import accumulate
from typing import Any

import msgspec

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.state.commands import (
    Append,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    PublishRuns,
    PublishSnapshot,
    TouchStream,
    TrimStream,
)
from millstream.state.images import encode_image, hot_content, image_of
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream
from millstream.state.subscription_images import encode_subscription
from tests.unit.state.content import Contents, Objects

NOW_MS = 1_750_000_000_000
TEXT, JSON = b"text/plain", b"application/json"


def ends_of(messages: tuple[bytes, ...]) -> bytes:
    return array("I", accumulate(map(len, messages))).tobytes() if len(messages) > 1 else b""


class Store:
    """Streams go by their path, and time stands until a test moves it."""

    def __init__(self) -> None:
        self.machine = StateMachine()
        self.now_ms = NOW_MS
        self.objects: Objects = {}

    def create(
        self, path: bytes, *messages: bytes, content_type: bytes = TEXT, **fields: Any
    ) -> Outcome:
        content = {"data": b"".join(messages), "ends": ends_of(messages), "count": len(messages)}
        return self.machine.apply(
            CreateStream(self.now_ms, path, content_type, **content, **fields)  # type: ignore[arg-type]
        )

    def fork(self, path: bytes, source: bytes, *messages: bytes, **fields: Any) -> Outcome:
        fields = {"lifetime_given": False, **fields}
        return self.create(path, *messages, fork_from=source, **fields)

    def append(self, path: bytes, *messages: bytes, **fields: Any) -> Outcome:
        if messages:
            fields = {"content_type": self[path].essence, **fields}
        return self.append_to(self[path].stream_id, *messages, **fields)

    def append_to(self, stream_id: int, *messages: bytes, **fields: Any) -> Outcome:
        data, ends, count = b"".join(messages), ends_of(messages), len(messages)
        return self.machine.apply(
            Append(self.now_ms, StreamId(stream_id), data, ends, count, **fields)
        )

    def produce(
        self, path: bytes, epoch: int, seq: int, by: bytes = b"p", **fields: Any
    ) -> Outcome:
        claim = {"producer_id": by, "producer_epoch": epoch, "producer_seq": seq}
        return self.append(path, b"x", **claim, **fields)

    def delete(self, path: bytes) -> Outcome:
        return self.machine.apply(DeleteStream(self.now_ms, self[path].stream_id))

    def touch(self, path: bytes) -> Outcome:
        return self.machine.apply(TouchStream(self.now_ms, self[path].stream_id))

    def expire(self, path: bytes) -> Outcome:
        return self.machine.apply(ExpireStream(self.now_ms, self[path].stream_id))

    def publish(
        self,
        path: bytes,
        ordinal: int,
        byte: int | None = None,
        blob: str = "blob",
        digest: str = "digest",
        **fields: Any,
    ) -> Outcome:
        """At a boundary of the stream; `byte` only for what is none."""
        if byte is None:
            byte = self[path].log.byte_at(ordinal)
        return self.publish_to(self[path].stream_id, ordinal, byte, blob, digest, **fields)

    def publish_to(
        self,
        stream_id: int,
        ordinal: int,
        byte: int,
        blob: str = "blob",
        digest: str = "digest",
        **fields: Any,
    ) -> Outcome:
        given = (StreamId(stream_id), ordinal, byte, blob, b"a/b; c=d", 4, digest)
        return self.machine.apply(PublishSnapshot(self.now_ms, *given, **fields))

    def create_bucket(self, name: bytes) -> Outcome:
        return self.machine.apply(CreateBucket(self.now_ms, name))

    def delete_bucket(self, name: bytes) -> Outcome:
        return self.machine.apply(DeleteBucket(self.now_ms, name))

    def flush(self, path: bytes, count: int | None = None) -> PublishRuns:
        """Publishes the oldest `count` unpublished messages as one run."""
        command = self.gathered(path, count)
        self.machine.apply(command)
        return command

    def gathered(self, path: bytes, count: int | None = None) -> PublishRuns:
        """The content is in its segment; nobody was told yet."""
        name = f"segment-{len(self.objects)}"
        return gather(self.machine, self.objects, name, [(self[path], count)], self.now_ms)

    def trim(self, path: bytes, ordinal: int) -> Outcome:
        window = Contents(self.machine, None, self.objects).window(self[path])
        byte = window.byte_at(ordinal)
        return self.machine.apply(TrimStream(self.now_ms, self[path].stream_id, ordinal, byte))

    def __getitem__(self, path: bytes) -> Stream:
        return self.machine.residents.by_path[path]

    def __contains__(self, path: bytes) -> bool:
        return path in self.machine.residents.by_path

    def messages(self, path: bytes) -> list[bytes]:
        return Contents(self.machine, None, self.objects).messages(self[path])


def gather(
    machine: StateMachine,
    objects: Objects,
    name: str,
    wanted: list[tuple[Stream, int | None]],
    now_ms: int,
) -> PublishRuns:
    """Runs of the oldest unpublished messages of streams of one shard, kept in `objects`."""
    runs: list[Run] = []
    contents = Contents(machine, None, objects)
    for stream, count in wanted:
        log = stream.log
        own = contents.own(stream)
        end = log.tail_ordinal if count is None else min(log.cold_ordinal + count, log.tail_ordinal)
        messages = tuple(own[ordinal][1] for ordinal in range(log.cold_ordinal, end))
        if messages:
            size = sum(len(message.data) for message in messages)
            place = log.cold_ordinal, log.cold_byte, len(messages), size, 0, len(runs), 0
            runs.append(Run(stream.stream_id, *place))
            objects[name, runs[-1]] = messages
    shard = wanted[0][0].stream_id % machine.shards if wanted else 0
    segment = Segment(name, shard, 1000, 100, sum(run.count for run in runs), now_ms)
    return PublishRuns(now_ms, segment, runs)


def blob_uses(machine: StateMachine) -> Counter[str]:
    """How many snapshots are each blob; the machine counts those beside the first."""
    uses = Counter(stream.snapshot.blob for stream in machine.by_id.values() if stream.snapshot)
    assert machine.shared_blobs.keys() <= uses.keys()
    assert all(machine.shared_blobs.get(blob, 1) == count for blob, count in uses.items())
    return uses


LOCAL = {  # each machine has its own
    "log",
    "accessed_ms",
    "epoch",
    "subscribers",
    "subscribers_as_of",
    "__weakref__",
}


def describe(machine: StateMachine, contents: Contents | None = None) -> dict[str, Any]:
    """Everything replay has to reach again; a field somebody adds to Stream is in here at once."""
    contents = contents or Contents(machine)
    residents = machine.residents
    assert {s.stream_id: s for s in residents.by_path.values()} == machine.by_id
    buckets = machine.names.buckets.values()
    return {
        "births": machine.births,
        "buckets": sorted((b.name, b.created_ms, b.streams) for b in buckets),
        "names": list(machine.names.keys_from(b"")),
        "system": (machine.system.by_path, machine.names.hidden),
        "shared_blobs": machine.shared_blobs,
        "access": (machine.access.is_used, machine.access.by_id),
        "hot_bytes": machine.changes.hot_bytes,
        "streams": {stream.path: _describe(stream, contents) for stream in contents.streams()},
    }


def _describe(stream: Stream, contents: Contents) -> dict[str, Any]:
    log = stream.log
    return {
        **{slot: getattr(stream, slot) for slot in Stream.__slots__ if slot not in LOCAL},
        "first": (log.first_ordinal, log.first_byte),
        "own": (log.own_ordinal, log.own_byte),
        "cold": (log.cold_ordinal, log.cold_byte),
        "tail": (log.tail_ordinal, log.tail_byte),
        "messages": None if stream.deleted else contents.entries(stream),
    }


def image_bytes(machine: StateMachine) -> bytes:
    """All that is kept of a machine whose streams are all in memory."""
    streams = [machine.by_id[stream_id] for stream_id in sorted(machine.by_id)]
    subscriptions = machine.subscriptions
    return msgspec.msgpack.encode(
        [
            machine.births,
            sorted((b.name, b.created_ms, b.streams) for b in machine.names.buckets.values()),
            list(machine.names.keys_from(b"")),
            sorted(machine.system.by_path.items()),
            sorted(machine.shared_blobs.items()),
            machine.changes.hot_bytes,
            [encode_image(image_of(stream)) for stream in streams],
            [hot_content(stream.stream_id, stream.log.unpublished()) for stream in streams],
            subscriptions.keys,
            [machine.access.encode(key_id) for key_id in sorted(machine.access.by_id)],
            [encode_subscription(each) for _, each in sorted(subscriptions.by_id.items())],
        ]
    )
