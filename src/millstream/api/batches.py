"""append-batch: many messages in one request, each with its own acknowledgement.

The body is frames of a big-endian u32 length and that many bytes. All frames that can be appended
become one command, so they are durable together; with producer headers it is all of them or none.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import NamedTuple

import msgspec

from millstream.api import arguments
from millstream.api.entry_writes import as_entries, set_content, takes_long
from millstream.api.errors import STATUS, error_headers, respond_error
from millstream.api.frames import Frames, join, join_json, split_frames
from millstream.api.headers import JSON
from millstream.api.large_bodies import LargeBodies, is_large_json
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import EmptyBody, RulesChanged, StreamClosed, StreamError
from millstream.formats.layout import StreamId
from millstream.http.message import Request
from millstream.limits import LARGE_BODY_BYTES, RULES_TRIES_MAX
from millstream.protocol import content_types
from millstream.protocol.json_pieces import LargeMessages
from millstream.protocol.offsets import Position
from millstream.schemas.admission import Admitted, admit
from millstream.state.buckets import split_key
from millstream.state.commands import Append
from millstream.state.decisions import bucket_not_found, decide_append, is_final
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from millstream.state.stream import Stream

_ENTRY = b'{"status":204,"stream_next_offset":"%016d_%016d","stream_closed":false}'
_DUPLICATE_ENTRY = _ENTRY[:-1] + b',"duplicate":true}'


class Waiting(NamedTuple):
    request: Request
    stream: Stream
    command: Append
    counts: list[int]
    key: bytes
    tries_left: int


class _Read(NamedTuple):
    """A batch that was read, under these rules if the stream had some."""

    frames: Frames
    rules: Rules | None
    admitted: Admitted | None  # None: its messages have neither rules nor keys


class Batches:
    def __init__(self, engine: Engine, clock: Clock, bodies: LargeBodies) -> None:
        self._engine = engine
        self._clock = clock
        self._bodies = bodies

    def append(self, request: Request, key: bytes) -> None:
        self._try(request, key, RULES_TRIES_MAX)

    def _try(self, request: Request, key: bytes, tries_left: int) -> None:
        self._check_bucket(key)
        payloads = split_frames(request.body)
        claim = arguments.producer_claim(request.headers)
        try:
            stream = self._engine.find(key, self._clock.now_ms())
        except StreamError as error:
            _respond_all(request, len(payloads), error)
            return
        is_json, rules, bodies = stream.is_json, stream.rules, self._bodies
        header_key, now_ms = arguments.routing_key(request.headers), self._clock.now_ms()

        def work() -> _Read:
            if is_json:
                frames = join_json(payloads, bodies.split_json, bodies.messages_max)
            else:
                frames = join(payloads)
            return _Read(frames, rules, _admitted(frames, rules, header_key, now_ms))

        def done(read: _Read) -> None:
            self._append(request, key, claim, read, tries_left)

        if is_large_json(request.body) or (rules is not None and takes_long(request.body)):
            bodies.run(request, work, done)
        else:
            done(work())

    def _append(
        self,
        request: Request,
        key: bytes,
        claim: arguments.ProducerClaim | None,
        read: _Read,
        tries_left: int,
    ) -> None:
        """The stream may be another one by now, or none."""
        frames = read.frames
        if claim is not None and 0 in frames.counts:
            raise EmptyBody("a frame is empty; with producer headers all frames count or none")
        now_ms = self._clock.now_ms()
        try:
            stream = self._engine.find(key, now_ms)
        except StreamError as error:
            _respond_all(request, len(frames.counts), error)
            return
        content_type = request.headers.get(b"content-type", content_types.DEFAULT_CONTENT_TYPE)
        command = _command(now_ms, stream.stream_id, frames, content_types.essence(content_type))
        hint_ms = arguments.time_hint_ms(request.headers, now_ms)
        if read.admitted is not None or hint_ms is not None:
            command = as_entries(command, request.headers, stream)
            if read.admitted is not None:
                set_content(command, read.admitted, read.rules)
        if claim is not None:
            command.producer_id, command.producer_epoch, command.producer_seq = claim
        waiting = Waiting(request, stream, command, frames.counts, key, tries_left)
        decided = decide_append(stream, command)
        if decided is not None and is_final(decided):
            self._appended(waiting, decided)
        elif not command.count:
            _respond_all(request, len(frames.counts), EmptyBody("the frame is empty"))
        else:
            shard = self._engine.machine.layout.shard_of_id(stream.stream_id)
            self._engine.hot_budget.submit(shard, (command, self._appended, waiting))

    def _check_bucket(self, key: bytes) -> None:
        """Raises BucketNotFound: without the bucket no frame has anywhere to go."""
        if split_key(key)[0] not in self._engine.machine.names.buckets:
            raise bucket_not_found()

    def _appended(self, waiting: Waiting, outcome: Outcome) -> None:
        request, stream, command, counts, key, tries_left = waiting
        if isinstance(outcome, RulesChanged) and tries_left:
            try:
                self._try(request, key, tries_left - 1)
            except StreamError as error:
                respond_error(request, error)
            return
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
            start = Position(ordinal - command.count, byte - _content_bytes(command))
            ends = _frame_ends(command, counts, start)
        else:  # where an older batch ended is not kept; like a POST, name the producer's last place
            ends = [Position(ordinal, byte)] * len(counts)
        body = _acknowledgements(counts, ends, outcome is Done.DUPLICATE)
        request.respond(200, headers + JSON, body)


def _command(now_ms: int, stream_id: StreamId, frames: Frames, content_type: bytes) -> Append:
    pieces, ends, count = frames.pieces, frames.ends, len(frames.ends)
    encoded_ends = ends.tobytes() if count > 1 else b""
    if len(pieces) == 1 and len(pieces[0]) < LARGE_BODY_BYTES:
        return Append(now_ms, stream_id, pieces[0], encoded_ends, count, content_type)
    return Append(now_ms, stream_id, b"", encoded_ends, count, content_type, pieces=pieces)


def _admitted(
    frames: Frames, rules: Rules | None, header_key: bytes | None, now_ms: int
) -> Admitted | None:
    """Raises SchemaViolation, for the whole batch."""
    if rules is None and header_key is None:
        return None
    ends = frames.ends.tobytes() if len(frames.ends) > 1 else b""
    content = LargeMessages(frames.pieces, ends, len(frames.ends))
    if rules is None or not content.total:
        return Admitted(content, header_key)
    return admit(rules, content, header_key, now_ms)


def _content_bytes(command: Append) -> int:
    return len(command.data) + sum(map(len, command.pieces))


def _frame_ends(command: Append, counts: list[int], start: Position) -> list[Position]:
    """Where the stream ended with each frame."""
    ends = array("I", [0])
    ends.frombytes(command.ends or array("I", [_content_bytes(command)]).tobytes())
    ordinal, byte = start
    return [Position(ordinal + done, byte + ends[done]) for done in accumulate(counts)]


def _acknowledgements(counts: list[int], ends: list[Position], duplicate: bool) -> bytes:
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
    request.respond(200, JSON + error_headers(error), body)


def _wants_minimal(request: Request) -> bool:
    preferences = request.headers.get(b"prefer", b"").lower()
    return any(wish.strip() == b"return=minimal" for wish in preferences.split(b","))
