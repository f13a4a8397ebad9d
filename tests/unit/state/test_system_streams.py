"""The server's own streams: written by the server alone, counted in no bucket, and the registry has
one record for everything that becomes of a stream."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidRequest, RulesChanged, StreamExists, StreamNotFound
from millstream.formats.layout import StreamId
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    CreateSubscription,
    DeleteStream,
    ExpireStream,
    KeepSystemStream,
    NoOp,
    SetRules,
    WriteSystemStream,
    decode_command,
    encode_command,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from millstream.state.system_streams import REGISTRY, STREAM_METRICS, SYSTEM_KEYS
from tests.unit.effort import brief
from tests.unit.state.command_sequences import PRELUDE, Step, Teller, steps
from tests.unit.state.content import Contents
from tests.unit.state.store import JSON, NOW_MS, TEXT, describe
from tests.unit.state.tiered import Tiered


def keeping(*commands: AnyCommand) -> StateMachine:
    machine = StateMachine()
    assert machine.apply(KeepSystemStream(NOW_MS, REGISTRY)) is Done.CREATED
    for command in commands:
        machine.apply(command)
    return machine


def id_of(machine: StateMachine, path: bytes) -> StreamId:
    stream = machine.find(path)
    assert stream is not None
    return stream.stream_id


def records(machine: StateMachine, contents: Contents | None = None) -> list[dict[str, Any]]:
    stream = machine.find(REGISTRY)
    assert stream is not None
    messages = (contents or Contents(machine)).messages(stream)
    return [msgspec.json.decode(message.rstrip(b",")) for message in messages]


def test_a_creation_is_told_with_what_the_stream_is() -> None:
    create = CreateStream(NOW_MS, b"_default/a", JSON, ttl_ms=90_000)
    machine = keeping(create, CreateStream(NOW_MS, b"x/b c", TEXT, expires_at_ms=0, closed=True))
    assert records(machine) == [
        {
            "type": "stream.created",
            "stream": "/v1/stream/a",
            "at": records(machine)[0]["at"],
            "content_type": "application/json",
            "ttl_seconds": 90,
            "profile": "generic",
            "schema_version": 0,
        },
        {
            "type": "stream.created",
            "stream": "/v1/stream/x/b c",
            "at": records(machine)[0]["at"],
            "content_type": TEXT.decode(),
            "expires_at": "1970-01-01T00:00:00.000Z",
            "closed": True,
            "profile": "generic",
            "schema_version": 0,
        },
    ]


def test_a_creation_that_creates_nothing_is_not_told() -> None:
    create = CreateStream(NOW_MS, b"x/a", TEXT)
    machine = keeping(create, create, CreateStream(NOW_MS, b"x/a", JSON))
    assert len(records(machine)) == 1


def test_a_fork_is_told_with_its_source_and_the_place() -> None:
    machine = keeping(CreateStream(NOW_MS, b"x/a", TEXT, data=b"abc", count=1))
    machine.apply(CreateStream(NOW_MS, b"x/f", TEXT, fork_from=b"x/a"))
    fork = records(machine)[1]
    assert (fork["type"], fork["source"]) == ("stream.forked", "/v1/stream/x/a")
    assert fork["fork_offset"] == "0000000000000001_0000000000000003"


def test_an_end_is_told_once_with_the_tail() -> None:
    machine = keeping(
        CreateStream(NOW_MS, b"x/a", TEXT, data=b"abc", count=1),
        CreateStream(NOW_MS, b"x/b", TEXT, ttl_ms=1000),
    )
    delete, expire = (
        DeleteStream(NOW_MS, id_of(machine, b"x/a")),
        ExpireStream(NOW_MS + 1000, id_of(machine, b"x/b")),
    )
    for command in (delete, delete, expire, expire):
        machine.apply(command)
    told = [(r["type"], r["stream"], r["next_offset"]) for r in records(machine)[2:]]
    assert told == [
        ("stream.deleted", "/v1/stream/x/a", "0000000000000001_0000000000000003"),
        ("stream.expired", "/v1/stream/x/b", "0000000000000000_0000000000000000"),
    ]


def test_a_stream_whose_name_is_taken_after_its_time_has_expired_before() -> None:
    machine = keeping(
        CreateStream(NOW_MS, b"x/a", TEXT, ttl_ms=1000),
        CreateStream(NOW_MS + 1000, b"x/a", TEXT),
    )
    types = [record["type"] for record in records(machine)]
    assert types == ["stream.created", "stream.expired", "stream.created"]


def test_a_change_of_rules_is_told_with_the_profile_and_the_version() -> None:
    machine = keeping(CreateStream(NOW_MS, b"x/a", JSON))
    rules = Rules(0, "evlog", b'{"kind":"evlog"}', (b"{}",))
    machine.apply(SetRules(NOW_MS, id_of(machine, b"x/a"), 0, rules, is_fresh=True))
    changed = records(machine)[1]
    assert (changed["type"], changed["profile"]) == ("stream.rules_changed", "evlog")
    assert changed["schema_version"] == 1


def test_a_registry_that_is_not_kept_gets_no_records_and_goes_on_when_it_is_again() -> None:
    machine = keeping(CreateStream(NOW_MS, b"x/a", TEXT))
    assert machine.apply(KeepSystemStream(NOW_MS, REGISTRY, is_kept=False)) is Done.ACCEPTED
    machine.apply(CreateStream(NOW_MS, b"x/b", TEXT))
    assert machine.apply(KeepSystemStream(NOW_MS, REGISTRY)) is Done.ACCEPTED
    machine.apply(CreateStream(NOW_MS, b"x/c", TEXT))
    assert [r["stream"] for r in records(machine)] == ["/v1/stream/x/a", "/v1/stream/x/c"]


def test_no_append_of_a_client_gets_into_a_system_stream() -> None:
    machine = keeping()
    append = Append(NOW_MS, id_of(machine, REGISTRY), b"{}", b"", 1, JSON)
    assert isinstance(machine.apply(append), RulesChanged)
    assert records(machine) == []


def test_what_the_server_writes_has_keys_and_wakes_readers_but_is_no_append() -> None:
    machine = StateMachine()
    machine.apply(KeepSystemStream(NOW_MS, STREAM_METRICS, rules=Rules(7, "metrics")))
    machine.take_outbox()
    write = WriteSystemStream(NOW_MS, STREAM_METRICS, b"{},", b"", 1, (b"series",))
    assert machine.apply(write) is Done.ACCEPTED
    stream = machine.find(STREAM_METRICS)
    assert stream is not None
    assert stream.rules is not None
    assert (stream.rules.kind, stream.rules.revision) == ("metrics", 1)
    assert machine.take_outbox().grown == {stream.stream_id}
    [block] = stream.log.unpublished()
    assert block.keys in (b"series", (b"series",))


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (KeepSystemStream(NOW_MS, b"x/a"), InvalidRequest),
        (WriteSystemStream(NOW_MS, STREAM_METRICS, b"{},", b"", 1), StreamNotFound),
        (WriteSystemStream(NOW_MS, b"x/a", b"{},", b"", 1), StreamNotFound),
    ],
)
def test_other_streams_are_not_written_by_the_server(
    command: AnyCommand, refusal: type[Exception]
) -> None:
    machine = keeping(CreateStream(NOW_MS, b"x/a", TEXT))
    before = describe(machine)
    assert isinstance(machine.apply(command), refusal)
    assert describe(machine) == before


def test_a_stream_that_had_the_name_before_is_left_alone() -> None:
    machine = StateMachine()
    machine.apply(CreateStream(NOW_MS, REGISTRY, TEXT))
    assert isinstance(machine.apply(KeepSystemStream(NOW_MS, REGISTRY)), StreamExists)
    machine.apply(CreateStream(NOW_MS, b"x/a", TEXT))
    assert list(machine.names.keys_from(b"")) == [REGISTRY, b"x/a"]
    assert Contents(machine).messages(machine.by_id[id_of(machine, REGISTRY)]) == []


def test_no_bucket_counts_them_and_no_listing_has_them_unasked() -> None:
    machine = keeping()
    assert (len(machine.names), list(machine.names.buckets)) == (0, [])
    machine.apply(CreateStream(NOW_MS, b"_default/a", TEXT))
    assert machine.names.buckets[b"_default"].streams == 1
    assert list(machine.names.keys_from(b"")) == [b"_default/a"]
    assert list(machine.names.keys_from(b"", with_hidden=True)) == [REGISTRY, b"_default/a"]


def test_a_pattern_does_not_follow_them_and_a_name_does() -> None:
    machine = keeping()
    hook = "https://hooks.example/in"
    machine.apply(CreateSubscription(NOW_MS, "s", "", 1000, b"**", webhook_url=hook))
    machine.apply(CreateSubscription(NOW_MS, "t", "", 1000, None, (REGISTRY,), webhook_url=hook))
    machine.apply(CreateStream(NOW_MS, b"x/a", TEXT))
    assert not machine.subscriptions.by_id["s"].pending
    assert list(machine.subscriptions.by_id["t"].pending) == [REGISTRY]


# Against a plain reading of the same commands


def expected_records(commands: list[AnyCommand], shards: int) -> list[tuple[str, str]]:
    """Which records there have to be, from what became of each command."""
    machine, told, names = StateMachine(shards), list[tuple[str, str]](), dict[StreamId, str]()
    for command in commands:
        taken = machine.find(command.path) if isinstance(command, CreateStream) else None
        ended = taken if taken is not None and taken.is_expired(command.now_ms) else None
        is_kept = machine.system.is_kept(REGISTRY)
        outcome = machine.apply(command)
        for kind, name in _told_by(command, outcome, names, ended is not None):
            if is_kept:
                told.append((kind, name))
        names |= {i: _name(s.path) for i, s in machine.by_id.items() if i not in names}
    return told


def _told_by(
    command: AnyCommand, outcome: Outcome, names: dict[StreamId, str], replaces: bool
) -> list[tuple[str, str]]:
    if isinstance(command, CreateStream) and outcome is Done.CREATED:
        kind = "stream.created" if command.fork_from is None else "stream.forked"
        before = [("stream.expired", _name(command.path))] if replaces else []
        return [*before, (kind, _name(command.path))]
    if isinstance(command, DeleteStream) and outcome is Done.DELETED:
        return [("stream.deleted", names[command.stream_id])]
    if isinstance(command, ExpireStream) and outcome is Done.DELETED:
        return [("stream.expired", names[command.stream_id])]
    return []


def _name(path: bytes) -> str:
    return f"/v1/stream/{path.decode()}"


class CarefulTeller(Teller):
    """The registry is kept from the start, and no command trims, forks, ends or stops it."""

    def _concrete(self, step: Step) -> AnyCommand:
        command = super()._concrete(step)
        registry_id = self.machine.system.registry_id
        if registry_id is None:
            return KeepSystemStream(NOW_MS, REGISTRY)
        named = (getattr(command, "stream_id", 0), getattr(command, "fork_from", b""))
        is_harmful = registry_id == named[0] or named[1] in SYSTEM_KEYS
        if is_harmful or isinstance(command, KeepSystemStream | WriteSystemStream):
            return NoOp(command.now_ms)
        return command


@settings(brief, max_examples=150)
@given(st.lists(steps, min_size=8, max_size=60), st.sampled_from([1, 3]))
def test_the_registry_has_one_record_for_everything_that_became_of_a_stream(
    drawn: list[Step], shards: int
) -> None:
    teller = CarefulTeller(shards)
    for step in (PRELUDE[0], *PRELUDE, *drawn):
        teller.tell(step)
    tiered = Tiered(shards, teller.objects)
    for number, command in enumerate(teller.commands):
        tiered.apply(decode_command(encode_command(command)))
        if number % 5 == 4:
            tiered.checkpoint()
            tiered.restart()
    expected = expected_records(teller.commands, shards)
    contents = Contents(teller.machine, None, teller.objects)
    assert [(r["type"], r["stream"]) for r in records(teller.machine, contents)] == expected
    assert [(r["type"], r["stream"]) for r in records(tiered.machine, tiered.contents)] == expected
