from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.checkpoint import (
    BLOCK_HEADER_BYTES,
    DATA,
    END,
    HEADER,
    STREAM,
    CheckpointEnd,
    CheckpointHeader,
    DamagedBlock,
    StreamImage,
    decode_blocks,
    encode_block,
)
from millstream.formats.wal import crc32c
from tests.unit.effort import brief


def decode(data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, payload) for _, kind, payload in decode_blocks(memoryview(data))]


payloads = st.binary(max_size=40)


@given(st.lists(st.tuples(st.sampled_from([HEADER, DATA, STREAM]), payloads), max_size=6), payloads)
@brief
def test_blocks_decode_to_what_was_encoded(blocks: list[tuple[int, bytes]], last: bytes) -> None:
    blocks = [*blocks, (END, last)]
    assert decode(b"".join(encode_block(*block) for block in blocks)) == blocks


def test_a_block_is_laid_out_as_documented() -> None:
    block = encode_block(DATA, b"payload")
    assert block[0] == DATA
    assert int.from_bytes(block[1:5], "little") == 7
    assert int.from_bytes(block[5:9], "little") == crc32c(block[:5] + b"payload")
    assert block[9:] == b"payload"
    assert BLOCK_HEADER_BYTES == 9


def test_a_checkpoint_written_long_ago_still_reads() -> None:
    """The bytes of today; when this fails, checkpoints of running servers do not read any more."""
    header = msgspec.msgpack.encode([1, "store", 4711, 8])
    image = [7, b"a/b", b"text/plain", 1, 2, 3, None, True, 4, False, False, 1]
    image += [[6, b"s", 0, 0, 1], {b"p": [1, 2, 3, 4]}, b"9", [[0, 2, b"ends"]]]
    end = msgspec.msgpack.encode([1, 1])
    blocks = [(1, header), (2, b"data"), (3, msgspec.msgpack.encode(image)), (4, end)]
    data = b"".join(encode_block(*block) for block in blocks)
    assert [kind for kind, _ in decode(data)] == [HEADER, DATA, STREAM, END]
    read = [msgspec.msgpack.decode(decode(data)[0][1], type=CheckpointHeader)]
    assert read == [CheckpointHeader(1, "store", 4711, 8)]
    stream = msgspec.msgpack.decode(decode(data)[2][1], type=StreamImage)
    assert (stream.stream_id, stream.path, stream.ttl_ms, stream.forks) == (7, b"a/b", 3, 1)
    assert (stream.origin, stream.producers) == ((6, b"s", 0, 0, 1), {b"p": (1, 2, 3, 4)})
    assert (stream.stream_seq, stream.blocks) == (b"9", [(0, 2, b"ends")])
    assert msgspec.msgpack.decode(end, type=CheckpointEnd) == CheckpointEnd(1, 1)


def test_blocks_come_with_their_positions() -> None:
    data = encode_block(HEADER, b"12345") + encode_block(DATA, b"") + encode_block(END, b"1")
    assert [position for position, _, _ in decode_blocks(memoryview(data))] == [0, 14, 23]


def test_every_changed_byte_is_noticed_with_the_position_of_its_block() -> None:
    blocks = [encode_block(HEADER, b"head"), encode_block(DATA, b""), encode_block(END, b"end")]
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
    data = encode_block(HEADER, b"head") + encode_block(DATA, b"data") + encode_block(END, b"end")
    for size in range(len(data)):
        with pytest.raises(DamagedBlock):
            decode(data[:size])


def test_nothing_is_read_behind_the_end_block() -> None:
    data = encode_block(END, b"end")
    assert decode(data + b"junk") == [(END, b"end")]
