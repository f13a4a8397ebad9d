from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from millstream.clock import ManualClock
from millstream.engine.engine import Engine
from millstream.errors import (
    AppendOutcomeUnknown,
    ShuttingDown,
    StorageFull,
    StreamClosed,
    StreamError,
    StreamGone,
    StreamNotFound,
)
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    PublishRuns,
    PublishSnapshot,
    SetRules,
    TrimStream,
)
from millstream.state.machine import StateMachine
from millstream.state.outbox import Outbox
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from tests.unit.engine.world import FakeWatcher, World


def watch(world: World, path: bytes = b"a") -> FakeWatcher:
    watcher = FakeWatcher(world.machine.residents.by_path[path])
    world.engine.watch(watcher.stream, watcher)
    return watcher


# Commands become state and answers


def test_a_batch_is_applied_in_order_and_each_command_answered_with_its_context() -> None:
    world = World()
    stream = world.create()
    world.outcomes.clear()
    for number in range(3):
        command = Append(world.now_ms, stream.stream_id, b"x", b"", 1, closes=number == 1)
        world.submit(command, number)
    assert world.outcomes == []
    world.commit()
    assert [context for context, _ in world.outcomes] == [0, 1, 2]
    first, second, third = (outcome for _, outcome in world.outcomes)
    assert (first, second) == (Done.APPENDED, Done.APPENDED)
    assert isinstance(third, StreamClosed)


def test_nothing_changes_before_the_journal_says_so() -> None:
    world = World()
    world.submit(CreateStream(world.now_ms, b"a", b"text/plain"))
    assert not world.exists()
    world.commit()
    assert world.exists()


def test_an_answer_finds_its_command_applied() -> None:
    world = World()
    stream = world.create()
    tails: list[int] = []
    command = Append(world.now_ms, stream.stream_id, b"x", b"", 1)
    world.engine.submit(command, lambda context, outcome: tails.append(stream.log.tail_ordinal), 0)
    world.commit()
    assert tails == [1]


def test_the_applied_lsn_is_the_journals() -> None:
    world = World()
    world.create()
    world.append()
    world.append()
    world.commit()
    assert world.engine.applied_lsn == 3


def test_before_the_first_batch_the_applied_lsn_is_the_recovered_one() -> None:
    assert Engine(StateMachine(), MemoryJournal(), ManualClock(), 41).applied_lsn == 41


def test_appends_are_counted_and_refusals_are_not() -> None:
    world = World()
    world.create()
    world.append()
    world.submit(Append(world.now_ms, StreamId(99), b"x", b"", 1))
    world.commit()
    assert world.engine.appends == 1


def test_after_every_batch_the_checkpointer_may_look() -> None:
    world = World()
    seen: list[int] = []
    world.engine.listeners.append(lambda _: seen.append(world.engine.applied_lsn))
    world.create()
    world.append()
    world.append()
    world.commit()
    assert seen == [1, 3]


def test_a_refused_batch_is_answered_with_the_reason_and_changes_nothing() -> None:
    world = World()
    world.journal.is_full = True
    for number, path in enumerate([b"a", b"b"]):
        world.submit(CreateStream(world.now_ms, path, b"text/plain"), number)
    world.commit()
    assert [(context, type(outcome)) for context, outcome in world.outcomes] == [
        (0, StorageFull),
        (1, StorageFull),
    ]
    assert world.machine.residents.by_path == {}


# Finding


def test_a_stream_is_found_by_its_name() -> None:
    world = World()
    stream = world.create()
    assert world.engine.find(b"a", world.now_ms) is stream


def test_what_is_unknown_is_not_found() -> None:
    world = World()
    with pytest.raises(StreamNotFound):
        world.engine.find(b"a", world.now_ms)


def test_what_is_kept_for_its_forks_is_gone() -> None:
    world = World()
    world.create(b"a")
    world.create(b"f", fork_from=b"a")
    world.delete(b"a")
    world.commit()
    with pytest.raises(StreamGone):
        world.engine.find(b"a", world.now_ms)


