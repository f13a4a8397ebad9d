"""Applying a command reads no file: what it needs is in memory before it is submitted, and stays
there until it is applied, whatever leaves memory meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine import engine as engine_module
from millstream.errors import CatalogUnavailable, StreamError
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import encode_offset
from millstream.state.commands import (
    AckWake,
    AnyCommand,
    Append,
    ClaimWake,
    CreateStream,
    CreateSubscription,
    DeleteStream,
    ExpireStream,
    IssueWake,
    LinkStreams,
    PublishSnapshot,
    ReportDelivery,
    TouchStream,
    TrimStream,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done, Outcome
from tests.support.memory_store import MemoryStore
from tests.unit.effort import brief
from tests.unit.engine.world import World
from tests.unit.state.command_sequences import Step, Teller, followed, steps_of
from tests.unit.state.content import Contents
from tests.unit.state.followers import describe_subscriptions
from tests.unit.state.store import NOW_MS, describe, gather
from tests.unit.state.tiered import Stage, Tiered

HOOK = "https://hooks.example/in"


class GuardedStore(MemoryStore):
    """Tells who asks it, and does not answer in the middle of an apply."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.is_applying = False
        self.reads = 0
        self.error: OSError | None = None

    def _asked(self) -> None:
        assert not self.is_applying, "apply asks the store"
        self.reads += 1
        if self.error is not None:
            raise self.error

    def find(self, path: bytes) -> bytes | None:
        self._asked()
        return super().find(path)

    def find_by_id(self, stream_id: int) -> bytes | None:
        self._asked()
        return super().find_by_id(stream_id)

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        for name in super().names(first, inclusive=inclusive):
            self._asked()
            yield name
        self._asked()


class RestingWorld:
    """An engine whose streams rest on a store; commands wait in the journal until `commit`."""

    def __init__(self, shards: int = 1) -> None:
        self.store = GuardedStore(shards)
        self.tiered = Tiered(shards)
        self.tiered.store = self.store
        self.machine = self.tiered.machine = StateMachine(shards, self.store)
        for name in ("apply", "apply_append"):
            setattr(self.machine, name, self._guarded(getattr(self.machine, name)))
        self.world = World(self.machine, start_ms=NOW_MS)
        self.engine = self.world.engine

    def _guarded(self, apply: Callable[..., Outcome]) -> Callable[..., Outcome]:
        def guarded(*command: Any) -> Outcome:
            before, self.store.is_applying = self.store.is_applying, True
            try:
                return apply(*command)
            finally:
                self.store.is_applying = before

        return guarded

    def submit(self, command: AnyCommand) -> None:
        self.world.submit(command, type(command).__name__)

    def turn(self) -> None:
        """The loop runs one callback."""
        if self.world.loop._ready:
            self.world.loop._ready.pop(0)._run()

    def commit(self) -> None:
        self.world.commit()
        assert self.engine.failure is None, self.engine.failure

    def do(self, command: AnyCommand) -> Outcome:
        self.submit(command)
        self.commit()
        outcome: Outcome = self.world.outcomes[-1][1]
        return outcome

    def advance(self) -> None:
        """The next step of a checkpoint."""
        if self.engine.applied_lsn > 0:
            self.tiered.lsn = self.engine.applied_lsn
            self.tiered.advance()

    def rest(self) -> None:
        """Everything that can leaves memory."""
        self.tiered.lsn = self.engine.applied_lsn
        self.tiered.checkpoint()
        self.tiered.evict()

    def create(self, path: bytes, **fields: Any) -> int:
        assert self.do(CreateStream(self.world.now_ms, path, b"text/plain", **fields)) in (
            Done.CREATED,
        )
        return self.machine.residents.by_path[path].stream_id


def fork(world: RestingWorld, path: bytes, source: bytes) -> int:
    return world.create(path, fork_from=source, lifetime_given=False)


