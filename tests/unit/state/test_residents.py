"""Streams that rest on the store: who is found there, who is not, and as what."""

from __future__ import annotations

import pytest

from millstream.errors import MissingContent
from millstream.state.commands import NoOp
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from millstream.state.stream import Stream
from tests.unit.state.content import Contents
from tests.unit.state.followers import Followers
from tests.unit.state.store import Store
from tests.unit.state.tiered import Tiered


class RestingStore(Followers):
    """A store with a store; `rest` takes everything that can go out of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tiered = Tiered(1, self.objects)
        self.machine = self.tiered.machine

    def rest(self) -> int:
        self.tiered.apply(NoOp(self.now_ms))  # commands go to the machine itself: none to replay
        self.tiered.checkpoint()
        return self.tiered.evict()

    def freeze(self, *paths: bytes) -> None:
        for path in paths:
            self.flush(path)
        self.rest()


def test_a_stream_at_rest_is_found_by_name_and_by_id() -> None:
    store = RestingStore()
    store.create(b"a", b"one", ttl_ms=5000)
    before = store[b"a"]
    stream_id = before.stream_id
    store.freeze(b"a")
    assert store.machine.by_id == {}
    del before
    again = found(store, b"a")
    assert (again.stream_id, again.ttl_ms, again.tail) == (
        stream_id,
        5000,
        "0000000000000001_0000000000000003",
    )
    assert store.machine.find_by_id(stream_id) is again


def test_a_stream_that_somebody_still_holds_is_found_as_that_very_object() -> None:
    store = RestingStore()
    store.create(b"a", b"one")
    held = store[b"a"]
    store.freeze(b"a")
    assert b"a" not in store
    assert store.machine.find(b"a") is held
    store.append(b"a", b"two")
    assert held.log.tail_ordinal == 2


def test_a_stream_with_unpublished_content_stays() -> None:
    store = RestingStore()
    store.create(b"a", b"one")
    store.create(b"b")
    assert store.rest() == 1
    assert b"a" in store
    assert b"b" not in store


def test_a_stream_that_changed_since_the_last_checkpoint_stays() -> None:
    store = RestingStore()
    store.create(b"a", b"one")
    store.freeze(b"a")
    store.machine.find(b"a")
    store.append(b"a", closes=True)
    assert store.tiered.evict() == 0
    assert store.rest() == 1


def test_a_removed_stream_does_not_come_back_from_the_store() -> None:
    store = RestingStore()
    store.create(b"a")
    stream_id = store[b"a"].stream_id
    store.rest()
    store.machine.find(b"a")
    assert store.delete(b"a") is Done.DELETED
    for _ in range(2):
        assert store.machine.find(b"a") is None
        assert store.machine.find_by_id(stream_id) is None
        assert list(store.machine.names.keys_from(b"")) == []
        store.rest()
    assert store.tiered.store.find_by_id(stream_id) is None


def test_a_removed_stream_whose_newest_content_was_in_the_checkpoint_is_not_missed() -> None:
    """The store still has its image, with content that nobody holds any more."""
    store = RestingStore()
    store.create(b"a", b"unpublished")
    stream_id = store[b"a"].stream_id
    store.rest()
    store.delete(b"a")
    assert store.machine.find(b"a") is None
    assert store.machine.find_by_id(stream_id) is None
    assert store.create(b"a", b"anew") is Done.CREATED
    assert store.messages(b"a") == [b"anew"]


def test_a_name_given_anew_is_the_new_stream_wherever_it_rests() -> None:
    store = RestingStore()
    store.create(b"a", b"old")
    store.freeze(b"a")
    store.machine.find(b"a")
    store.delete(b"a")
    store.create(b"a", b"new")
    second = store[b"a"].stream_id
    for _ in range(2):
        assert found(store, b"a").stream_id == second
        assert store.tiered.contents.messages(found(store, b"a")) == [b"new"]
        store.freeze(b"a")
        assert b"a" not in store


def test_a_stream_whose_tail_is_lost_is_an_error_unless_that_is_known() -> None:
    store = RestingStore()
    store.create(b"a", b"one", b"two")
    store.produce(b"a", 0, 0, closes=True)
    store.flush(b"a", 2)
    store.rest()
    with pytest.raises(MissingContent):
        StateMachine(1, store.tiered.store).find(b"a")
    known = StateMachine(1, store.tiered.store, is_tail_lost=True)
    stream = known.find(b"a")
    assert stream is not None
    assert stream.tail == "0000000000000002_0000000000000006"
    assert not stream.closed
    assert stream.producers is None  # a retry of what is lost is no duplicate
    assert Contents(known, store.tiered.store, store.objects).messages(stream) == [b"one", b"two"]


def test_followers_of_a_stream_at_rest_hear_of_what_it_gets() -> None:
    store = RestingStore()
    store.create(b"a/x", b"one")
    store.freeze(b"a/x")
    store.webhook("s", b"a/*")
    assert b"a/x" not in store, "a pattern asks for nothing"
    store.webhook("t", None, b"a/x")
    store.rest()
    assert store.subscribers(b"a/x") == ("s", "t")
    store.append(b"a/x", b"two")
    assert (store.pending("s"), store.pending("t")) == ([b"a/x"], [b"a/x"])
    store.freeze(b"a/x")
    store.unsubscribe("s")
    assert store.subscribers(b"a/x") == ("t",)


def test_a_link_that_a_pattern_finds_too_stays_found_after_a_restart() -> None:
    """The stream is empty: nothing else about the subscription changes with its birth."""
    store = RestingStore()
    store.webhook("s", b"a/*", b"a/x")
    store.rest()
    store.create(b"a/x")
    store.rest()
    store.tiered.restart()
    store.machine = store.tiered.machine
    store.unlink("s", b"a/x")
    assert store.followed("s") == {b"a/x"}


def test_the_last_fork_takes_a_deleted_source_at_rest_with_it() -> None:
    store = RestingStore()
    store.create(b"a", b"one")
    store.fork(b"f", b"a")
    store.delete(b"a")
    store.freeze(b"a")
    assert store.machine.by_id == {}
    assert store.tiered.contents.messages(found(store, b"f")) == [b"one"]
    store.delete(b"f")
    store.rest()
    assert list(store.tiered.store.rows()) == []
    assert store.create(b"a") is Done.CREATED


def found(store: Store, path: bytes) -> Stream:
    stream = store.machine.find(path)
    assert stream is not None
    return stream