def test_what_is_expired_is_not_found_even_before_it_is_removed() -> None:
    world = World()
    world.create(expires_at_ms=world.now_ms + 1000)
    world.clock.advance(999)
    world.engine.find(b"a", world.now_ms)
    world.clock.advance(1)
    assert world.exists()
    with pytest.raises(StreamNotFound):
        world.engine.find(b"a", world.now_ms)


# Waiting readers


def test_a_watcher_is_woken_once_per_batch_and_sees_all_of_it() -> None:
    world = World()
    world.create()
    watcher = watch(world)
    for _ in range(3):
        world.append()
    world.commit()
    assert watcher.tails == [3]
    world.append()
    world.commit()
    assert watcher.tails == [3, 4]


def test_every_watcher_of_the_stream_is_woken_and_no_other() -> None:
    world = World()
    world.create(b"a")
    world.create(b"b")
    first, second, other = watch(world, b"a"), watch(world, b"a"), watch(world, b"b")
    world.append(b"a")
    world.commit()
    assert (len(first.tails), len(second.tails), len(other.tails)) == (1, 1, 0)


def test_a_close_wakes() -> None:
    world = World()
    stream = world.create()
    watcher = watch(world)
    world.submit(Append(world.now_ms, stream.stream_id, closes=True))
    world.commit()
    assert watcher.tails == [0]


def test_a_delete_wakes_and_the_stream_says_that_it_ended() -> None:
    world = World()
    world.create()
    watcher = watch(world)
    world.delete()
    world.commit()
    assert watcher.ended
    assert world.machine.outbox.ended == []  # told once


def test_a_delete_of_a_forked_stream_wakes_its_watchers_and_not_the_forks() -> None:
    world = World()
    world.create(b"a")
    world.create(b"f", fork_from=b"a")
    source, fork = watch(world, b"a"), watch(world, b"f")
    world.delete(b"a")
    world.commit()
    assert source.ended
    assert fork.tails == []


def test_a_refused_append_wakes_nobody() -> None:
    world = World()
    stream = world.create(closed=True)
    watcher = watch(world)
    world.submit(Append(world.now_ms, stream.stream_id, b"x", b"", 1))
    world.commit()
    assert watcher.tails == []


def test_a_watcher_that_left_is_not_woken() -> None:
    world = World()
    stream = world.create()
    watcher, staying = watch(world), watch(world)
    world.engine.unwatch(stream, watcher)
    world.append()
    world.commit()
    assert watcher.tails == []
    assert staying.tails == [1]


def test_a_watcher_may_leave_while_it_is_woken() -> None:
    world = World()
    stream = world.create()
    watchers = [watch(world) for _ in range(3)]
    for watcher in watchers:
        watcher.when_told = lambda leaving: world.engine.unwatch(stream, leaving)
    world.append()
    world.append()
    world.commit()
    assert [watcher.tails for watcher in watchers] == [[2], [2], [2]]
    assert world.engine.watcher_count == 0
    assert world.engine.watchers == {}


def observe(world: World) -> FakeWatcher:
    watcher = FakeWatcher(world.machine.residents.by_path[b"a"])
    world.engine.observe(watcher.stream, watcher)
    return watcher


SEGMENT = Segment("segments/0000/0000000000001-00000000.parquet", 0, 99, 9, 1, 1)
UNSEEN: dict[str, Callable[[StreamId], AnyCommand]] = {
    "flushed": lambda i: PublishRuns(1, SEGMENT, [Run(i, 0, 0, 1, 3, 0, 0, 0)]),
    "trimmed": lambda i: TrimStream(1, i, 1, 3),
    "snapshot": lambda i: PublishSnapshot(1, i, 1, 3, "blob", b"text/plain", 1, "d"),
    "other rules": lambda i: SetRules(1, i, 0, Rules(0, "evlog")),
}


@pytest.mark.parametrize("change", UNSEEN)
def test_what_readers_do_not_see_wakes_those_who_observe(change: str) -> None:
    world = World()
    stream = world.create(content_type=b"application/json", data=b'"1"', count=1)
    watcher, observer = watch(world), observe(world)
    world.submit(UNSEEN[change](stream.stream_id))
    world.commit()
    assert not isinstance(world.outcomes[-1][1], StreamError), world.outcomes
    assert (watcher.tails, observer.tails) == ([], [1])
    world.engine.unobserve(stream, observer)
    world.submit(TrimStream(world.now_ms, stream.stream_id, 1, 3))
    world.delete()
    world.commit()
    assert (watcher.ended, observer.tails) == (True, [1])
    assert (world.engine.observers, world.engine.watcher_count) == ({}, 1)