def followed_world(pull: bool = False) -> tuple[RestingWorld, int]:
    """A subscription with work; the stream it follows has a message."""
    world = RestingWorld()
    target = {"wake_stream": b"x/wake"} if pull else {"webhook_url": HOOK}
    world.create(b"x/wake")
    subscribe = CreateSubscription(NOW_MS, "s", "http://here", 1000, None, (b"x/a",), **target)
    assert world.do(subscribe) is Done.CREATED
    stream_id = world.create(b"x/a", data=b"one", count=1)
    flush(world, stream_id)
    return world, stream_id


def flush(world: RestingWorld, stream_id: int) -> None:
    stream = world.machine.by_id[StreamId(stream_id)]
    name = f"segment-{len(world.tiered.objects)}"
    command = gather(world.machine, world.tiered.objects, name, [(stream, None)], NOW_MS)
    assert world.do(command) is Done.PUBLISHED


Scene = Callable[[], tuple[RestingWorld, AnyCommand, Any]]


def an_append() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    return world, Append(NOW_MS, StreamId(world.create(b"a")), b"x", b"", 1), Done.APPENDED


def a_touch() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    return world, TouchStream(NOW_MS + 1, StreamId(world.create(b"a"))), Done.TOUCHED


def a_trim() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    stream_id = world.create(b"a", data=b"one", count=1)
    flush(world, stream_id)
    return world, TrimStream(NOW_MS, StreamId(stream_id), 1, 3), Done.ACCEPTED


def a_snapshot() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    stream_id = world.create(b"a", data=b"one", count=1)
    flush(world, stream_id)
    command = PublishSnapshot(NOW_MS, StreamId(stream_id), 1, 3, "blob", b"a/b", 1, "d", True)
    return world, command, Done.PUBLISHED


def a_refused_snapshot() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    stream_id = world.create(b"a")
    return (
        world,
        PublishSnapshot(NOW_MS, StreamId(stream_id), 7, 7, "blob", b"a/b", 1, "d"),
        StreamError,
    )


def a_snapshot_of_nothing() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    world.create(b"a")
    return world, PublishSnapshot(NOW_MS, StreamId(77), 0, 0, "blob", b"a/b", 1, "d"), StreamError


def a_creation() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    world.create(b"a")
    return world, CreateStream(NOW_MS, b"b", b"text/plain"), Done.CREATED


def a_creation_of_what_exists() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    world.create(b"a")
    return world, CreateStream(NOW_MS, b"a", b"text/plain"), Done.EXISTED


def a_creation_over_the_last_fork_of_a_chain() -> tuple[RestingWorld, AnyCommand, Any]:
    world, tip = chain()
    world.machine.by_id[StreamId(tip)].set_lifetime(1000, None)
    return world, CreateStream(NOW_MS + 1000, b"tip", b"text/plain"), Done.CREATED


def a_fork() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    world.create(b"a")
    command = CreateStream(NOW_MS, b"b", b"text/plain", fork_from=b"a", lifetime_given=False)
    return world, command, Done.CREATED


def chain() -> tuple[RestingWorld, int]:
    """Its ancestors are deleted and only there for it."""
    world = RestingWorld()
    ids = [world.create(b"0")]
    ids += [fork(world, b"%d" % number, b"%d" % (number - 1)) for number in range(1, 5)]
    tip = fork(world, b"tip", b"4")
    for stream_id in ids:
        assert world.do(DeleteStream(NOW_MS, StreamId(stream_id))) is Done.DELETED
    return world, tip


def an_end_of_a_chain() -> tuple[RestingWorld, AnyCommand, Any]:
    world, tip = chain()
    return world, DeleteStream(NOW_MS, StreamId(tip)), Done.DELETED


def an_expiry_of_a_chain() -> tuple[RestingWorld, AnyCommand, Any]:
    world, tip = chain()
    world.machine.by_id[StreamId(tip)].set_lifetime(1000, None)
    return world, ExpireStream(NOW_MS + 1000, StreamId(tip)), Done.DELETED


def a_pattern() -> tuple[RestingWorld, AnyCommand, Any]:
    world = RestingWorld()
    for path in (b"x/a", b"x/b", b"y/a", b"_default/x"):
        flush(world, world.create(path, data=b"one", count=1))
    command = CreateSubscription(NOW_MS, "s", "http://here", 1000, b"x/**", (b"y/a",), HOOK)
    return world, command, Done.CREATED


