from __future__ import annotations

import pytest

from millstream.engine import lifetimes as lifetimes_module
from millstream.engine.timings import Timings
from millstream.errors import StreamNotFound
from millstream.state.commands import Append, ExpireStream, TouchStream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from tests.support.memory_store import MemoryStore
from tests.unit.engine.world import FakeWatcher, World
from tests.unit.state.tiered import Tiered

TTL_MS = 8000
QUARTER_MS = TTL_MS // 4
RETRY_MS = int(1000 * Timings.lifetimes_retry.seconds_min)


def sliding_world() -> World:
    world = World()
    world.create(ttl_ms=TTL_MS)
    return world


def deadline_is(world: World, after_ms: int, path: bytes = b"a") -> None:
    """The stream is found until then and not from then on; the clock is left there."""
    world.loop.advance(after_ms - 1)
    world.engine.find(path, world.now_ms)
    world.clock.advance(1)
    with pytest.raises(StreamNotFound):
        world.engine.find(path, world.now_ms)


def test_a_stream_nobody_reads_is_removed_when_its_window_is_over() -> None:
    world = sliding_world()
    world.loop.advance(TTL_MS - 1)
    assert world.exists()
    world.loop.advance(2)
    assert not world.exists()


def test_a_stream_is_removed_at_its_absolute_time() -> None:
    world = World()
    world.create(expires_at_ms=world.now_ms + TTL_MS)
    world.loop.advance(TTL_MS - 1)
    assert world.exists()
    world.loop.advance(2)
    assert not world.exists()


def test_a_stream_without_a_lifetime_sets_no_timer() -> None:
    world = World()
    world.create()
    assert world.loop.timers == 0


@pytest.mark.parametrize("read_after_ms", [1, QUARTER_MS - 1, QUARTER_MS, TTL_MS - 1])
def test_a_read_renews_to_the_very_millisecond(read_after_ms: int) -> None:
    world = sliding_world()
    world.loop.advance(read_after_ms)
    world.read()
    world.commit()
    deadline_is(world, TTL_MS)


def test_an_append_renews_to_the_very_millisecond() -> None:
    world = sliding_world()
    world.loop.advance(1234)
    world.append()
    world.commit()
    deadline_is(world, TTL_MS)


def test_a_read_renews_no_absolute_lifetime_and_the_journal_hears_nothing() -> None:
    world = World()
    world.create(expires_at_ms=world.now_ms + TTL_MS)
    world.loop.advance(TTL_MS - 10)
    world.read()
    world.commit()
    deadline_is(world, 10)
    assert world.journal.count(TouchStream) == 0


def test_a_stream_that_is_read_goes_on_living_for_many_windows() -> None:
    world = sliding_world()
    for _ in range(50):
        world.loop.advance(TTL_MS - 100)
        world.read()
        world.commit()
    world.loop.advance(TTL_MS + 1)
    assert not world.exists()


# The journal hears of renewals now and then


@pytest.mark.parametrize("every_ms", [1, 7, 100, QUARTER_MS - 1, QUARTER_MS])
def test_however_often_it_is_read_the_journal_hears_of_it_four_times_per_window(
    every_ms: int,
) -> None:
    world = sliding_world()
    elapsed_ms, windows = 0, 5
    while elapsed_ms < windows * TTL_MS:
        world.loop.advance(every_ms)
        elapsed_ms += every_ms
        world.read()
        world.commit()
    touches = world.journal.count(TouchStream)
    assert 2 * windows <= touches <= 4 * windows


def test_a_read_right_after_a_write_is_not_journaled() -> None:
    world = sliding_world()
    world.loop.advance(TTL_MS - 1)
    world.append()
    world.commit()
    world.loop.advance(QUARTER_MS - 1)
    world.read()
    assert world.journal.count(TouchStream) == 0


def test_a_read_a_quarter_of_the_window_after_the_last_renewal_is_journaled() -> None:
    world = sliding_world()
    world.loop.advance(QUARTER_MS)
    world.read()
    world.commit()
    assert world.journal.count(TouchStream) == 1
    assert world.machine.residents.by_path[b"a"].touched_ms == world.now_ms


def test_reads_while_a_touch_is_under_way_do_not_submit_it_again() -> None:
    world = sliding_world()
    world.loop.advance(QUARTER_MS)
    for _ in range(1000):
        world.read()  # all before the journal has synced the first
    assert world.journal.count(TouchStream) == 1


def test_before_a_command_the_journal_hears_of_the_renewal_that_keeps_the_stream_alive() -> None:
    world = sliding_world()
    world.loop.advance(QUARTER_MS - 1)
    world.read()  # too early to be journaled
    world.clock.advance(TTL_MS - QUARTER_MS + 1)  # the journaled window is over
    world.append()
    world.commit()
    assert world.outcomes[-1] == ("append", Done.APPENDED)
    kinds = [type(command) for command in world.journal.submitted]
    assert kinds.index(TouchStream) < kinds.index(Append)


