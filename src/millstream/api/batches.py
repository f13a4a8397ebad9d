"""append-batch: many messages in one request, each with its own acknowledgement.

The body is frames of a big-endian u32 length and that many bytes. All frames that can be appended
become one command, so they are durable together; with producer headers it is all of them or none.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import msgspec

from millstream.api import arguments
from millstream.api.errors import STATUS, error_headers, respond_error
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import (
    BodyTooLarge,
    EmptyBody,
    InvalidJson,
    InvalidRequest,
    StreamClosed,
    StreamError,
)
from millstream.http.message import Request
from millstream.limits import BATCH_BYTES_MAX, BATCH_FRAMES_MAX
from millstream.protocol import content_types, json_mode
from millstream.state.buckets import split_key
from millstream.state.commands import Append
from millstream.state.decisions import bucket_not_found, decide_append, is_final
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import Stream

_LENGTH = Struct(">I")
_ENTRY = b'{"status":204,"stream_next_offset":"%016d_%016d","stream_closed":false}'
_DUPLICATE_ENTRY = _ENTRY[:-1] + b',"duplicate":true}'
_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"


Place = tuple[int, int]  # ordinal, byte


class Frames(NamedTuple):
    """The messages of a batch, and how many each frame brought (0: an empty frame)."""

    data: bytes
    ends: array[int]
    counts: list[int]


class Waiting(NamedTuple):
    request: Request
    stream: Stream
    command: Append
    counts: list[int]


class Batches:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def append(self, request: Request, key: bytes) -> None:
        payloads = split_frames(request.body)
        claim = arguments.producer_claim(request.headers)
        now_ms = self._clock.now_ms()
        try:
            stream = self._engine.find(key, now_ms)
        except StreamError as error:
            self._check_bucket(key)
            _respond_all(request, len(payloads), error)
            return
        frames = _join_json(payloads) if stream.is_json else _join(payloads)
        if claim is not None and 0 in frames.counts:
            raise EmptyBody("a frame is empty; with producer headers all frames count or none")
        content_type = request.headers.get(b"content-type", content_types.DEFAULT_CONTENT_TYPE)
        command = Append(
            now_ms,
            stream.stream_id,
            frames.data,
            frames.ends.tobytes() if len(frames.ends) > 1 else b"",
            len(frames.ends),
            content_types.essence(content_type),
        )
        if claim is not None:
            command.producer_id, command.producer_epoch, command.producer_seq = claim
        waiting = Waiting(request, stream, command, frames.counts)
        decided = decide_append(stream, command)
        if decided is not None and is_final(decided):
            self._appended(waiting, decided)
        elif not command.count:
            _respond_all(request, len(payloads), EmptyBody("the frame is empty"))
        else:
            shard = stream.stream_id % self._engine.machine.shards
            self._engine.hot_budget.submit(shard, (command, self._appended, waiting))

    def _check_bucket(self, key: bytes) -> None:
        """Raises BucketNotFound: without the bucket no frame has anywhere to go."""
        if split_key(key)[0] not in self._engine.machine.names.buckets:
            raise bucket_not_found()

    @staticmethod
    def _appended(waiting: Waiting, outcome: Outcome) -> None:
        request, stream, command, counts = waiting
        if isinstance(outcome, StreamError):
            if command.producer_id is None:
                _respond_all(request, len(counts), outcome)
            else:
                respond_error(request, outcome)
            return
        ordinal, byte = stream.log.tail_ordinal, stream.log.tail_byte
        headers, is_latest = b"", True
        if command.producer_id is not None:
            assert stream.producers is not None
            producer = stream.producers[command.producer_id]
            headers = b"producer-epoch: %d\r\nproducer-seq: %d\r\n" % producer[:2]
            ordinal, byte = producer.ordinal, producer.byte
            is_latest = command.producer_seq == producer.seq
        headers += b"stream-next-offset: %016d_%016d\r\n" % (ordinal, byte)
        if _wants_minimal(request) and 0 not in counts:
            request.respond(204, headers)
            return
        if is_latest:
            start = (ordinal - command.count, byte - len(command.data))
            ends = _frame_ends(command, counts, start)
        else:  # where an older batch ended is not kept; like a POST, name the producer's last place
            ends = [(ordinal, byte)] * len(counts)
        body = _acknowledgements(counts, ends, outcome is Done.DUPLICATE)
        request.respond(200, headers + _JSON, body)


def split_frames(body: bytes) -> list[bytes]:
    """Raises InvalidRequest for a body that is not whole frames, BodyTooLarge for too many."""
    if len(body) > BATCH_BYTES_MAX:
        raise BodyTooLarge(f"a batch must not exceed {BATCH_BYTES_MAX} bytes")
    payloads: list[bytes] = []
    position, total, length_at = 0, len(body), _LENGTH.unpack_from
    while position + 4 <= total:
        start = position + 4
        position = start + length_at(body, position)[0]
        payloads.append(body[start:position])
    if position > total:
        raise InvalidRequest(f"the last frame is cut off: {position - total} bytes are missing")
    if position < total:
        raise InvalidRequest("the last frame's length is cut off; send 4 bytes, big-endian")
    if not payloads:
        raise InvalidRequest("a batch needs at least one frame")
    if len(payloads) > BATCH_FRAMES_MAX:
        raise BodyTooLarge(f"a batch must not have more than {BATCH_FRAMES_MAX} frames")
    return payloads


def _join(payloads: list[bytes]) -> Frames:
    ends, byte = array("I"), 0
    for payload in payloads:
        if payload:
            byte += len(payload)
            ends.append(byte)
    return Frames(b"".join(payloads), ends, [1 if payload else 0 for payload in payloads])


def _join_json(payloads: list[bytes]) -> Frames:
    """Each frame is like a POST body; one that is not JSON refuses the whole batch."""
    parts: list[bytes] = []
    ends, counts, byte = array("I"), list[int](), 0
    for number, payload in enumerate(payloads):
        if not payload:
            counts.append(0)
            continue
        try:
            data, encoded_ends, total = json_mode.split_body(payload)
        except InvalidJson as error:
            raise InvalidJson(f"frame {number}: {error.message}") from None
        if not total:
            raise InvalidJson(f"frame {number}: an empty array appends nothing")
        inner = array("I")
        inner.frombytes(encoded_ends or array("I", [len(data)]).tobytes())
        ends.extend([byte + end for end in inner])
        byte += len(data)
        parts.append(data)
        counts.append(total)
    return Frames(b"".join(parts), ends, counts)


def _frame_ends(command: Append, counts: list[int], start: Place) -> list[Place]:
    """Where the stream ended with each frame."""
    ends = array("I", [0])
    ends.frombytes(command.ends or array("I", [len(command.data)]).tobytes())
    ordinal, byte = start
    return [(ordinal + done, byte + ends[done]) for done in accumulate(counts)]


def _acknowledgements(counts: list[int], ends: list[Place], duplicate: bool) -> bytes:
    """One entry per frame, in order: its status and where the stream ended with it."""
    form = _DUPLICATE_ENTRY if duplicate else _ENTRY
    entries = [form % end for end in ends]
    if 0 in counts:
        refused = msgspec.json.encode(_refused(EmptyBody("the frame is empty")))
        entries = [e if count else refused for e, count in zip(entries, counts, strict=True)]
    return b"[" + b",".join(entries) + b"]"


def _refused(error: StreamError) -> dict[str, object]:
    entry = {"status": STATUS[type(error)], "error_code": error.code, "error": error.message}
    if isinstance(error, StreamClosed):
        return {**entry, "stream_next_offset": error.final_offset, "stream_closed": True}
    return entry


def _respond_all(request: Request, frames: int, error: StreamError) -> None:
    """The same refusal for every frame, as if each had been sent on its own."""
    body = msgspec.json.encode([_refused(error)] * frames)
    request.respond(200, _JSON + error_headers(error), body)


def _wants_minimal(request: Request) -> bool:
    preferences = request.headers.get(b"prefer", b"").lower()
    return any(wish.strip() == b"return=minimal" for wish in preferences.split(b","))