def a_link() -> tuple[RestingWorld, AnyCommand, Any]:
    world, _ = followed_world()
    world.create(b"y/a")
    return world, LinkStreams(NOW_MS, "s", (b"y/a", b"nowhere/a")), Done.ACCEPTED


def a_claim() -> tuple[RestingWorld, AnyCommand, Any]:
    world, _ = followed_world(pull=True)
    return world, ClaimWake(NOW_MS, "s", "worker", "w0"), Done.ACCEPTED


def a_wake() -> tuple[RestingWorld, AnyCommand, Any]:
    world, _ = followed_world(pull=True)
    return world, IssueWake(NOW_MS, "s", 1, "w0"), Done.ACCEPTED


def an_acknowledgement() -> tuple[RestingWorld, AnyCommand, Any]:
    world, _ = followed_world(pull=True)
    world.do(ClaimWake(NOW_MS, "s", "worker", "w0"))
    flush(world, world.machine.residents.by_path[b"x/wake"].stream_id)
    return world, AckWake(NOW_MS, "s", "w0", 1, ((b"x/a", 1, 3),), True), Done.ACCEPTED


def a_delivery() -> tuple[RestingWorld, AnyCommand, Any]:
    world, stream_id = followed_world()
    world.do(IssueWake(NOW_MS, "s", 1, "w0"))
    tails = ((StreamId(stream_id), 1, 3), (StreamId(77), 0, 0))
    return world, ReportDelivery(NOW_MS, "s", "w0", True, True, tails), Done.ACCEPTED


