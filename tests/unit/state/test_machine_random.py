"""What holds after any sequence of commands."""

from __future__ import annotations

from collections import Counter

from hypothesis import given

from millstream.errors import StreamError
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    PublishSnapshot,
    decode_command,
    encode_command,
)
from millstream.state.decisions import decide_append, decide_publish
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import Stream
from tests.support.blocks import datas_of
from tests.unit.effort import brief
from tests.unit.state.command_sequences import sequences
from tests.unit.state.store import blob_uses, describe, image_bytes

CHANGES_NOTHING = (Done.EXISTED, Done.DUPLICATE, Done.ALREADY_CLOSED, Done.NOTHING)


def facts(outcome: Outcome) -> object:
    if isinstance(outcome, StreamError):
        return type(outcome), vars(outcome)
    return outcome


def predict(machine: StateMachine, command: AnyCommand) -> Outcome | None:
    if isinstance(command, CreateStream):
        return machine.decide_create(command) or Done.CREATED
    if isinstance(command, Append) and command.stream_id in machine.by_id:
        return decide_append(machine.by_id[command.stream_id], command) or Done.APPENDED
    if isinstance(command, PublishSnapshot):
        stream = machine.by_id.get(command.stream_id)
        if stream is not None and not stream.deleted and not stream.is_expired(command.now_ms):
            return decide_publish(stream, command) or Done.PUBLISHED
    return None


def check_whole(machine: StateMachine) -> None:
    streams = machine.by_id
    assert {stream.path: stream for stream in streams.values()} == machine.residents.by_path
    forked = Counter(s.origin.source_id for s in streams.values() if s.origin is not None)
    assert {i: s.forks for i, s in streams.items() if s.forks} == dict(forked)
    assert all(stream.forks for stream in streams.values() if stream.deleted)
    assert all(stream_id // machine.shards <= machine.births for stream_id in streams)
    live = sorted(stream.path for stream in streams.values() if not stream.deleted)
    assert list(machine.names.keys_from(b"", with_hidden=True)) == live
    live = [path for path in live if path not in machine.names.hidden]
    assert list(machine.names.keys_from(b"")) == live
    counted = Counter(path.split(b"/")[0] for path in live)
    assert {b.name: b.streams for b in machine.names.buckets.values() if b.streams} == counted
    blob_uses(machine)
    hot_bytes = [0] * machine.shards
    for stream_id, stream in streams.items():
        check_log(stream)
        hot_bytes[stream_id % machine.shards] += stream.log.tail_byte - stream.log.cold_byte
        if stream.snapshot is not None:
            assert not stream.deleted
            assert stream.earliest >= stream.snapshot.offset
    assert machine.changes.hot_bytes == hot_bytes


def check_log(stream: Stream) -> None:
    log = stream.log
    assert log.first_ordinal <= log.tail_ordinal
    assert log.first_byte <= log.tail_byte
    assert log.own_byte <= log.held_byte <= log.cold_byte <= log.tail_byte
    assert log.own_ordinal <= log.held_ordinal <= log.cold_ordinal <= log.tail_ordinal
    assert sum(map(len, datas_of(log))) == log.tail_byte - log.held_byte
    unpublished = b"".join(block.data for block in log.unpublished())
    assert unpublished == b"".join(log.slices(log.cold_byte, log.tail_byte))
    counts = sum(block.count for block in log.unpublished())
    assert counts == log.tail_ordinal - log.cold_ordinal


@given(sequences)
@brief
def test_forks_names_and_ids_always_add_up(sequence: list[AnyCommand]) -> None:
    machine = StateMachine()
    for command in sequence:
        machine.apply(command)
        check_whole(machine)


@given(sequences)
@brief
def test_a_decision_is_what_apply_then_does(sequence: list[AnyCommand]) -> None:
    machine = StateMachine()
    for command in sequence:
        predicted = predict(machine, command)
        outcome = machine.apply(command)
        assert predicted is None or facts(predicted) == facts(outcome)


@given(sequences)
@brief
def test_a_refused_command_changes_nothing(sequence: list[AnyCommand]) -> None:
    machine = StateMachine()
    for command in sequence:
        before, ended = image_bytes(machine), list(machine.outbox.ended)
        outcome = machine.apply(command)
        if isinstance(outcome, StreamError) or outcome in CHANGES_NOTHING:
            assert image_bytes(machine) == before
            assert machine.outbox.ended == ended


@given(sequences)
@brief
def test_every_stream_that_leaves_or_is_deleted_is_told_once(sequence: list[AnyCommand]) -> None:
    machine = StateMachine()
    told: Counter[int] = Counter()
    for command in sequence:
        alive = {i for i, stream in machine.by_id.items() if not stream.deleted}
        machine.apply(command)
        left = alive - {i for i, stream in machine.by_id.items() if not stream.deleted}
        assert left <= set(machine.outbox.ended)
        told.update(machine.outbox.ended)
        machine.outbox.ended.clear()
    assert all(count <= 2 for count in told.values())  # soft-deleted first, removed later


@given(sequences)
@brief
def test_every_blob_is_in_use_or_was_given_up_exactly_once(sequence: list[AnyCommand]) -> None:
    machine = StateMachine()
    stored = Counter[str]()
    for command in sequence:
        machine.apply(command)
        if isinstance(command, PublishSnapshot):
            stored[command.blob] += 1
        for name in machine.outbox.unused_blobs:
            assert name not in blob_uses(machine)
    given_up, used = Counter(machine.outbox.unused_blobs), blob_uses(machine)
    once = {name for name, times in stored.items() if times == 1}
    assert {name for name in once if given_up[name] + (name in used) != 1} == set()


@given(sequences)
@brief
def test_replaying_the_journal_reaches_the_same_state_and_answers(
    sequence: list[AnyCommand],
) -> None:
    first, second = StateMachine(), StateMachine()
    for command in sequence:
        journaled = encode_command(command)
        # Both from the journal: an image writes a bytes object that two streams share only once.
        once, again = decode_command(journaled), decode_command(journaled)
        assert facts(first.apply(once)) == facts(second.apply(again))
    assert describe(first) == describe(second)