def test_those_who_observe_hear_of_appends_and_of_the_end_too() -> None:
    world = World()
    world.create()
    observer = observe(world)
    world.append()
    world.commit()
    world.delete()
    world.commit()
    assert (observer.tails, observer.ended) == ([1, 1], True)


def test_a_change_of_another_stream_wakes_no_observer() -> None:
    world = World()
    world.create()
    other = world.create(b"b", data=b"one", count=1)
    observer = observe(world)
    for make in UNSEEN.values():
        world.submit(make(other.stream_id))
        world.commit()
    assert observer.tails == []


def test_the_count_of_watchers_survives_leaving_twice() -> None:
    world = World()
    stream = world.create()
    first, second = watch(world), watch(world)
    assert world.engine.watcher_count == 2
    world.engine.unwatch(stream, first)
    world.engine.unwatch(stream, first)
    assert world.engine.watcher_count == 1
    world.engine.unwatch(stream, second)
    world.engine.unwatch(stream, second)
    assert world.engine.watcher_count == 0


def test_a_stop_tells_every_watcher_and_lets_it_leave_meanwhile() -> None:
    world = World()
    world.create(b"a")
    world.create(b"b")
    watchers = [watch(world, b"a"), watch(world, b"a"), watch(world, b"b")]
    for watcher in watchers:
        watcher.when_told = lambda leaving: world.engine.unwatch(leaving.stream, leaving)
    world.engine.end_watchers()
    assert [watcher.shut_downs for watcher in watchers] == [1, 1, 1]
    assert world.engine.watcher_count == 0


# What nobody expected


def break_append(world: World, broken: bytes) -> None:
    """From now on an append of this content cannot be applied, and leaves half of it behind."""
    apply = world.machine.apply_append

    def apply_append(command: Append, *entry: Any) -> Outcome:
        if command.data == broken:
            world.machine.by_id[command.stream_id].last_write_ms = -1
            raise ZeroDivisionError("injected")
        return apply(command, *entry)

    world.machine.apply_append = apply_append  # type: ignore[method-assign,assignment]


def kinds(world: World) -> list[tuple[Any, Any]]:
    return [(c, o if isinstance(o, Done) else type(o)) for c, o in world.outcomes]


def submit_appends(world: World, stream_id: int, *contents: bytes) -> None:
    for data in contents:
        world.submit(Append(world.now_ms, StreamId(stream_id), data, b"", 1), data)


def test_a_reply_that_fails_harms_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    stream = world.create()
    watcher, abandoned, after = watch(world), list[object](), list[int]()
    world.engine.abandon = abandoned.append
    world.engine.listeners.append(lambda _: after.append(world.engine.applied_lsn))
    world.outcomes.clear()

    def fail(context: object, outcome: Outcome) -> None:
        raise KeyError("injected")

    submit_appends(world, stream.stream_id, b"one")
    command = Append(world.now_ms, stream.stream_id, b"two", b"", 1)
    world.engine.submit(command, fail, "its context")
    submit_appends(world, stream.stream_id, b"three")
    world.commit()
    assert world.outcomes == [(b"one", Done.APPENDED), (b"three", Done.APPENDED)]
    assert b"".join(stream.log.slices(0, stream.log.tail_byte)) == b"onetwothree"
    assert watcher.tails == [3]
    assert (world.engine.appends, world.engine.applied_lsn, after) == (3, 4, [4])
    assert abandoned == ["its context"]
    assert world.engine.faults.counts["reply"] == 1
    assert world.engine.failure is None
    assert "KeyError: 'injected'" in capsys.readouterr().out


def test_who_answers_the_abandoned_may_fail_too() -> None:
    world = World()
    stream = world.create()
    world.outcomes.clear()

    def fail(*_: object) -> None:
        raise KeyError("injected")

    world.engine.abandon = fail
    world.engine.submit(Append(world.now_ms, stream.stream_id, b"one", b"", 1), fail, None)
    submit_appends(world, stream.stream_id, b"two")
    world.commit()
    assert world.outcomes == [(b"two", Done.APPENDED)]
    assert world.engine.faults.counts["reply"] == 2


