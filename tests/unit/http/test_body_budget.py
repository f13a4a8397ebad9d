"""Who gives way when the bodies of requests are too much."""

from __future__ import annotations

import random
from typing import cast

from millstream.http.body_budget import BodyBudget
from millstream.http.connection import Connection


class Upload:
    """What the budget sees of a connection."""

    def __init__(self, budget: BodyBudget, client: str = "a", recent_bytes: int = 0) -> None:
        self.client = client
        self.recent_body_bytes = recent_bytes
        self.held_bytes = 0
        self.is_refused = False
        self._budget = budget

    def take(self, bytes_more: int) -> bool:
        self.held_bytes += bytes_more
        if not self._budget.take_arriving(cast(Connection, self), bytes_more):
            self.give_way()
        return not self.is_refused

    def give_way(self) -> None:
        assert not self.is_refused
        self.is_refused = True
        self.finish()

    def arrive(self) -> None:
        self._budget.leave(cast(Connection, self))

    def finish(self) -> None:
        self.arrive()
        self._budget.release(self.held_bytes)
        self.held_bytes = 0


def test_there_is_room_up_to_the_last_byte() -> None:
    budget = BodyBudget(100)
    uploads = [Upload(budget) for _ in range(10)]
    assert all(upload.take(10) for upload in uploads)
    assert budget.held_bytes == 100
    assert budget.gave_way == 0


def test_the_slowest_gives_way() -> None:
    budget = BodyBudget(100)
    paces = [5, 0, 7, 9]
    uploads = [Upload(budget, recent_bytes=pace) for pace in paces]
    for upload in uploads:
        assert upload.take(24)
    assert uploads[3].take(10)
    assert [upload.is_refused for upload in uploads] == [False, True, False, False]


def test_one_with_little_stays_however_slow_it_is() -> None:
    budget = BodyBudget(100)
    little = Upload(budget, recent_bytes=0)
    much = [Upload(budget, recent_bytes=1000) for _ in range(3)]
    assert little.take(5)
    assert [upload.take(32) for upload in much] == [True, True, False]
    assert not little.is_refused


def test_of_several_alike_the_newest_gives_way() -> None:
    budget = BodyBudget(100)
    uploads = [Upload(budget, recent_bytes=25) for _ in range(5)]
    assert [upload.take(25) for upload in uploads] == [True] * 4 + [False]


def test_a_client_with_many_uploads_does_not_push_out_another_one() -> None:
    budget = BodyBudget(100)
    slow = Upload(budget, client="good", recent_bytes=1)
    assert slow.take(8)
    greedy = [Upload(budget, client="greedy", recent_bytes=1000) for _ in range(20)]
    for upload in greedy:
        upload.take(30)
    assert slow.take(3)
    assert not slow.is_refused
    assert budget.gave_way > 10


def test_what_arrived_whole_does_not_give_way() -> None:
    budget = BodyBudget(100)
    whole = [Upload(budget) for _ in range(4)]
    for upload in whole:
        upload.take(24)
        upload.arrive()
    assert not Upload(budget, recent_bytes=1000).take(24)
    assert not budget.take(10)
    assert budget.take(4)
    assert not any(upload.is_refused for upload in whole)


def test_room_is_made_for_more_than_the_next_byte() -> None:
    budget = BodyBudget(1600)
    uploads = [Upload(budget) for _ in range(1601)]
    for upload in uploads:
        upload.take(1)
    assert budget.held_bytes <= 1500  # or the next byte would look through all of them again


def test_somebody_always_finishes_and_the_books_are_right() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        budget = BodyBudget(dice.randint(100, 1000))
        waiting, finished = list[tuple[Upload, int]](), 0
        for _ in range(300):
            if len(waiting) < 30:
                client = dice.choice("abc")
                waiting.append((Upload(budget, client, dice.randint(0, 9)), dice.randint(1, 100)))
            upload, wanted = place = dice.choice(waiting)
            if upload.is_refused:
                waiting.remove(place)
            elif upload.held_bytes >= wanted:
                upload.finish()
                waiting.remove(place)
                finished += 1
            else:
                upload.take(dice.randint(1, 20))
            held = sum(each.held_bytes for each, _ in waiting)
            assert budget.held_bytes == held <= budget.bytes_max, f"seed {seed}"
        assert finished, f"seed {seed}"