def test_that_renewal_does_not_stretch_the_lifetime() -> None:
    world = sliding_world()
    world.loop.advance(1000)
    world.read()
    world.clock.advance(TTL_MS - 1)
    world.engine.find(b"a", world.now_ms)
    world.commit()
    world.clock.advance(1)
    with pytest.raises(StreamNotFound):
        world.engine.find(b"a", world.now_ms)


def test_a_stop_journals_every_renewal_that_is_not_journaled_yet() -> None:
    world = sliding_world()
    world.create(b"quiet", ttl_ms=TTL_MS)
    world.create(b"for ever")
    world.loop.advance(QUARTER_MS - 1)
    world.read(b"a")
    world.engine.lifetimes.stop()
    world.commit()
    assert world.machine.residents.by_path[b"a"].touched_ms == world.now_ms
    assert world.journal.count(TouchStream) == 1
    assert world.loop.timers == 0


# Ends


def test_expiry_ends_watchers() -> None:
    world = sliding_world()
    watcher = FakeWatcher(world.machine.residents.by_path[b"a"])
    world.engine.watch(watcher.stream, watcher)
    world.loop.advance(TTL_MS + 1)
    assert watcher.ended


def test_a_renewed_stream_is_looked_at_again_and_not_removed() -> None:
    world = sliding_world()
    watcher = FakeWatcher(world.machine.residents.by_path[b"a"])
    world.engine.watch(watcher.stream, watcher)
    world.loop.advance(QUARTER_MS - 1)
    world.read()
    world.loop.advance(TTL_MS - QUARTER_MS + 1)
    assert world.exists()
    assert not watcher.ended
    world.loop.advance(QUARTER_MS)
    assert not world.exists()
    assert watcher.ended


def test_a_stream_renewed_by_an_append_under_way_still_ends_later() -> None:
    world = sliding_world()
    watcher = FakeWatcher(world.machine.residents.by_path[b"a"])
    world.engine.watch(watcher.stream, watcher)
    world.clock.advance(TTL_MS - 1)
    world.append()  # the journal still syncs it
    world.clock.advance(2)
    world.loop.fire_due_timers()
    world.commit()
    assert world.exists()
    world.loop.advance(2 * TTL_MS)
    assert watcher.ended
    assert not world.exists()


def test_an_expiry_that_comes_behind_a_renewal_in_the_journal_does_nothing() -> None:
    world = sliding_world()
    world.clock.advance(TTL_MS - 1)
    world.append()
    world.clock.advance(2)
    world.loop.fire_due_timers()
    assert world.journal.count(ExpireStream) == 1
    world.commit()
    assert world.exists()


def test_an_expiry_that_the_journal_refuses_is_tried_again_but_not_at_once() -> None:
    world = sliding_world()
    world.journal.is_full = True
    world.loop.advance(TTL_MS + 1000)
    assert 1 <= world.journal.count(ExpireStream) <= 5
    assert world.exists()
    world.journal.is_full = False
    world.loop.advance(3_700_000)
    assert not world.exists()


def test_a_touch_that_the_journal_refuses_is_submitted_again_by_the_next_read() -> None:
    world = sliding_world()
    world.loop.advance(QUARTER_MS)
    world.journal.is_full = True
    world.read()
    world.commit()
    world.journal.is_full = False
    world.clock.advance(1)
    world.read()
    world.commit()
    assert world.machine.residents.by_path[b"a"].touched_ms == world.now_ms


def test_a_deleted_stream_is_not_expired_any_more() -> None:
    world = sliding_world()
    world.delete()
    world.commit()
    world.loop.advance(2 * TTL_MS)
    assert world.journal.count(ExpireStream) == 0


