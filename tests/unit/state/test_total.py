"""Every command can be applied, whatever is in it: to the state it meets it is an answer, a change
or nothing, never an error. What could not be applied would stop the server at every start.

The same commands, read back from the bytes that the journal keeps, lead to the same state, and a
checkpoint and a restart can come between any two of them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import StreamError
from millstream.formats.blocks import Keys
from millstream.formats.layout import ShardLayout, StreamId
from millstream.formats.runs import Run, Segment
from millstream.state import commands as kinds
from millstream.state.commands import (
    AckWake,
    AnyCommand,
    Append,
    CreateStream,
    CreateSubscription,
    DeleteStream,
    PublishRuns,
    PublishSnapshot,
    TrimStream,
    decode_command,
    encode_command,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from millstream.state.rules import Rules
from millstream.state.system_streams import SYSTEM_KEYS
from tests.unit.effort import brief
from tests.unit.state.command_sequences import Step, Teller, followed
from tests.unit.state.content import Contents
from tests.unit.state.followers import describe_subscriptions
from tests.unit.state.store import Store, describe
from tests.unit.state.tiered import Tiered

SHARDS = 3
I64_MIN, U64_MAX = -(2**63), 2**64 - 1

# Small numbers meet what is there; the others are where arithmetic ends.
edges = [I64_MIN, I64_MIN + 1, -1, 0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, U64_MAX]
numbers = st.one_of(st.integers(-2, 40), st.sampled_from(edges), st.integers(I64_MIN, U64_MAX))
times = st.one_of(st.integers(0, 10), st.sampled_from([0, 1_750_000_000_000, 2**62]))
names = st.sampled_from(
    [
        *(b"", b"/", b"x/a", b"x/b", b"y/a", b"x" * 1024, b"x/" * 512, b"\xff\xfe/\x00"),
        *(b"_default/a", *sorted(SYSTEM_KEYS)),
    ]
)
patterns = st.sampled_from(
    [None, b"", b"*", b"**", b"/", b"x/*", b"**/" * 200, b"\xff/*", b"*/" * 500, b"%2A", b"x/a"]
)
texts = st.sampled_from(["", "s", "t", "é" * 200, "\x00", "w0"])
blobs = st.binary(max_size=4)


def _of_type(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field, by what its declaration says."""
    return {
        int: numbers,
        StreamId: numbers,
        int | None: st.none() | numbers,
        bool: st.booleans(),
        bytes: st.one_of(names, blobs),
        bytes | None: st.none() | names,
        str: texts,
        str | None: st.none() | texts,
        Keys: st.none() | blobs | st.lists(st.none() | blobs, max_size=4).map(tuple),
        Rules: rules,
        Rules | None: st.none() | rules,
        Segment: segments,
        list[Segment]: st.lists(segments, max_size=2),
        list[Run]: st.lists(runs, max_size=4),
        list[list[Run]]: st.lists(st.lists(runs, max_size=3), max_size=2),
        list[str]: st.lists(texts, max_size=3),
        tuple[str, ...]: st.lists(texts, max_size=3).map(tuple),
        tuple[bytes, ...]: st.lists(names, max_size=4).map(tuple),
        tuple[StreamId, int, int, int, int] | None: st.none() | st.tuples(*[numbers] * 5),
        tuple[tuple[StreamId, int, int], ...]: st.lists(st.tuples(*[numbers] * 3)).map(tuple),
        tuple[tuple[bytes, int | None, int | None], ...]: st.lists(
            st.tuples(names, st.none() | numbers, st.none() | numbers), max_size=4
        ).map(tuple),
    }[annotation]


documents = st.lists(blobs, max_size=3).map(tuple)
boundaries = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
rules = st.builds(
    Rules, numbers, texts, blobs, documents, documents, blobs, blobs, boundaries, st.booleans()
)
runs = st.builds(Run, *[numbers] * 10, blobs)
segments = st.builds(
    Segment, st.uuids().map(str), st.integers(-1, SHARDS), *[st.one_of(numbers)] * 4
)


