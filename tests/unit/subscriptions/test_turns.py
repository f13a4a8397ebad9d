from __future__ import annotations

import random

from millstream.subscriptions.turns import Turn, Turns


def take_all(turns: Turns) -> list[Turn]:
    taken = []
    while (turn := turns.take()) is not None:
        taken.append(turn)
    return taken


def wait(turns: Turns, receiver: str, count: int, *, is_retry: bool = False) -> None:
    for number in range(count):
        turns.wait(receiver, f"{receiver}{number}{is_retry}", is_retry=is_retry)


def test_receivers_take_turns_however_much_waits_for_one() -> None:
    turns = Turns(at_once=100, per_receiver=10)
    wait(turns, "a", 1000)
    wait(turns, "b", 2)
    wait(turns, "c", 1)
    first = [turn.receiver for turn in (turns.take(), turns.take(), turns.take()) if turn]
    assert sorted(first) == ["a", "b", "c"]


def test_a_receiver_has_so_many_and_the_next_when_one_is_given_back() -> None:
    turns = Turns(at_once=100, per_receiver=3)
    wait(turns, "a", 5)
    taken = take_all(turns)
    assert [turn.name for turn in taken] == ["a0False", "a1False", "a2False"]
    turns.give_back(taken[0])
    assert [turn.name for turn in take_all(turns)] == ["a3False"]


def test_all_together_have_so_many() -> None:
    turns = Turns(at_once=4, per_receiver=3)
    for receiver in "abcdef":
        wait(turns, receiver, 1)
    taken = take_all(turns)
    assert [turn.receiver for turn in taken] == ["a", "b", "c", "d"]
    turns.give_back(taken[2])
    assert [turn.receiver for turn in take_all(turns)] == ["e"]


def test_retries_never_have_all_the_places() -> None:
    turns = Turns(at_once=10, per_receiver=2)
    for number in range(100):
        turns.wait(f"dead{number}", f"dead{number}", is_retry=True)
    assert len(take_all(turns)) == 5
    for number in range(100):
        turns.wait(f"new{number}", f"new{number}", is_retry=False)
    assert [turn.is_retry for turn in take_all(turns)] == [False] * 5


def test_half_of_the_places_are_for_receivers_that_have_none() -> None:
    turns = Turns(at_once=10, per_receiver=4)
    for receiver in "abc":
        wait(turns, receiver, 100)
    assert len(take_all(turns)) == 5
    for number in range(10):
        wait(turns, f"late{number}", 2)
    assert [turn.receiver for turn in take_all(turns)] == [f"late{n}" for n in range(5)]


def test_a_name_waits_once() -> None:
    turns = Turns(at_once=10, per_receiver=10)
    for is_retry in (False, False, True):
        turns.wait("a", "name", is_retry=is_retry)
    assert len(take_all(turns)) == 1
    turns.wait("a", "name", is_retry=True)
    assert len(take_all(turns)) == 1


def test_whatever_happens_all_get_their_turn_within_the_bounds() -> None:
    dice = random.Random(7)
    turns = Turns(at_once=6, per_receiver=2)
    waiting, under_way, taken = set[str](), list[Turn](), 0
    for number in range(5000):
        kind = dice.random()
        if kind < 0.4:
            turns.wait(dice.choice("abcd"), str(number), is_retry=dice.random() < 0.5)
            waiting.add(str(number))
        elif kind < 0.7 and under_way:
            turns.give_back(under_way.pop(dice.randrange(len(under_way))))
        elif (turn := turns.take()) is not None:
            waiting.remove(turn.name)
            under_way.append(turn)
            taken += 1
        assert len(under_way) <= 6
        assert sum(turn.is_retry for turn in under_way) <= 3
        assert all(sum(t.receiver == r for t in under_way) <= 2 for r in "abcd")
    while waiting:
        while under_way:
            turns.give_back(under_way.pop())
        under_way = take_all(turns)
        assert under_way, "those that wait are never called"
        waiting -= {turn.name for turn in under_way}
    assert taken > 500
