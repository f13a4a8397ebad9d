"""Random lives of a handful of streams: commands that meet, and times in which things expire.

Hypothesis draws small numbers; each becomes a command that makes sense, or nearly so, in the state
that the commands before it have reached.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    Mark,
    PublishSnapshot,
    TouchStream,
)
from millstream.state.machine import StateMachine
from millstream.state.stream import Producer, Stream
from tests.unit.state.store import JSON, NOW_MS, TEXT, ends_of

PATHS = [b"x/a", b"x/b", b"y/a", b"z/d"]
BUCKETS = [b"x", b"y", b"z", b"empty"]
UNKNOWN = Stream(999, b"?", TEXT, NOW_MS)


class Step(NamedTuple):
    verb: str
    wait_ms: int
    which: int
    a: int
    b: int
    parts: tuple[bytes, ...]


def concrete(step: Step, machine: StateMachine, now_ms: int) -> AnyCommand:
    streams = list(machine.by_id.values()) or [UNKNOWN]
    stream = UNKNOWN if step.which == 7 else streams[step.which % len(streams)]
    match step.verb:
        case "create" | "fork":
            return _create(step, streams, now_ms)
        case "append" | "produce":
            return _append(step, stream, now_ms)
        case "delete":
            return DeleteStream(now_ms, stream.stream_id)
        case "expire":
            return ExpireStream(now_ms, stream.stream_id)
        case "touch":
            return TouchStream(now_ms - step.a, stream.stream_id)
        case "publish":
            return _publish(step, stream, now_ms)
        case "bucket":
            return CreateBucket(now_ms, BUCKETS[step.which % 4])
        case "unbucket":
            return DeleteBucket(now_ms, BUCKETS[step.which % 4])
        case _:
            return Mark(now_ms)


def _create(step: Step, streams: list[Stream], now_ms: int) -> CreateStream:
    command = CreateStream(now_ms, PATHS[step.which % 4], JSON if step.a == 7 else TEXT)
    command.closed = step.b == 7
    command.implies_bucket = step.a != 1
    command.data, command.ends = b"".join(step.parts), ends_of(step.parts)
    command.count = len(step.parts)
    if step.a in (3, 4):
        command.ttl_ms = 1000 * step.b
    elif step.a == 5:
        command.expires_at_ms = NOW_MS + 2000 * step.b
    if step.verb == "fork":
        source = streams[step.a % len(streams)]
        command.fork_from, command.content_type = source.path, source.content_type
        command.lifetime_given = command.ttl_ms is not None or command.expires_at_ms is not None
        if step.b % 2:
            base = source.log.first_ordinal if step.b < 5 else 0
            command.fork_ordinal = min(base + step.b, source.log.tail_ordinal + 1)
        command.fork_sub_offset = {3: 1, 5: 2}.get(step.b, 0)
    return command


def _append(step: Step, stream: Stream, now_ms: int) -> Append:
    command = Append(now_ms, stream.stream_id, closes=step.a == 7)
    if step.parts or step.a < 7:
        messages = step.parts or (b"x",)
        command.data, command.ends = b"".join(messages), ends_of(messages)
        command.count = len(messages)
        command.content_type = JSON if step.a == 6 else stream.essence
    if step.b > 5:
        command.stream_seq = b"%d" % (step.which + step.b)
    if step.verb == "produce":
        command.producer_id = b"q" if step.a % 3 == 1 else b"p"
        known = (stream.producers or {}).get(command.producer_id, Producer(0, -1, 0, 0))
        command.producer_epoch = max(0, known.epoch + {4: 1, 5: -1}.get(step.a, 0))
        in_turn = 0 if command.producer_epoch > known.epoch else known.seq + 1
        command.producer_seq = max(0, in_turn + {4: -1, 5: 1}.get(step.b, 0))
    return command


def _publish(step: Step, stream: Stream, now_ms: int) -> PublishSnapshot:
    """Mostly at a message that is there; now and then before, behind or beside one."""
    log = stream.log
    ordinal = log.first_ordinal + step.a
    if step.b < 6:
        ordinal = min(ordinal, log.tail_ordinal)
    inside = log.first_ordinal <= ordinal <= log.tail_ordinal
    byte = log.byte_at(ordinal) if inside else log.tail_byte + step.a
    if step.b == 4:
        byte = max(0, byte - 1)
    blob = f"{stream.stream_id}-{now_ms}-{step.which}{step.a}{step.b}-{len(step.parts)}"
    return PublishSnapshot(
        now_ms, stream.stream_id, ordinal, byte, blob, b"a/b", step.b, str(step.b % 2)
    )


def lived(steps: list[Step]) -> list[AnyCommand]:
    machine, now_ms, sequence = StateMachine(), NOW_MS, []
    for step in (*PRELUDE, *steps):
        now_ms += step.wait_ms
        command = concrete(step, machine, now_ms)
        machine.apply(command)
        sequence.append(command)
    return sequence


PRELUDE = [
    Step("create", 0, 0, 0, 0, (b"one", b"three")),
    Step("create", 0, 1, 3, 5, ()),
    Step("fork", 0, 2, 0, 0, ()),
]
VERBS = ["mark", "create", "create", "fork", "fork", "fork", "append", "append", "append"]
VERBS += ["produce", "produce", "produce", "delete", "delete", "expire", "touch"]
VERBS += ["publish", "publish", "publish", "publish", "bucket", "unbucket"]
digit = st.integers(0, 7)
parts = st.lists(st.binary(min_size=1, max_size=6), max_size=3).map(tuple)
waits_ms = st.sampled_from([0, 0, 0, 0, 1, 100, 1000])
steps = st.builds(Step, st.sampled_from(VERBS), waits_ms, digit, digit, digit, parts)

sequences = st.lists(steps, min_size=8, max_size=40).map(lived)
