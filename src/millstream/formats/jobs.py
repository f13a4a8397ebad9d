"""What a job of the pipeline and its server tell each other. docs/pipeline.md has the requests.

The offer is JSON, because people look at it; tasks and results are msgpack, because they hold a
row per run. New fields go at the end and have a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment

JOBS_PATH = "/__millstream/jobs/"
MSGPACK_TYPE = "application/msgpack"

Holder = TypeVar("Holder")  # says where a run lies: the name of a segment, or its index


class JobInput(msgspec.Struct, frozen=True, gc=False):
    """A segment that the job replaces."""

    name: str
    size: int
    footer_bytes: int
    rows: int
    live_bytes: int  # wire bytes that a reader can still get


class ColdPlace(msgspec.Struct, frozen=True, gc=False):
    """Where the segments lie. Never how to get in: executors bring their own keys."""

    kind: str  # fs, s3, or the scheme of another store
    url: str
    endpoint: str = ""
    region: str = ""


class JobOffer(msgspec.Struct, frozen=True):
    """The answer to "is there work?"."""

    job: str
    kind: str
    store_id: str
    shard: int
    inputs: list[JobInput]
    tasks: int
    target_bytes: int  # wire bytes of one new segment
    live_bytes: int  # of all inputs
    created_ms: int  # goes into the names of new segments
    lease_seconds: float
    cold: ColdPlace
    reason: str = ""  # why these; for people


class TaskInput(msgspec.Struct, array_like=True, frozen=True):
    """The runs one task rewrites, in order of stream id and ordinal."""

    segments: list[Segment]
    runs: list[tuple[int, Run]]  # index into `segments`
    cuts: list[tuple[StreamId, int]] = []  # stream, ordinal: its messages before that are dead


class TaskResult(msgspec.Struct, array_like=True, frozen=True):
    """The new segments of a task in order, and the runs of each."""

    segments: list[Segment]
    runs: list[list[Run]]
    dropped: list[Run] = []  # what the cuts left out: with it, the old runs are whole


def cut_runs(
    runs: Iterable[tuple[Holder, Run]], piece_bytes: int, piece_runs: int
) -> Iterator[list[tuple[Holder, Run]]]:
    """Cuts sorted runs into pieces of about this many bytes, and not many more runs than that.

    A cut lies between two streams, but for a stream that is larger than a piece by itself.
    """
    piece: list[tuple[Holder, Run]] = []
    size = 0
    for holder, run in runs:
        if size >= piece_bytes or len(piece) >= piece_runs:
            next_stream = piece[-1][1].stream_id != run.stream_id
            is_over = size >= 2 * piece_bytes or len(piece) >= 2 * piece_runs
            if next_stream or is_over:
                yield piece
                piece, size = [], 0
        piece.append((holder, run))
        size += run.size
    if piece:
        yield piece


_OFFER = msgspec.json.Decoder(JobOffer)
_TASK = msgspec.msgpack.Decoder(TaskInput)
_RESULT = msgspec.msgpack.Decoder(TaskResult)


def encode_offer(offer: JobOffer) -> bytes:
    return msgspec.json.encode(offer)


def decode_offer(data: bytes) -> JobOffer:
    """Raises ValueError for what is no offer."""
    return _OFFER.decode(data)


def encode_task(task: TaskInput | TaskResult) -> bytes:
    return msgspec.msgpack.encode(task)


def decode_task(data: bytes) -> TaskInput:
    """Raises ValueError for what is no task."""
    return _TASK.decode(data)


def decode_result(data: bytes) -> TaskResult:
    """Raises ValueError for what is no result."""
    return _RESULT.decode(data)
