"""Contents of streams to make segments of, by hand and by Hypothesis."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import strategies as st

from millstream.formats.blocks import Block, Keys
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.segment import Content, EncodedSegment, encode_segment
from tests.support import blocks
from tests.support.blocks import Message

STORE_ID = "0123456789abcdef" * 2
NOON_MS = 1_700_000_000_000


def content(
    stream_id: int,
    messages: Sequence[bytes],
    *,
    is_json: bool = True,
    first_ordinal: int = 0,
    first_byte: int = 0,
    keys: Keys = None,
) -> Content:
    """One block, one append time. In JSON mode `messages` are without their commas."""
    wire = [message + b"," for message in messages] if is_json else list(messages)
    ends = array("I", accumulate(map(len, wire)))
    block = Block(b"".join(wire), ends, NOON_MS + stream_id, keys)
    path = b"bucket/stream-%d" % stream_id
    return Content(StreamId(stream_id), path, is_json, first_ordinal, first_byte, [block])


def encode(*contents: Content) -> EncodedSegment:
    return encode_segment(contents, store_id=STORE_ID, shard=3)


def segment_of(encoded: EncodedSegment, name: str) -> Segment:
    return Segment(name, 3, len(encoded.data), encoded.footer_bytes, encoded.rows, NOON_MS)


def messages_of(content: Content) -> list[Message]:
    """Each message as on the wire, with its append time and its key."""
    return [message for block in content.blocks for message in blocks.messages_of(block)]


def messages_of_run(content: Content, run: Run) -> list[Message]:
    first = run.first_ordinal - content.first_ordinal
    return messages_of(content)[first : first + run.count]


_times = st.integers(0, 2**42)
_keys = st.none() | st.sampled_from([b"", b"a", b"b"]) | st.binary(max_size=5)


@st.composite
def _blocks(draw: st.DrawFn, is_json: bool) -> Block:
    messages = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
    factor = draw(st.sampled_from([1, 1, 1, 50, 20_000]))  # now and then a row group is too small
    wire = [message * factor + b"," * is_json for message in messages]
    ends = array("I", accumulate(map(len, wire)))
    times: int | array[int] = draw(_times)
    if draw(st.booleans()):
        times = array("Q", draw(st.lists(_times, min_size=len(wire), max_size=len(wire))))
    keys: Keys = draw(st.none() | _keys)
    if draw(st.booleans()):
        keys = tuple(draw(st.lists(_keys, min_size=len(wire), max_size=len(wire))))
    single = len(wire) == 1 and draw(st.booleans())
    return Block(b"".join(wire), None if single else ends, times, keys)


@st.composite
def _content(draw: st.DrawFn, stream_id: int) -> Content:
    is_json = draw(st.booleans())
    return Content(
        StreamId(stream_id),
        draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)).encode(),
        is_json,
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 2**50)),
        draw(st.lists(_blocks(is_json), max_size=4)),
    )


@st.composite
def contents(draw: st.DrawFn) -> list[Content]:
    """Streams in order, some without messages, JSON and others mixed."""
    stream_ids = draw(st.lists(st.integers(0, 2**53), max_size=8, unique=True))
    return [draw(_content(stream_id)) for stream_id in sorted(stream_ids)]
