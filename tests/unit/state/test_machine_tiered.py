"""A machine whose streams leave memory and come back, against one that keeps them all."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.state.machine import StateMachine
from tests.unit.effort import brief
from tests.unit.state.command_sequences import Life, followed_lives, lives
from tests.unit.state.content import Contents
from tests.unit.state.followers import check_bookkeeping, describe_subscriptions
from tests.unit.state.store import describe
from tests.unit.state.test_machine_random import facts
from tests.unit.state.tiered import Tiered


class Nudge(NamedTuple):
    """What happens to memory and the store between two commands."""

    what: str
    a: int


WHATS = ["rest", "rest", "advance", "advance", "advance", "take", "take", "checkpoint"]
WHATS += ["evict", "evict", "drop", "restart"]
nudges = st.lists(
    st.builds(Nudge, st.sampled_from(WHATS), st.integers(1, 3)), min_size=1, max_size=80
)


def push(tiered: Tiered, nudge: Nudge) -> None:
    match nudge.what:
        case "advance":
            for _ in range(nudge.a):
                tiered.advance()
        case "take":
            tiered.take(nudge.a)
        case "checkpoint":
            tiered.checkpoint()
        case "evict":
            tiered.evict(nudge.a)
        case "drop":
            tiered.drop(nudge.a)
        case "restart":
            tiered.restart()


def check_alike(plain: StateMachine, tiered: Tiered, life: Life) -> None:
    tiered.check()
    expected = describe(plain, Contents(plain, None, life.objects))
    assert describe(tiered.machine, tiered.contents) == expected
    assert describe_subscriptions(tiered.machine) == describe_subscriptions(plain)


def live_twice(life: Life, nudges: list[Nudge]) -> None:
    plain, tiered = StateMachine(life.shards), Tiered(life.shards, life.objects)
    for number, command in enumerate(life.commands):
        assert facts(tiered.apply(command)) == facts(plain.apply(command))
        check_alike(plain, tiered, life)
        push(tiered, nudges[number % len(nudges)])
        check_alike(plain, tiered, life)
    tiered.restart()
    check_alike(plain, tiered, life)
    tiered.wake_all()
    assert tiered.machine.by_id.keys() == plain.by_id.keys()
    check_bookkeeping(tiered.machine)


@given(lives, nudges)
@settings(brief, max_examples=80)
def test_streams_that_leave_memory_and_come_back_make_no_difference(
    life: Life, nudges: list[Nudge]
) -> None:
    live_twice(life, nudges)


@given(followed_lives, nudges)
@settings(brief, max_examples=80)
def test_followers_of_streams_that_leave_memory_notice_nothing(
    life: Life, nudges: list[Nudge]
) -> None:
    live_twice(life, nudges)
