"""Commands that name a place: the answer must not depend on what happens to be in memory.

A replay, or another node, may hold less of what is published than the machine that answered first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.errors import InvalidAck, InvalidOffset
from millstream.protocol.offsets import START
from millstream.state.outcomes import Done, Outcome
from tests.unit.state.followers import Followers


def keep(store: Followers) -> None:
    pass


def let_go(store: Followers) -> None:
    log = store[b"a"].log
    log.drop(log.cold_byte)


memory = pytest.mark.parametrize("forget", [keep, let_go])


def store_of_two_and_one(forget: Callable[[Followers], None]) -> Followers:
    """Two messages of three bytes are published, a third is not."""
    store = Followers()
    store.create(b"a", b"one", b"two")
    store.webhook("s", None, b"a")
    store.append(b"a", b"six")
    store.issue("s")
    store.flush(b"a", 2)
    forget(store)
    return store


def fork(store: Followers, **fields: Any) -> Outcome:
    return store.fork(b"f", b"a", **fields)


@memory
def test_a_snapshot_at_a_published_message_needs_somebody_who_looked(
    forget: Callable[[Followers], None],
) -> None:
    store = store_of_two_and_one(forget)
    assert isinstance(store.publish(b"a", 1, 3), InvalidOffset)
    assert store.publish(b"a", 1, 3, is_boundary=True) is Done.PUBLISHED
    assert store.publish(b"a", 3, 9) is Done.PUBLISHED


@memory
def test_a_fork_at_a_published_message_brings_its_place_along(
    forget: Callable[[Followers], None],
) -> None:
    store = store_of_two_and_one(forget)
    stream_id = store[b"a"].stream_id
    assert isinstance(fork(store, fork_ordinal=1), InvalidOffset)
    assert isinstance(fork(store, fork_byte=3), InvalidOffset)
    assert isinstance(fork(store, fork_byte=3, fork_place=(99, 1, 3, 1, 3)), InvalidOffset)
    place = (stream_id, 1, 3, 2, 4)
    assert fork(store, fork_byte=3, fork_sub_offset=1, fork_place=place) is Done.CREATED
    assert store.messages(b"f") == [b"one", b"t"]


@memory
@pytest.mark.parametrize("offset", [{"fork_ordinal": 2}, {"fork_byte": 6}, {"fork_byte": 9}])
def test_a_fork_behind_what_is_published_needs_nothing(
    forget: Callable[[Followers], None], offset: dict[str, int]
) -> None:
    assert fork(store_of_two_and_one(forget), **offset) is Done.CREATED


@memory
@pytest.mark.parametrize(
    ("ordinal", "byte", "is_good"),
    [
        pytest.param(1, 3, True, id="a published message"),
        pytest.param(2, 6, True, id="where unpublished content begins"),
        pytest.param(3, 9, True, id="the tail"),
        pytest.param(3, None, True, id="the tail in one unit"),
        pytest.param(1, None, False, id="a published message in one unit"),
        pytest.param(None, 3, False, id="a published message in the other unit"),
        pytest.param(1, 7, False, id="units that disagree"),
        pytest.param(2, 7, False, id="inside an unpublished message"),
        pytest.param(4, 9, False, id="beyond the tail"),
    ],
)
def test_an_acknowledgement_is_judged_by_what_every_replay_knows(
    forget: Callable[[Followers], None], ordinal: int | None, byte: int | None, is_good: bool
) -> None:
    store = store_of_two_and_one(forget)
    store("s").links[b"a"].acked = START
    outcome = store.ack("s", (b"a", ordinal, byte))
    assert (outcome is Done.ACCEPTED) == is_good
    assert is_good or isinstance(outcome, InvalidAck)
