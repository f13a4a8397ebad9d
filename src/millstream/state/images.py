"""Turns the state into checkpoint blocks and back.

`capture` is quick and runs between two commands; encoding what it captured may then take its time
elsewhere, because content blocks are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from millstream.formats.checkpoint import (
    BUCKET,
    DATA,
    END,
    HEADER,
    STREAM,
    BucketImage,
    CheckpointEnd,
    CheckpointHeader,
    StreamImage,
    encode_block,
)
from millstream.state.log import Ends, Log, decode_ends
from millstream.state.machine import StateMachine
from millstream.state.stream import ForkOrigin, Producer, Snapshot, Stream
from millstream.state.subscription_images import (
    SUBSCRIPTION_KINDS,
    SubscriptionBlock,
    capture_subscriptions,
    restore_subscription_block,
)

_encode = msgspec.msgpack.encode
_stream_decoder = msgspec.msgpack.Decoder(StreamImage)


class CapturedStream(NamedTuple):
    image: StreamImage  # its blocks are still to be filled in
    datas: list[bytes]
    ends: list[Ends[int] | None]


class Capture(NamedTuple):
    next_stream_id: int
    buckets: list[BucketImage]
    streams: list[CapturedStream]
    subscriptions: list[SubscriptionBlock]


def capture(machine: StateMachine) -> Capture:
    """The whole state as it is now; later changes to the machine do not show in it."""
    return Capture(
        machine.next_stream_id,
        [BucketImage(b.name, b.created_ms) for b in machine.names.buckets.values()],
        [_capture_stream(stream) for stream in machine.by_id.values()],
        capture_subscriptions(machine.subscriptions),
    )


def _capture_stream(stream: Stream) -> CapturedStream:
    image = StreamImage(
        stream.stream_id,
        stream.path,
        stream.content_type,
        stream.created_ms,
        stream.last_write_ms,
        stream.ttl_ms,
        stream.expires_at_ms,
        stream.lifetime_given,
        stream.touched_ms,
        stream.closed,
        stream.deleted,
        stream.forks,
        stream.origin,
        None if stream.producers is None else dict(stream.producers),
        stream.stream_seq,
        [],
        stream.log.first_ordinal,
        stream.log.first_byte,
        stream.snapshot,
    )
    return CapturedStream(image, stream.log.datas[:], stream.log.ends[:])


def encode_capture(captured: Capture, store_id: str, lsn: int) -> Iterator[bytes]:
    """The blocks of a checkpoint file, one at a time. Content shared by forks is written once."""
    header = CheckpointHeader(1, store_id, lsn, captured.next_stream_id)
    yield encode_block(HEADER, _encode(header))
    for bucket in captured.buckets:
        yield encode_block(BUCKET, _encode(bucket))
    numbers: dict[int, int] = {}  # id of a bytes object -> DATA number
    for stream in captured.streams:
        for data, ends in zip(stream.datas, stream.ends, strict=True):
            number = numbers.get(id(data))
            if number is None:
                number = numbers[id(data)] = len(numbers)
                yield encode_block(DATA, data)
            count = 1 if ends is None else len(ends)
            encoded_ends = b"" if ends is None else ends.tobytes()
            stream.image.blocks.append((number, count, encoded_ends))
        yield encode_block(STREAM, _encode(stream.image))
    for kind, image in captured.subscriptions:
        yield encode_block(kind, _encode(image))
    others = len(captured.buckets) + len(captured.subscriptions)
    end = CheckpointEnd(len(numbers), len(captured.streams), others)
    yield encode_block(END, _encode(end))


class Restorer:
    """Builds a state machine from a checkpoint's blocks, in file order."""

    def __init__(self) -> None:
        self.machine = StateMachine()
        self.header: CheckpointHeader | None = None
        self._datas: list[bytes] = []
        self._streams = 0
        self._others = 0

    def add(self, kind: int, payload: bytes) -> None:
        """Raises ValueError (msgspec's included) when the block makes no sense here."""
        if kind == HEADER:
            self.header = msgspec.msgpack.decode(payload, type=CheckpointHeader)
            self.machine.next_stream_id = self.header.next_stream_id
        elif kind == DATA:
            self._datas.append(payload)
        elif kind == BUCKET:
            bucket = msgspec.msgpack.decode(payload, type=BucketImage)
            self.machine.names.add_bucket(bucket.name, bucket.created_ms)
            self._others += 1
        elif kind == STREAM:
            self._add_stream(_stream_decoder.decode(payload))
        elif kind in SUBSCRIPTION_KINDS:
            restore_subscription_block(self.machine.subscriptions, kind, payload)
            self._others += 1
        elif kind == END:
            end = msgspec.msgpack.decode(payload, type=CheckpointEnd)
            if end != CheckpointEnd(len(self._datas), self._streams, self._others):
                raise ValueError("the end block counts other blocks than the file holds")
        else:
            raise ValueError(f"a block of the unknown kind {kind}")

    def _add_stream(self, image: StreamImage) -> None:
        stream = Stream(image.stream_id, image.path, image.content_type, image.created_ms)
        stream.last_write_ms = image.last_write_ms
        stream.set_lifetime(image.ttl_ms, image.expires_at_ms)
        stream.lifetime_given = image.lifetime_given
        stream.touched_ms = stream.accessed_ms = image.touched_ms
        stream.closed = image.closed
        stream.deleted = image.deleted
        stream.forks = image.forks
        stream.origin = None if image.origin is None else ForkOrigin(*image.origin)
        if image.producers is not None:
            stream.producers = {k: Producer(*v) for k, v in image.producers.items()}
        stream.stream_seq = image.stream_seq
        stream.log = self._restore_log(image)
        if image.snapshot is not None:
            stream.snapshot = Snapshot(*image.snapshot)
            uses = self.machine.blob_uses
            uses[stream.snapshot.blob] = uses.get(stream.snapshot.blob, 0) + 1
        if not stream.deleted:
            self.machine.names.add(stream.path, stream.created_ms)
        self.machine.by_id[stream.stream_id] = stream
        self.machine.by_path[stream.path] = stream
        self._streams += 1

    def _restore_log(self, image: StreamImage) -> Log:
        log = Log()
        log.start_at(image.first_ordinal, image.first_byte)
        for number, count, encoded_ends in image.blocks:
            log.append(self._datas[number], decode_ends(encoded_ends), count)
        return log
