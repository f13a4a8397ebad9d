"""Turns streams into what is kept of them, and back."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec

from millstream.formats.blocks import Block, Times, decode_ends
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.layout import StreamId
from millstream.state.log import Log
from millstream.state.rules import Rules
from millstream.state.stream import ForkOrigin, Hinted, Producer, Snapshot, Stream

_encode = msgspec.msgpack.Encoder().encode
encode_image = _encode
_decode_rules = msgspec.msgpack.Decoder(Rules).decode
_image_decoder = msgspec.msgpack.Decoder(StreamImage)
decode_image = _image_decoder.decode


def image_of(stream: Stream) -> StreamImage:
    """As it is now; later changes to the stream do not show."""
    log = stream.log
    return StreamImage(
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
        None if stream.producers is None else stream.producers.copy(),  # type: ignore[arg-type]
        stream.stream_seq,
        stream.snapshot,
        log.first,
        log.own,
        log.cold,
        log.tail,
        None if stream.rules is None else _encode(stream.rules),
        stream.hinted,
    )


class Restored(NamedTuple):
    stream: Stream
    missing_bytes: int  # unpublished content that was not with the image


def restore_stream(encoded: bytes) -> Restored:
    """The stream as it was kept, holding no content; its log ends where the cold content ends.

    Content behind that is in a checkpoint file (`restore_hot`), or lost with the machine that held
    it (`forget_tail`). Raises msgspec.DecodeError or ValidationError.
    """
    image = _image_decoder.decode(encoded)
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
    stream.snapshot = None if image.snapshot is None else Snapshot(*image.snapshot)
    stream.rules = None if image.rules is None else _decode_rules(image.rules)
    stream.hinted = Hinted(*image.hinted)
    stream.log = _restore_log(image)
    return Restored(stream, image.tail.byte - image.cold.byte)


def _restore_log(image: StreamImage) -> Log:
    log = Log()
    log.start_at(image.cold)
    log.first_ordinal, log.first_byte = image.first
    log.own_ordinal, log.own_byte = image.own
    return log


def forget_tail(stream: Stream) -> None:
    """Acknowledgements of what is lost must not make a retry look like a duplicate."""
    log = stream.log
    stream.closed = False  # it may be written again up to its end
    if stream.producers is not None:
        kept = {k: p for k, p in stream.producers.items() if p.byte <= log.tail_byte}
        stream.producers = kept or None


def hot_content(stream_id: StreamId, blocks: list[Block]) -> HotContent:
    return HotContent(
        stream_id,
        [
            (
                block.data,
                b"" if block.ends is None else block.ends.tobytes(),
                block.times if isinstance(block.times, int) else block.times.tobytes(),
            )
            for block in blocks
        ],
        [block.keys for block in blocks] if any(b.keys is not None for b in blocks) else [],
    )


def restore_hot(log: Log, content: HotContent) -> None:
    keys = content.keys or [None] * len(content.blocks)
    for (data, encoded_ends, encoded_times), own_keys in zip(content.blocks, keys, strict=True):
        times: Times
        if isinstance(encoded_times, int):
            times = encoded_times
        else:
            times = array("Q")
            times.frombytes(encoded_times)
        log.append(data, decode_ends(encoded_ends), times, own_keys)
