from __future__ import annotations

import pytest

from millstream.clock import ManualClock
from millstream.engine.engine import Engine
from millstream.errors import StorageFull, StreamClosed, StreamGone, StreamNotFound
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import Append, CreateStream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
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
    world.submit(Append(world.now_ms, 99, b"x", b"", 1))
    world.commit()
    assert world.engine.appends == 1


def test_after_every_batch_the_checkpointer_may_look() -> None:
    world = World()
    seen: list[int] = []
    world.engine.after_batch.append(lambda: seen.append(world.engine.applied_lsn))
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
    assert world.machine.ended == []  # told once


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
