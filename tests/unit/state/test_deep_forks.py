"""Chains of forks far longer than Python's stack: each is deleted, expires and rests as any other.

An ancestor that is deleted stays for its forks, so the end of the last one may end them all.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from millstream.cold.read_plans import Plan
from millstream.protocol.offsets import Offset
from millstream.state.commands import NoOp
from millstream.state.outcomes import Done
from tests.unit.state.store import Store
from tests.unit.state.tiered import Tiered

DEPTH = 5 * sys.getrecursionlimit()


def name(number: int) -> bytes:
    return b"deep/%d" % number


def chain(depth: int = DEPTH, **lifetime: Any) -> Store:
    """Each stream is a fork of the one before and has a message of its own."""
    store = Store()
    store.create(name(0), b"m", **lifetime)
    for number in range(1, depth):
        assert store.fork(name(number), name(number - 1), b"m") is Done.CREATED
    return store


def check_empty(store: Store) -> None:
    assert store.machine.by_id == {}
    assert store.machine.residents.by_path == {}
    assert len(store.machine.names) == 0
    assert store.machine.changes.hot_bytes == [0]


@pytest.mark.parametrize("order", ["root first", "tip first", "any"])
def test_a_chain_can_be_deleted_in_any_order(order: str) -> None:
    store, numbers = chain(), list(range(DEPTH))
    if order == "tip first":
        numbers.reverse()
    elif order == "any":
        random.Random(7).shuffle(numbers)
    for number in numbers:
        assert store.delete(name(number)) is Done.DELETED
    check_empty(store)


def test_the_streams_of_a_chain_end_with_their_lifetime() -> None:
    store = chain(ttl_ms=1000)
    store.now_ms += 1000
    for number in range(DEPTH):
        assert store.expire(name(number)) is Done.DELETED
    check_empty(store)


def test_a_name_whose_expired_stream_was_the_last_of_a_chain_can_be_taken() -> None:
    store = chain()
    store.fork(b"deep/tip", name(DEPTH - 1), lifetime_given=True, ttl_ms=1000)
    for number in range(DEPTH):
        store.delete(name(number))
    store.now_ms += 1000
    assert store.create(b"deep/tip") is Done.CREATED
    assert list(store.machine.residents.by_path) == [b"deep/tip"]


def test_the_tip_of_a_chain_shows_what_all_its_ancestors_hold() -> None:
    store = chain()
    tip = store[name(DEPTH - 1)]
    plan = Plan(store.machine, None, tip, Offset(0, 0), DEPTH)
    steps = sum(1 for _ in plan.steps())
    assert (plan.start, plan.end, steps) == ((0, 0), (DEPTH, DEPTH), DEPTH - 1)


def test_a_chain_rests_restarts_and_goes_as_a_whole() -> None:
    depth = DEPTH // 5 * 2
    store = chain(depth)
    tiered = Tiered(1, store.objects)
    tiered.machine, machine = store.machine, store.machine
    tiered.machine.residents._store = tiered.store
    for number in range(depth):
        store.flush(name(number))
    for number in range(depth - 1):
        store.delete(name(number))
    tiered.apply(NoOp(store.now_ms))
    tiered.checkpoint()
    tiered.evict()
    tiered.restart()
    assert tiered.machine is not machine
    store.machine = tiered.machine
    assert tiered.machine.by_id == {}
    tip = tiered.machine.find(name(depth - 1))
    assert tip is not None
    assert store.delete(name(depth - 1)) is Done.DELETED
    check_empty(store)
