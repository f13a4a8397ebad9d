"""A checkpoint's bytes: a header block, then blocks, then an end block, each with length and CRC.

    block   kind u8 | length u32 | crc u32 (over kind, length and payload) | payload

Kinds: HEADER (what it covers), CHANGES (what is new since the checkpoint before, for the catalog),
HOT (the content of one stream that is in no run yet), END (how many HOT blocks came before).
The payloads are MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from millstream.formats.wal import crc32c

HEADER, END, CHANGES, HOT = 1, 4, 6, 7
FORMAT = 2

_LEAD = Struct("<BI")
_CRC = Struct("<I")
BLOCK_HEADER_BYTES = _LEAD.size + _CRC.size


class CheckpointHeader(msgspec.Struct, array_like=True):
    format: int
    store_id: str
    lsn: int  # everything up to and including this record is in here or in the catalog


class CheckpointEnd(msgspec.Struct, array_like=True):
    """How many HOT blocks came before: none may be missing."""

    hot: int


class DamagedBlock(ValueError):
    """A block does not check out; `position` is its first byte."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem


def encode_block(kind: int, payload: bytes) -> bytes:
    lead = _LEAD.pack(kind, len(payload))
    return lead + _CRC.pack(crc32c(lead + payload)) + payload


def decode_blocks(data: memoryview) -> Iterator[tuple[int, int, bytes]]:
    """(position, kind, payload) of each block; DamagedBlock when one is not sound."""
    position = 0
    while True:
        begin = position + BLOCK_HEADER_BYTES
        if begin > len(data):
            raise DamagedBlock(position, "the file ends before its end block")
        kind, length = _LEAD.unpack_from(data, position)
        (crc,) = _CRC.unpack_from(data, position + _LEAD.size)
        payload = bytes(data[begin : begin + length])
        if len(payload) != length or crc != crc32c(_LEAD.pack(kind, length) + payload):
            raise DamagedBlock(position, "a block's checksum does not match")
        yield position, kind, payload
        if kind == END:
            return
        position = begin + length