def test_a_refusal_that_cannot_be_told_harms_nobody_else() -> None:
    world = World()
    world.journal.is_full = True

    def fail(*_: object) -> None:
        raise KeyError("injected")

    world.engine.submit(CreateStream(world.now_ms, b"a", b"text/plain"), fail, None)
    world.submit(CreateStream(world.now_ms, b"b", b"text/plain"), "b")
    world.commit()
    assert kinds(world) == [("b", StorageFull)]


def test_an_apply_that_fails_ends_it_all_and_what_was_not_applied_is_unknown() -> None:
    world = World()
    stream = world.create()
    watcher, after, told = watch(world), list[int](), list[int]()
    world.engine.failed = lambda: told.append(world.engine.applied_lsn)
    world.engine.listeners.append(lambda _: after.append(1))
    break_append(world, b"two")
    world.outcomes.clear()
    submit_appends(world, stream.stream_id, b"one", b"two", b"three")
    world.commit()
    assert kinds(world) == [
        (b"one", Done.APPENDED),
        (b"two", AppendOutcomeUnknown),
        (b"three", AppendOutcomeUnknown),
    ]
    assert told == [1]
    assert (watcher.tails, after, world.engine.applied_lsn) == ([], [], 1)
    assert isinstance(world.engine.failure, ZeroDivisionError)
    assert world.engine.faults.counts["apply"] == 1
    assert stream.log.tail_byte == 3

    # Later commands are not even written down, and one that is already is not applied.
    world.outcomes.clear()
    submit_appends(world, stream.stream_id, b"four")
    world.commit()
    assert kinds(world) == [(b"four", ShuttingDown)]
    five = Append(world.now_ms, stream.stream_id, b"five", b"", 1)
    world.engine._committed([(five, world.reply, b"five")], 5)
    assert kinds(world)[1:] == [(b"five", AppendOutcomeUnknown)]
    assert stream.log.tail_byte == 3
    assert told == [1]


def test_the_log_says_which_command_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    stream = world.create()
    break_append(world, b"two")
    submit_appends(world, stream.stream_id, b"one", b"two", b"three")
    world.commit()
    said = capsys.readouterr().out
    assert "could not be applied" in said
    assert "ZeroDivisionError: injected" in said
    assert re.search(r"lsn\S*=\S*3\b", re.sub(r"\x1b\[[0-9]*m", "", said))


def test_a_watcher_or_listener_that_fails_does_not_stop_the_others() -> None:
    world = World()
    world.create(b"a")
    watchers = [watch(world), watch(world), watch(world)]
    after: list[int] = []

    def fail(*_: object) -> None:
        raise KeyError("injected")

    for watcher in watchers:
        watcher.when_told = fail
    world.engine.listeners[:0] = [fail, lambda _: after.append(1)]
    world.append(b"a")
    world.commit()
    assert [watcher.tails for watcher in watchers] == [[1], [1], [1]]
    assert after == [1]
    counts = world.engine.faults.counts
    assert counts["watcher"] == 4
    world.engine.end_watchers()
    assert [watcher.shut_downs for watcher in watchers] == [1, 1, 1]
    assert world.engine.failure is None


def test_every_listener_hears_of_a_batch_once_and_whole_after_the_readers() -> None:
    world = World()
    stream = world.create(b"a")
    watcher, order = watch(world), list[str]()
    heard: list[tuple[list[int], list[str]]] = []
    watcher.when_told = lambda _: order.append("reader")

    def listen(outbox: Outbox) -> None:
        order.append("listener")
        heard.append((list(outbox.ended), list(outbox.stirred)))

    world.engine.listeners += [listen, listen]
    world.delete(b"a")
    world.machine.outbox.stirred["s"] = None
    world.commit()
    assert order == ["reader", "listener", "listener"]
    assert heard == [([stream.stream_id], ["s"])] * 2
    world.create(b"b")
    assert heard[2:] == [([], [])] * 2