def test_a_new_stream_of_the_same_name_has_its_own_time() -> None:
    world = sliding_world()
    world.loop.advance(TTL_MS // 2)
    world.delete()
    world.commit()
    world.create(ttl_ms=TTL_MS)
    world.loop.advance(TTL_MS - 1)
    assert world.exists()
    world.loop.advance(2)
    assert not world.exists()


def test_a_forked_stream_that_expires_is_kept_for_its_fork_and_expired_once() -> None:
    world = sliding_world()
    world.create(b"f", fork_from=b"a")
    world.loop.advance(10 * TTL_MS)
    assert world.machine.residents.by_path[b"a"].deleted
    assert world.journal.count(ExpireStream) == 1


# Timers


def test_one_timer_serves_all_streams() -> None:
    world = World()
    for number in range(200):
        world.create(b"%d" % number, ttl_ms=1000 + 977 * number % 5000)
        assert world.loop.timers == 1
    world.loop.advance(6000)
    assert world.machine.residents.by_path == {}
    assert world.loop.timers == 0


def test_streams_are_removed_in_the_order_of_their_deadlines() -> None:
    world = World()
    for path, ttl_ms in [(b"b", 2000), (b"c", 3000), (b"a", 1000)]:
        world.create(path, ttl_ms=ttl_ms)
        assert world.loop.timers == 1
    left = []
    for _ in range(3):
        world.loop.advance(1001)
        left.append(sorted(world.machine.residents.by_path))
    assert left == [[b"b", b"c"], [b"c"], []]


def test_a_lifetime_longer_than_a_timer_sleeps_still_ends_on_time() -> None:
    world = World()
    day_ms = 86_400_000
    world.create(ttl_ms=10 * day_ms)
    world.loop.advance(10 * day_ms - 1)
    assert world.exists()
    world.loop.advance(3)
    assert not world.exists()


def test_streams_of_an_earlier_run_are_followed_from_the_start() -> None:
    earlier = sliding_world()
    world = World(earlier.machine)
    world.loop.advance(TTL_MS + 1)
    assert not world.exists()


def test_a_stream_that_expired_while_the_server_was_down_goes_at_once() -> None:
    earlier = sliding_world()
    earlier.machine.residents.by_path[b"a"].touched_ms -= 3 * TTL_MS
    earlier.machine.residents.by_path[b"a"].accessed_ms -= 3 * TTL_MS
    world = World(earlier.machine)
    with pytest.raises(StreamNotFound):
        world.engine.find(b"a", world.now_ms)
    world.loop.advance(1)
    assert not world.exists()


# Streams at rest


class RestingWorld:
    """A world whose streams leave memory as soon as a checkpoint has them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.world = World(StateMachine(1, self.store), self.store)
        self.tiered = Tiered()
        self.tiered.store, self.tiered.machine = self.store, self.world.machine

    def rest(self) -> None:
        """Everything is on the store, and whoever cares was told, as after a checkpoint."""
        self.tiered.lsn = self.world.engine.applied_lsn
        self.tiered.checkpoint()
        self.tiered.evict()
        self.world.engine.lifetimes.sweep()
        self.world.commit()


def test_a_stream_at_rest_ends_when_its_time_has_come() -> None:
    resting = RestingWorld()
    world = resting.world
    world.create(b"a", ttl_ms=TTL_MS)
    world.create(b"b", expires_at_ms=world.now_ms + 2 * TTL_MS)
    world.create(b"c")
    resting.rest()
    assert world.machine.by_id == {}
    world.loop.advance(TTL_MS - 1)
    assert world.journal.count(ExpireStream) == 0
    world.loop.advance(RETRY_MS + 1)
    assert list(world.machine.names.keys_from(b"")) == [b"b", b"c"]
    world.loop.advance(TTL_MS)
    assert list(world.machine.names.keys_from(b"")) == [b"c"]
    assert world.journal.count(ExpireStream) == 2


def test_a_stream_at_rest_is_not_found_from_its_deadline_on() -> None:
    resting = RestingWorld()
    world = resting.world
    world.create(b"a", ttl_ms=TTL_MS)
    resting.rest()
    world.clock.advance(TTL_MS)
    with pytest.raises(StreamNotFound):
        world.engine.find(b"a", world.now_ms)


def test_a_stream_at_rest_that_expired_while_the_server_was_down_goes_at_the_start() -> None:
    resting = RestingWorld()
    resting.world.create(b"a", ttl_ms=TTL_MS)
    resting.rest()
    resting.tiered.restart()
    later = World(resting.tiered.machine, resting.store, start_ms=resting.world.now_ms + TTL_MS)
    later.commit()
    assert later.journal.count(ExpireStream) == 1
    assert list(later.machine.names.keys_from(b"")) == []


def test_a_stream_that_came_back_and_was_renewed_is_not_ended_by_its_old_deadline() -> None:
    resting = RestingWorld()
    world = resting.world
    world.create(b"a", ttl_ms=TTL_MS)
    resting.rest()
    world.loop.advance(TTL_MS - 1)
    world.read(b"a")
    world.commit()
    world.loop.advance(2 * RETRY_MS)
    assert world.exists(b"a")
    resting.rest()
    assert not world.exists(b"a")
    world.loop.advance(TTL_MS - 2 * RETRY_MS - 1)
    assert list(world.machine.names.keys_from(b"")) == [b"a"]
    world.loop.advance(RETRY_MS + 1)
    assert list(world.machine.names.keys_from(b"")) == []


def test_streams_that_the_store_has_not_forgotten_yet_do_not_hide_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ended ones stay due on the store until the next checkpoint."""
    monkeypatch.setattr(lifetimes_module, "DUE_STREAMS_AT_ONCE", 2)
    resting = RestingWorld()
    world = resting.world
    for number in range(7):
        world.create(b"%d" % number, ttl_ms=TTL_MS + number)
    resting.rest()
    world.clock.advance(2 * TTL_MS)
    for _ in range(7):
        world.engine.lifetimes.sweep()
        world.commit()
    assert list(world.machine.names.keys_from(b"")) == []
    assert world.journal.count(ExpireStream) == 7


def test_a_full_journal_does_not_keep_a_stream_at_rest_alive_for_ever() -> None:
    resting = RestingWorld()
    world = resting.world
    world.create(b"a", ttl_ms=TTL_MS)
    resting.rest()
    world.journal.is_full = True
    world.loop.advance(TTL_MS + 3 * RETRY_MS)
    assert list(world.machine.names.keys_from(b"")) == [b"a"]
    world.journal.is_full = False
    world.loop.advance(2 * RETRY_MS)
    assert list(world.machine.names.keys_from(b"")) == []
