"""Turns streams into what is kept of them, and back."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec

from millstream.formats.images import HotContent, StreamImage
from millstream.state.log import Block, Log
from millstream.state.stream import ForkOrigin, Producer, Snapshot, Stream

encode_image = msgspec.msgpack.Encoder().encode
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
        (log.first_ordinal, log.first_byte),
        (log.own_ordinal, log.own_byte),
        (log.cold_ordinal, log.cold_byte),
        (log.tail_ordinal, log.tail_byte),
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
    stream.log = _restore_log(image)
    return Restored(stream, image.tail[1] - image.cold[1])


def _restore_log(image: StreamImage) -> Log:
    log = Log()
    log.start_at(*image.cold)
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


def hot_content(stream_id: int, blocks: list[Block]) -> HotContent:
    return HotContent(
        stream_id,
        [
            (
                data,
                b"" if ends is None else ends.tobytes(),
                times if isinstance(times, int) else times.tobytes(),
            )
            for data, ends, times in blocks
        ],
    )


def restore_hot(log: Log, content: HotContent) -> None:
    for data, encoded_ends, encoded_times in content.blocks:
        ends: array[int] | None = None
        if encoded_ends:
            ends = array("I")
            ends.frombytes(encoded_ends)
        if isinstance(encoded_times, int):
            log.append(data, ends, 1 if ends is None else len(ends), encoded_times)
            continue
        times = array("Q")
        times.frombytes(encoded_times)
        log.append(data, ends, 1 if ends is None else len(ends), times)
