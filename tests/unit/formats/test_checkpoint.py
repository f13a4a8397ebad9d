from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.changes import Changes, Replacement, StreamRow
from millstream.formats.checkpoint import (
    BLOCK_HEADER_BYTES,
    CHANGES,
    END,
    HEADER,
    HOT,
    CheckpointEnd,
    CheckpointHeader,
    DamagedBlock,
    decode_blocks,
    encode_block,
)
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.wal import crc32c
from tests.unit.effort import brief


def decode(data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, payload) for _, kind, payload in decode_blocks(memoryview(data))]


payloads = st.binary(max_size=40)


@given(st.lists(st.tuples(st.sampled_from([HEADER, HOT, CHANGES]), payloads), max_size=6), payloads)
@brief
def test_blocks_decode_to_what_was_encoded(blocks: list[tuple[int, bytes]], last: bytes) -> None:
    blocks = [*blocks, (END, last)]
    assert decode(b"".join(encode_block(*block) for block in blocks)) == blocks


def test_a_block_is_laid_out_as_documented() -> None:
    block = encode_block(HOT, b"payload")
    assert block[0] == HOT
    assert int.from_bytes(block[1:5], "little") == 7
    assert int.from_bytes(block[5:9], "little") == crc32c(block[:5] + b"payload")
    assert block[9:] == b"payload"
    assert BLOCK_HEADER_BYTES == 9


def test_a_checkpoint_written_long_ago_still_reads() -> None:
    """The bytes of today; when this fails, checkpoints of running servers do not read any more."""
    header = msgspec.msgpack.encode([2, "store", 4711])
    place = [3, 0, 0, 5, 60, 1, 2, 99]
    segment = ["segments/0000/1.parquet", 0, 1000, 100, 5, 7]
    changes = [4711, [[3, b"a/b", None, True, 6, b"image"]], [8], [segment], [[place]]]
    changes += [[[["old"], [segment], [[place]]]], [[3, 5]], [["bucket/a", b"x"], ["gone", None]]]
    hot = [3, [[b"data", b"ends", 7], [b"more", b"", b"times"]]]
    end = msgspec.msgpack.encode([1])
    blocks = [(1, header), (6, msgspec.msgpack.encode(changes))]
    blocks += [(7, msgspec.msgpack.encode(hot)), (4, end)]
    data = b"".join(encode_block(*block) for block in blocks)
    found = decode(data)
    assert [kind for kind, _ in found] == [HEADER, CHANGES, HOT, END]
    read = msgspec.msgpack.decode(found[0][1], type=CheckpointHeader)
    assert read == CheckpointHeader(2, "store", 4711)
    run, kept = (
        msgspec.convert(place, Run),  # older: neither times nor keys
        Segment("segments/0000/1.parquet", 0, 1000, 100, 5, 7),
    )
    assert msgspec.msgpack.decode(found[1][1], type=Changes) == Changes(
        4711,
        [StreamRow(StreamId(3), b"a/b", None, True, 6, b"image")],
        [StreamId(8)],
        [kept],
        [[run]],
        [Replacement(["old"], [kept], [[run]])],
        [(StreamId(3), 5)],
        [("bucket/a", b"x"), ("gone", None)],
    )
    assert msgspec.msgpack.decode(found[2][1], type=HotContent) == HotContent(
        StreamId(3), [(b"data", b"ends", 7), (b"more", b"", b"times")]
    )
    assert msgspec.msgpack.decode(end, type=CheckpointEnd) == CheckpointEnd(1)


def test_an_image_written_long_ago_still_reads() -> None:
    image = [7, b"a/b", b"text/plain", 1, 2, 3, None, True, 4, False, False, 1]
    image += [[6, b"s", 0, 0, 1], {b"p": [1, 2, 3, 4]}, b"9", [1, 2, "blob", b"a/b", 3, "d"]]
    image += [[1, 2], [0, 0], [3, 4], [5, 6]]
    stream = msgspec.msgpack.decode(msgspec.msgpack.encode(image), type=StreamImage)
    assert (stream.stream_id, stream.path, stream.ttl_ms, stream.forks) == (7, b"a/b", 3, 1)
    assert (stream.origin, stream.producers) == ((6, b"s", 0, 0, 1), {b"p": (1, 2, 3, 4)})
    assert (stream.stream_seq, stream.snapshot) == (b"9", (1, 2, "blob", b"a/b", 3, "d"))
    assert (stream.first, stream.own, stream.cold, stream.tail) == ((1, 2), (0, 0), (3, 4), (5, 6))


def test_blocks_come_with_their_positions() -> None:
    data = encode_block(HEADER, b"12345") + encode_block(HOT, b"") + encode_block(END, b"1")
    assert [position for position, _, _ in decode_blocks(memoryview(data))] == [0, 14, 23]


def test_every_changed_byte_is_noticed_with_the_position_of_its_block() -> None:
    blocks = [encode_block(HEADER, b"head"), encode_block(HOT, b""), encode_block(END, b"end")]
    begins = [0, len(blocks[0]), len(blocks[0]) + len(blocks[1])]
    data = b"".join(blocks)
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            with pytest.raises(DamagedBlock) as damage:
                decode(bytes(changed))
            assert damage.value.position == max(b for b in begins if b <= position)


def test_a_file_cut_short_anywhere_is_damaged() -> None:
    data = encode_block(HEADER, b"head") + encode_block(HOT, b"data") + encode_block(END, b"end")
    for size in range(len(data)):
        with pytest.raises(DamagedBlock):
            decode(data[:size])


def test_nothing_is_read_behind_the_end_block() -> None:
    data = encode_block(END, b"end")
    assert decode(data + b"junk") == [(END, b"end")]
