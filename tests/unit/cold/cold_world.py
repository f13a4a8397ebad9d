"""Streams whose older content lies in real segments, and windows on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from millstream.cold.cold_reads import ColdReads
from millstream.errors import StreamError
from millstream.formats.blocks import Block
from millstream.formats.key_filters import UNKNOWN_KEYS
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.segment import Content, encode_segment
from millstream.protocol.offsets import Offset, Position
from millstream.state.log import Log
from millstream.state.stream import ForkOrigin, Stream
from millstream.tier.objects import ColdSettings, ObjectStore
from millstream.tier.segments import SegmentReader

NOW_MS = 1_750_000_000_000


class Runs:
    """The catalog's answer, from a list per stream; counts how often it is asked."""

    def __init__(self) -> None:
        self.of: dict[int, list[tuple[Segment, Run]]] = {}
        self.queries = 0

    def runs_from(
        self,
        stream_id: int,
        *,
        ordinal: int | None = None,
        byte: int | None = None,
        limit: int,
        with_keys: bool = False,
    ) -> list[tuple[Segment, Run]]:
        self.queries += 1
        found = [
            (segment, run if with_keys else replace(run, keys=UNKNOWN_KEYS))
            for segment, run in self.of.get(stream_id, [])
            if (run.end_byte > byte if byte is not None else run.end_ordinal > (ordinal or 0))
        ]
        return found[:limit]


class ColdWorld:
    def __init__(self, folder: Path, threads: int = 2) -> None:
        self.store = ObjectStore(ColdSettings(f"fs:{folder}"))
        self.reader = SegmentReader(self.store, 1 << 20)
        self.runs = Runs()
        self.streams: dict[int, Stream] = {}
        self.cold_reads = ColdReads(self, self.runs, self.reader, threads)
        self.segments = 0

    def find_by_id(self, stream_id: int) -> Stream | None:
        return self.streams.get(stream_id)

    def create(self, content_type: bytes = b"text/plain") -> Stream:
        stream_id = len(self.streams) + 1
        stream = Stream(StreamId(stream_id), b"s/%d" % stream_id, content_type, NOW_MS)
        self.streams[stream_id] = stream
        return stream

    def fork(self, source: Stream, ordinal: int, byte: int) -> Stream:
        """`ordinal` counts the messages before `byte`, with one that it goes through."""
        stream = self.create(source.content_type)
        stream.log = source.log.branch(Position(ordinal, byte))
        stream.origin = ForkOrigin(source.stream_id, source.path, ordinal, byte, 0)
        source.forks += 1
        return stream

    def append(self, stream: Stream, *messages: bytes) -> None:
        for message in messages:
            stream.log.append(message, None, NOW_MS)

    def publish(self, stream: Stream, messages: int | None = None) -> int:
        """Stores the next so many messages in a segment of their own; how many there were."""
        log = stream.log
        end = log.tail_ordinal if messages is None else log.cold_ordinal + messages
        end = min(end, log.tail_ordinal)
        if end == log.cold_ordinal:
            return 0
        size = log.byte_at(end) - log.cold_byte
        count = end - log.cold_ordinal
        content = Content(
            stream.stream_id,
            stream.path,
            stream.is_json,
            log.cold_ordinal,
            log.cold_byte,
            _cut(log.unpublished(), size),
        )
        self.segments += 1
        encoded = encode_segment([content], store_id="0" * 32, shard=0)
        segment = Segment(
            f"segments/0000/{self.segments:013d}-00000000.parquet",
            0,
            len(encoded.data),
            encoded.footer_bytes,
            encoded.rows,
            NOW_MS,
        )
        self.store.put(segment.name, encoded.data)
        for run in encoded.runs:
            assert log.publish(segment, run)
        return count

    def checkpoint(self, stream: Stream) -> None:
        """What is published is in the catalog now."""
        self.runs.of.setdefault(stream.stream_id, []).extend(stream.log.runs or [])
        stream.log.runs = None

    def drop(self, stream: Stream, messages: int | None = None) -> None:
        """Lets go of the next so many messages that are published."""
        log = stream.log
        end = log.cold_ordinal if messages is None else log.held_ordinal + messages
        end = min(end, log.cold_ordinal)
        log.drop(log.byte_at(end))

    def freeze(self, stream: Stream, run_messages: int | None = None) -> None:
        """All of it leaves memory, in runs of so many messages."""
        while self.publish(stream, run_messages):
            pass
        self.checkpoint(stream)
        self.drop(stream)

    async def window(self, stream: Stream, offset: Offset, bytes_max: int) -> Log:
        """In memory or loaded; raises what it was refused with."""
        self.cold_reads.start(asyncio.get_running_loop())
        window = self.cold_reads.in_memory(stream, offset, bytes_max)
        return window if window is not None else await self.loaded(stream, offset, bytes_max)

    async def loaded(self, stream: Stream, offset: Offset, bytes_max: int) -> Log:
        self.cold_reads.start(asyncio.get_running_loop())
        waiting: asyncio.Future[Log | StreamError] = asyncio.get_running_loop().create_future()
        self.cold_reads.load(stream, offset, bytes_max, waiting.set_result)
        result = await waiting
        if isinstance(result, StreamError):
            raise result
        return result

    def close(self) -> None:
        self.cold_reads.close()


def _cut(blocks: Sequence[Block], size: int) -> list[Block]:
    cut: list[Block] = []
    for block in blocks:
        if size > 0:
            cut.append(block.cut(size))
            size -= len(block.data)
    return cut


def bytes_of(log: Log) -> bytes:
    return b"".join(log.slices(log.held_byte, log.tail_byte))
