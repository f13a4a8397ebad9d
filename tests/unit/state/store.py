"""A state machine spoken to in few words, and the whole of its state as plain values."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import Any

from millstream.state.commands import (
    Append,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    PublishSnapshot,
    TouchStream,
)
from millstream.state.images import capture, encode_capture
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream

NOW_MS = 1_750_000_000_000
TEXT, JSON = b"text/plain", b"application/json"


def ends_of(messages: tuple[bytes, ...]) -> bytes:
    return array("I", accumulate(map(len, messages))).tobytes() if len(messages) > 1 else b""


class Store:
    """Streams go by their path, and time stands until a test moves it."""

    def __init__(self) -> None:
        self.machine = StateMachine()
        self.now_ms = NOW_MS

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
        return self.machine.apply(Append(self.now_ms, stream_id, data, ends, count, **fields))

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
    ) -> Outcome:
        """At a boundary of the stream; `byte` only for what is none."""
        if byte is None:
            byte = self[path].log.byte_at(ordinal)
        return self.publish_to(self[path].stream_id, ordinal, byte, blob, digest)

    def publish_to(
        self, stream_id: int, ordinal: int, byte: int, blob: str = "blob", digest: str = "digest"
    ) -> Outcome:
        fields = (stream_id, ordinal, byte, blob, b"a/b; c=d", 4, digest)
        return self.machine.apply(PublishSnapshot(self.now_ms, *fields))

    def create_bucket(self, name: bytes) -> Outcome:
        return self.machine.apply(CreateBucket(self.now_ms, name))

    def delete_bucket(self, name: bytes) -> Outcome:
        return self.machine.apply(DeleteBucket(self.now_ms, name))

    def __getitem__(self, path: bytes) -> Stream:
        return self.machine.by_path[path]

    def __contains__(self, path: bytes) -> bool:
        return path in self.machine.by_path

    def messages(self, path: bytes) -> list[bytes]:
        return messages_of(self[path])


def messages_of(stream: Stream) -> list[bytes]:
    log = stream.log
    bounds = [log.byte_at(ordinal) for ordinal in range(log.first_ordinal, log.tail_ordinal + 1)]
    assert (bounds[0], bounds[-1]) == (log.first_byte, log.tail_byte)
    whole = b"".join(log.slices(log.first_byte, log.tail_byte))
    return [whole[a - log.first_byte : b - log.first_byte] for a, b in pairwise(bounds)]


def describe(machine: StateMachine) -> dict[str, Any]:
    """Everything replay has to reach again; a field somebody adds to Stream is in here at once."""
    assert {s.stream_id: s for s in machine.by_path.values()} == machine.by_id
    local = {"log", "accessed_ms"}
    return {
        "next_stream_id": machine.next_stream_id,
        "buckets": [(b.name, b.created_ms, b.streams) for b in machine.names.buckets.values()],
        "names": list(machine.names.keys_from(b"")),
        "blob_uses": machine.blob_uses,
        "streams": {
            path: {
                **{slot: getattr(stream, slot) for slot in Stream.__slots__ if slot not in local},
                "earliest": stream.earliest,
                "messages": messages_of(stream),
            }
            for path, stream in machine.by_path.items()
        },
    }


def image_bytes(machine: StateMachine) -> bytes:
    return b"".join(encode_capture(capture(machine), "0" * 32, 1))
