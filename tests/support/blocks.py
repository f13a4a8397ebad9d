"""Blocks and logs as plain lists of messages."""

from __future__ import annotations

from typing import NamedTuple

from millstream.formats.blocks import Block
from millstream.state.log import Log


class Message(NamedTuple):
    data: bytes
    time: int
    key: bytes | None = None


def messages_of(block: Block) -> list[Message]:
    """Every promise that a block makes about itself holds."""
    ends = [len(block.data)] if block.ends is None else list(block.ends)
    times = [block.times] * len(ends) if isinstance(block.times, int) else list(block.times)
    keys = list(block.keys) if isinstance(block.keys, tuple) else [block.keys] * len(ends)
    assert ends[-1] == len(block.data)
    assert block.count == len(ends)
    starts = [0, *ends[:-1]]
    datas = [block.data[start:end] for start, end in zip(starts, ends, strict=True)]
    return [Message(*each) for each in zip(datas, times, keys, strict=True)]


def datas_of(log: Log) -> list[bytes]:
    """The blocks that a log holds."""
    return [block.data for block in log.blocks]
