"""Appends that carry routing keys or times, and appends to streams that have rules.

What is admitted is admitted under the rules of a moment. When these change before the append is in
the journal, apply refuses it, and it is looked at again here under the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from millstream.api import arguments
from millstream.api.errors import respond_error
from millstream.api.large_bodies import LargeBodies
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidJson, RulesChanged, StreamError
from millstream.formats.blocks import Keys
from millstream.http.message import Request
from millstream.limits import (
    LARGE_BODY_BYTES,
    RULES_INLINE_BYTES,
    RULES_INLINE_COMMAS,
    RULES_TRIES_MAX,
)
from millstream.protocol.json_pieces import LargeMessages
from millstream.schemas.admission import Admitted, admit
from millstream.state.commands import Append, AppendEntries, CreateStream
from millstream.state.decisions import decide_append, is_final, revision_of
from millstream.state.outcomes import Outcome
from millstream.state.rules import Rules
from millstream.state.stream import Stream

Answer = Callable[[Any, Outcome], None]


def as_entries(command: Append, headers: arguments.Headers, stream: Stream) -> AppendEntries:
    """The same append with the key and the time that the request gives to its entries."""
    values = {name: getattr(command, name) for name in command.__struct_fields__}
    return AppendEntries(
        **values,
        keys=arguments.routing_key(headers),
        hint_ms=arguments.time_hint_ms(headers, command.now_ms),
        rules_revision=revision_of(stream),
    )


def set_content(
    command: AppendEntries | CreateStream, admitted: Admitted, rules: Rules | None
) -> None:
    """What was admitted becomes the command's."""
    pieces, command.ends, command.count = admitted.content
    is_small = len(pieces) == 1 and len(pieces[0]) < LARGE_BODY_BYTES
    command.data, command.pieces = (pieces[0], ()) if is_small else (b"", pieces)
    command.keys = admitted.keys
    command.rules_revision = 0 if rules is None else rules.revision


def takes_long(body: bytes) -> bool:
    """Whether to check it against a schema would keep others waiting."""
    return len(body) > RULES_INLINE_BYTES or body.count(b",") > RULES_INLINE_COMMAS


def _admitted(
    rules: Rules | None, content: LargeMessages, header_key: Keys, now_ms: int
) -> Admitted:
    assert header_key is None or isinstance(header_key, bytes)
    if rules is None:
        return Admitted(content, header_key)
    return admit(rules, content, header_key, now_ms)


class Attempt(NamedTuple):
    """One try of one append. The first three are what an answer needs of any append."""

    request: Request
    stream: Stream
    command: AppendEntries
    key: bytes  # of the stream
    content: LargeMessages  # as it came
    header_key: Keys
    is_slow: bool
    tries_left: int


class EntryWrites:
    def __init__(self, engine: Engine, clock: Clock, bodies: LargeBodies, answer: Answer) -> None:
        self._engine = engine
        self._clock = clock
        self._bodies = bodies
        self._answer = answer

    def append(self, request: Request, stream: Stream, key: bytes, command: AppendEntries) -> None:
        """The body of `command` is JSON for this stream, which has rules."""
        body, command.data, request.body = command.data, b"", b""
        rules, now_ms, is_slow = stream.rules, self._clock.now_ms(), takes_long(body)
        header_key = command.keys

        def work() -> tuple[LargeMessages, Admitted]:
            messages = self._bodies.split_json_beside(body)
            if not messages.total:
                raise InvalidJson("an empty array appends nothing; send at least one message")
            return messages, _admitted(rules, messages, header_key, now_ms)

        def done(found: tuple[LargeMessages, Admitted]) -> None:
            messages, admitted = found
            attempt = Attempt(
                *(request, stream, command, key, messages, header_key, is_slow), RULES_TRIES_MAX
            )
            self._append(attempt, admitted, rules)

        if is_slow:
            self._bodies.run(request, work, done)
        else:
            done(work())

    def _admit_again(self, attempt: Attempt) -> None:
        rules, now_ms = attempt.stream.rules, self._clock.now_ms()

        def work() -> Admitted:
            return _admitted(rules, attempt.content, attempt.header_key, now_ms)

        def done(admitted: Admitted) -> None:
            self._append(attempt, admitted, rules)

        if attempt.is_slow:
            self._bodies.run(attempt.request, work, done)
        else:
            done(work())

    def _append(self, attempt: Attempt, admitted: Admitted, rules: Rules | None) -> None:
        """The stream may be another one by now, or none."""
        command = msgspec.structs.replace(attempt.command, now_ms=self._clock.now_ms())
        stream = self._engine.find(attempt.key, command.now_ms)
        command.stream_id = stream.stream_id
        set_content(command, admitted, rules)
        attempt = attempt._replace(stream=stream, command=command)
        decided = decide_append(stream, command)
        if decided is not None and is_final(decided):
            self._appended(attempt, decided)
        else:
            shard = self._engine.machine.layout.shard_of_id(stream.stream_id)
            self._engine.hot_budget.submit(shard, (command, self._appended, attempt))

    def _appended(self, attempt: Attempt, outcome: Outcome) -> None:
        if not isinstance(outcome, RulesChanged) or not attempt.tries_left:
            self._answer(attempt[:3], outcome)
            return
        again = attempt._replace(
            stream=self._engine.machine.find_by_id(attempt.stream.stream_id) or attempt.stream,
            tries_left=attempt.tries_left - 1,
        )
        try:
            self._admit_again(again)
        except StreamError as error:
            respond_error(attempt.request, error)