SCENES: list[Scene] = [
    an_append,
    a_touch,
    a_trim,
    a_snapshot,
    a_refused_snapshot,
    a_snapshot_of_nothing,
    a_creation,
    a_creation_of_what_exists,
    a_creation_over_the_last_fork_of_a_chain,
    a_fork,
    an_end_of_a_chain,
    an_expiry_of_a_chain,
    a_pattern,
    a_link,
    a_claim,
    a_wake,
    an_acknowledgement,
    a_delivery,
]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("steps_per_turn", [1, 64])
def test_what_a_command_needs_is_there_though_all_left_memory_before_and_after_it_was_submitted(
    scene: Scene, steps_per_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PREPARE_STEPS_PER_TURN", steps_per_turn)
    world, command, expected = scene()
    world.rest()
    assert not world.machine.by_id
    world.submit(command)
    while world.engine.journal.depth == 0:
        world.tiered.evict()
        world.turn()
    world.rest()
    world.rest()  # what was let go of before is settled now
    assert not world.machine.by_id
    world.commit()
    outcome = world.world.outcomes[-1][1]
    assert outcome is expected or isinstance(outcome, expected)
    world.do(Append(NOW_MS, StreamId(99), b"x", b"", 1))
    assert not world.machine.horizon._waiting, "nothing is kept for ever"
    assert not world.machine.residents._absent


def test_a_pattern_finds_every_stream_that_is_there_when_the_command_is_applied() -> None:
    world, command, _ = a_pattern()
    world.rest()
    gone = world.machine.find(b"x/b")
    assert gone is not None
    world.submit(Append(NOW_MS, StreamId(99), b"x", b"", 1))
    world.submit(CreateStream(NOW_MS, b"x/new", b"text/plain", data=b"four", count=1))
    world.submit(DeleteStream(NOW_MS, gone.stream_id))
    grown = world.machine.find(b"x/a")
    assert grown is not None
    world.submit(Append(NOW_MS, grown.stream_id, b"two", b"", 1))
    del gone, grown
    world.submit(command)
    world.rest()
    world.commit()
    subscriptions = world.machine.subscriptions
    followed, has_more = subscriptions.followed_streams(subscriptions.by_id["s"], 10, 100)
    assert not has_more
    assert {each.path: each.acked_offset for each in followed} == {
        "x": encode_offset(1, 3),
        "x/a": encode_offset(2, 6),
        "x/new": encode_offset(1, 4),
        "y/a": encode_offset(1, 3),
    }


def test_a_name_whose_stream_ends_before_the_command_is_applied_is_known_to_be_free() -> None:
    world = RestingWorld()
    stream_id = world.create(b"a")
    world.rest()
    world.submit(DeleteStream(NOW_MS, StreamId(stream_id)))
    world.submit(CreateStream(NOW_MS, b"a", b"text/plain"))
    world.commit()
    assert [outcome for _, outcome in world.world.outcomes[1:]] == [Done.DELETED, Done.CREATED]


@pytest.mark.parametrize("scene", SCENES)
def test_a_catalog_that_cannot_be_read_refuses_the_command_and_changes_nothing(
    scene: Scene,
) -> None:
    world, command, _ = scene()
    world.rest()
    world.store.error = OSError(errno.EIO, "Input/output error")
    reads = world.store.reads
    outcome = world.do(command)
    assert isinstance(outcome, CatalogUnavailable), outcome
    assert world.store.reads > reads
    assert world.engine.failure is None
    world.store.error = None
    before = describe(world.machine)
    world.world.outcomes.clear()
    world.submit(command)
    world.commit()
    assert not isinstance(world.world.outcomes[-1][1], CatalogUnavailable)
    assert before  # it could be described: nothing is half done


# Any commands, any time


class Act:
    """What happens between two commands."""

    NOTHING, COMMIT, TURN, ADVANCE, EVICT, EVICT_SOME = range(6)


acts = st.lists(st.sampled_from([0, 0, 1, 2, 2, 3, 3, 3, 4, 4, 5]), max_size=8)
endings = steps_of(["create", "fork", "fork", "delete", "delete", "expire", "append", "touch"])
stories = st.lists(st.tuples(st.one_of(followed, endings), acts), min_size=8, max_size=60)


def names_known(world: RestingWorld, command: AnyCommand) -> bool:
    """A handler only names what it has found."""
    stream_id = getattr(command, "stream_id", None)
    if stream_id is not None and world.machine.find_by_id(stream_id) is None:
        return False
    name = getattr(command, "subscription_id", None)
    return name is None or name in world.machine.subscriptions.by_id


@brief
@given(stories, st.sampled_from([1, 3]), st.sampled_from([1, 2, 64]))
def test_no_apply_ever_asks_the_store(
    story: list[tuple[Step, list[int]]], shards: int, steps_per_turn: int
) -> None:
    engine_module.PREPARE_STEPS_PER_TURN = steps_per_turn  # type: ignore[attr-defined]
    try:
        teller, world = Teller(shards), RestingWorld(shards)
        world.tiered.objects.update(teller.objects)
        for step, happenings in story:
            teller.tell(step)
            world.tiered.objects.update(teller.objects)
            command = teller.commands[-1]
            if not names_known(world, command):
                world.commit()
            while not _is_submitted(world, command):
                world.turn()
            for act in happenings:
                _happen(world, act)
        world.commit()
        assert [type(o) for _, o in world.world.outcomes if isinstance(o, CatalogUnavailable)] == []
        while world.tiered.stage is not Stage.IDLE:
            world.advance()
        world.tiered.wake_all()
        expected = describe(teller.machine, Contents(teller.machine, None, teller.objects))
        assert describe(world.machine, world.tiered.contents) == expected
        followers = describe_subscriptions(teller.machine)
        assert describe_subscriptions(world.machine) == followers
    finally:
        engine_module.PREPARE_STEPS_PER_TURN = 64  # type: ignore[attr-defined]


def _is_submitted(world: RestingWorld, command: AnyCommand) -> bool:
    """Commands are told in an order: the next one is prepared when this one is in the journal."""
    before = world.engine.journal.depth + world.engine.applied_lsn
    world.submit(command)
    while world.engine.journal.depth + world.engine.applied_lsn == before:
        world.turn()
    return True


def _happen(world: RestingWorld, act: int) -> None:
    if act == Act.COMMIT:
        world.commit()
    elif act == Act.TURN:
        world.turn()
    elif act == Act.ADVANCE:
        world.advance()
    elif act == Act.EVICT:
        world.tiered.evict()
    elif act == Act.EVICT_SOME:
        world.tiered.evict(2)
