"""Published content in memory goes when the budget wants it back, the oldest first."""

from __future__ import annotations

from millstream.cold.published_content import PublishedContent
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.limits import (
    PUBLISHED_DROPS_AT_ONCE,
    PUBLISHED_MEMORY_FACTOR,
    PUBLISHED_RUN_OVERHEAD,
)
from millstream.state.stream import Stream
from tests.support.blocks import datas_of

SEGMENT = Segment("s", 0, 1, 1, 1, 1)
MESSAGE = b"0123456789"
KEYS = b"a filter"
COST = int(len(MESSAGE) * PUBLISHED_MEMORY_FACTOR) + PUBLISHED_RUN_OVERHEAD + len(KEYS)


def published_streams(count: int) -> tuple[dict[StreamId, Stream], list[Run]]:
    streams, runs = {}, []
    for number in map(StreamId, range(count)):
        stream = Stream(number, b"b/%d" % number, b"text/plain", 0)
        stream.log.append(MESSAGE, None, 0)
        run = Run(number, 0, 0, 1, len(MESSAGE), 0, number, 0, keys=KEYS)
        assert stream.log.publish(SEGMENT, run)
        streams[number] = stream
        runs.append(run)
    return streams, runs


def held(streams: dict[StreamId, Stream]) -> list[StreamId]:
    return [number for number, stream in streams.items() if stream.log.blocks]


def test_the_oldest_leave_first_and_no_more_than_needed() -> None:
    streams, runs = published_streams(6)
    content = PublishedContent(streams)
    content.add(runs[:4])
    content.add(runs[4:])
    assert content.memory_bytes == 6 * COST
    assert content.shrink(2 * COST + 5)
    assert (content.memory_bytes, held(streams)) == (2 * COST, [4, 5])
    assert content.shrink(-1)
    assert (content.memory_bytes, held(streams)) == (0, [])
    assert content.shrink(0)


def test_a_great_many_leave_in_several_goes() -> None:
    streams, runs = published_streams(2 * PUBLISHED_DROPS_AT_ONCE + 1)
    content = PublishedContent(streams)
    content.add(runs)
    assert [content.shrink(0) for _ in range(3)] == [False, False, True]
    assert held(streams) == []


def test_streams_that_are_gone_and_runs_that_were_refused_are_passed_over() -> None:
    streams, runs = published_streams(3)
    content = PublishedContent(streams)
    streams[StreamId(1)].log.append(MESSAGE, None, 0)
    refused = Run(StreamId(1), 1, 10, 1, len(MESSAGE), 0, 0, 0)
    content.add([*runs, refused])
    del streams[StreamId(0)]
    assert content.shrink(0)
    assert datas_of(streams[StreamId(1)].log) == [MESSAGE]
    assert streams[StreamId(2)].log.blocks == []