def _any_of_kind(kind: type[Any]) -> st.SearchStrategy[AnyCommand]:
    fields = {
        field.name: times if field.name == "now_ms" else _of_type(field.type)
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(kind, **fields)


SOURCE = next(b"%d" % n for n in range(99) if ShardLayout(SHARDS).shard_of_path(b"%d" % n) == 0)
ID = StreamId(3)
EVERY_KIND = sorted(kinds.AnyCommand.__args__, key=lambda kind: kind.__name__)
anything = st.one_of([_any_of_kind(kind) for kind in EVERY_KIND])
lives = st.lists(st.one_of(followed, followed, anything), min_size=8, max_size=50)


class Life(Teller):
    """Commands that make sense, and in between them some that make none."""

    def tell_any(self, step: Step | AnyCommand) -> None:
        if isinstance(step, Step):
            self.tell(step)
        else:
            self.machine.apply(step)
            self.commands.append(step)


@brief
@given(lives)
@example([CreateStream(0, b"x/a", b"a/b", data=b"x", count=5)])
@example([CreateStream(0, b"x/a", b"a/b"), Append(0, StreamId(4), b"", b"", 1)])
@example([CreateStream(0, b"x/a", b"a/b", ttl_ms=U64_MAX, expires_at_ms=U64_MAX)])
@example(
    [
        CreateSubscription(0, "s", "", 1000, None, (b"x/a",), None, b"wake/x"),
        CreateStream(0, b"x/a", b"a/b", data=b"x", count=1),
        kinds.ClaimWake(0, "s", "w", "w0", I64_MIN),
        AckWake(0, "s", "w0", 1, ((b"x/a", None, None),)),
    ]
)
@example([CreateSubscription(0, "s", "", 1000, b"x/*"), CreateStream(0, b"x/a", b"a/b")])
def test_nothing_raises_and_the_bytes_lead_to_the_same_state(
    steps: list[Step | AnyCommand],
) -> None:
    life = Life(SHARDS)
    for step in steps:
        life.tell_any(step)
    again = StateMachine(SHARDS)
    for command in life.commands:
        again.apply(decode_command(encode_command(command)))
    assert describe(again) == describe(life.machine)


@brief
@given(lives, st.integers(1, 7))
def test_a_checkpoint_takes_whatever_was_applied(
    steps: list[Step | AnyCommand], every: int
) -> None:
    life = Life(SHARDS)
    for step in steps:
        life.tell_any(step)
    commands = [c for c in life.commands if not isinstance(c, kinds.ReplaceSegments)]
    tiered, plain = Tiered(SHARDS, life.objects), StateMachine(SHARDS)
    for number, command in enumerate(commands):
        plain.apply(command)
        tiered.apply(decode_command(encode_command(command)))
        if number % every == 0:
            tiered.advance()
            tiered.evict()
    tiered.checkpoint()
    tiered.restart()
    tiered.wake_all()
    expected = describe(plain, Contents(plain, None, life.objects))
    assert describe(tiered.machine, tiered.contents) == expected
    assert describe_subscriptions(tiered.machine) == describe_subscriptions(plain)


@pytest.mark.parametrize(
    "command",
    [
        Append(5, StreamId(3), b"abc", b"", 2),
        Append(5, StreamId(3), b"abc", b"", -1),
        Append(5, StreamId(3), b"", b"", 1),
        Append(5, StreamId(3), b"abc", array("I", [1, 2]).tobytes(), 2),
        Append(5, StreamId(3), b"abc", array("I", [1, 3]).tobytes(), 3),
        Append(5, StreamId(3), b"abc", b"odd", 1),
        Append(5, StreamId(3), b"", b"", 2, pieces=(b"ab", b"c")),
        Append(5, StreamId(3), b"", array("I", [1, 3]).tobytes(), 2, pieces=(b"ab", b"c")),
        Append(5, StreamId(3), b"", array("I", [2, 1, 3]).tobytes(), 3, pieces=(b"ab", b"c")),
        Append(5, StreamId(3), b"", array("I", [2, 4]).tobytes(), 2, pieces=(b"ab", b"c")),
        Append(5, StreamId(3), b"x", array("I", [2, 3]).tobytes(), 2, pieces=(b"ab", b"c")),
        Append(5, StreamId(3), b"", b"", 1, pieces=(b"",)),
        Append(5, StreamId(3), b"x" * (3 << 20), array("I", [5, 4, 3 << 20]).tobytes(), 3),
        CreateStream(5, b"new", b"a/b", data=b"abc", count=2),
        CreateStream(5, b"new", b"a/b", fork_from=SOURCE, fork_ordinal=0, fork_sub_offset=-1),
        CreateStream(5, b"new", b"a/b", fork_from=SOURCE, fork_byte=0, fork_place=(ID, 0, 0, 9, 9)),
        CreateStream(5, b"new", b"a/b", fork_from=SOURCE, fork_byte=0, fork_place=(ID, 2, 2, 1, 1)),
        CreateSubscription(5, "s", "http://here", 1000, b"**"),
        PublishRuns(5, Segment("s", 3, 1, 1, 1, 1), []),
        PublishRuns(5, Segment("s", -1, 1, 1, 1, 1), []),
        PublishRuns(5, Segment("s", 0, 2**63, 1, 1, 1), []),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_cannot_be_is_refused_and_changes_nothing(command: AnyCommand) -> None:
    machine = StateMachine(SHARDS)
    machine.apply(CreateStream(5, SOURCE, b"a/b", data=b"one", count=1))
    assert list(machine.by_id) == [3]
    before = describe(machine)
    assert isinstance(machine.apply(command), StreamError)
    assert describe(machine) == before
    assert not machine.changes.segments


def test_runs_that_cannot_be_are_passed_over() -> None:
    store = Store()
    store.create(b"a", b"one", b"two")
    stream_id = store[b"a"].stream_id
    good = Run(stream_id, 0, 0, 1, 3, 0, 0, 0)
    bad = [
        Run(stream_id, 0, 0, 0, 0, 0, 0, 0),
        Run(stream_id, 0, 0, -1, -3, 0, 0, 0),
        Run(stream_id, 0, 0, 3, 6, 0, 0, 0),
        Run(stream_id, 0, 0, 1, 2, 0, 0, 0),
        Run(stream_id, 1, 3, 1, 3, 0, 0, 2**63),
        Run(stream_id, 2**63, 3, 1, 3, 0, 0, 0),
        Run(stream_id, 1, 3, 1, 3, 0, 0, 0, 0, 2**63),
        Run(stream_id, 1, 3, 1, 3, 0, 0, 0, -1, 5),
        good,  # a second time
    ]
    command = PublishRuns(5, Segment("s", 0, 1, 1, 1, 1), [bad[0], good, *bad[1:]])
    assert store.machine.apply(command) is Done.PUBLISHED
    log = store[b"a"].log
    assert (log.cold_ordinal, log.cold_byte) == (1, 3)
    assert log.runs == [(command.segment, good)]


def test_a_trim_or_a_snapshot_at_an_impossible_place_changes_nothing() -> None:
    store = Store()
    store.create(b"a", b"one", b"two")
    store.flush(b"a")
    stream_id = store[b"a"].stream_id
    before = describe(store.machine)
    for ordinal, byte in [(1, -1), (1, I64_MIN), (U64_MAX, U64_MAX), (2, U64_MAX), (I64_MIN, 0)]:
        store.machine.apply(TrimStream(5, stream_id, ordinal, byte))
        publish = PublishSnapshot(5, stream_id, ordinal, byte, "b", b"a/b", 0, "", True)
        assert isinstance(store.machine.apply(publish), StreamError)
    assert describe(store.machine) == before


# Cost: twice as much of anything takes about twice as long, not four times.

SCALE_MAX, MEASUREMENTS = 4.0, 5


def best_seconds(build: Callable[[int], Callable[[], object]], size: int) -> float:
    """CPU time, the best of a few: others share the machine."""
    found = []
    for _ in range(MEASUREMENTS):
        act = build(size)
        began = time.thread_time()
        act()
        found.append(time.thread_time() - began)
    return min(found)


def deep_chain(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"0")
    for number in range(1, size):
        store.fork(b"%d" % number, b"%d" % (number - 1))
    for number in range(size - 1):
        store.delete(b"%d" % number)
    return lambda: store.delete(b"%d" % (size - 1))


def many_producers(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"a")
    for number in range(size):
        store.produce(b"a", 0, 0, b"%d" % number)
    return lambda: [store.produce(b"a", 0, 1, b"%d" % number) for number in range(100)]


def huge_batch(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"a")
    messages = (b"1,",) * size
    return lambda: store.append(b"a", *messages)


def many_followers(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"x/a")
    for number in range(size):
        url, links = "https://hooks.example/in", (b"x/a",)
        command = CreateSubscription(5, f"s{number}", "http://here", 1000, None, links, url)
        store.machine.apply(command)
    return lambda: [store.append(b"x/a", b"x"), store.delete(b"x/a")]


def many_patterns(size: int) -> Callable[[], object]:
    store = Store()
    for number in range(size):
        url = "https://hooks.example/in"
        command = CreateSubscription(5, f"s{number}", "http://here", 1000, b"x/**", (), url)
        store.machine.apply(command)
    return lambda: [store.create(b"x/a", b"x"), store.delete(b"x/a")]


def matched(size: int) -> tuple[Store, CreateSubscription]:
    store = Store()
    for number in range(size):
        store.create(b"x/%d" % number)
    url = "https://hooks.example/in"
    return store, CreateSubscription(5, "s", "http://here", 1000, b"x/*", (), url)


def many_matches(size: int) -> Callable[[], object]:
    store, subscribe = matched(size)
    return lambda: store.machine.apply(subscribe)


def many_links(size: int) -> Callable[[], object]:
    store, subscribe = matched(size)
    store.machine.apply(subscribe)
    for number in range(size):
        store.append(b"x/%d" % number, b"x")
    return lambda: store.machine.apply(kinds.DeleteSubscription(5, "s"))


def many_runs(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"a", *[b"1,"] * size)
    stream_id = store[b"a"].stream_id
    runs = [Run(stream_id, n, 2 * n, 1, 2, 0, n, 0) for n in range(size)]
    command = PublishRuns(5, Segment("s", 0, 1, 1, 1, 1), runs)
    return lambda: store.machine.apply(command)


def many_forks(size: int) -> Callable[[], object]:
    store = Store()
    store.create(b"a", b"one")
    for number in range(size):
        store.fork(b"f/%d" % number, b"a")
    stream_id = store[b"a"].stream_id
    return lambda: [
        store.fork(b"g", b"a"),
        store.machine.apply(DeleteStream(5, stream_id)),
        store.delete(b"g"),
    ]


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (deep_chain, 2000),
        (many_producers, 5000),
        (huge_batch, 50_000),
        (many_followers, 500),
        (many_patterns, 200),
        (many_matches, 3000),
        (many_links, 3000),
        (many_runs, 5000),
        (many_forks, 3000),
    ],
)
def test_the_cost_of_a_command_grows_with_what_it_is_about_and_no_faster(
    build: Callable[[int], Callable[[], object]], size: int
) -> None:
    once, twice = best_seconds(build, size), best_seconds(build, 2 * size)
    assert twice <= SCALE_MAX * max(once, 0.0002), (once, twice)
