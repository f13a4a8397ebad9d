from __future__ import annotations

from random import Random

from millstream.touch.timers import Timers


def test_they_ring_in_the_order_of_their_times() -> None:
    timers, rung = Timers(), list[int]()
    for at in (3, 1, 2, 1):
        timers.set(at, lambda at=at: rung.append(at))  # type: ignore[misc]
    while (call := timers.take(2)) is not None:
        call()
    assert (rung, timers.next_at(), len(timers)) == ([1, 1, 2], 3, 1)


def test_what_is_cancelled_does_not_ring_and_does_not_stay() -> None:
    timers, random = Timers(), Random(1)
    kept = timers.set(500, lambda: None)
    for _ in range(10_000):
        timer = timers.set(random.uniform(501, 1000), lambda: None)
        timers.cancel(timer)
        timers.cancel(timer)
    assert len(timers) == 1
    assert len(timers._heap) < 200
    assert timers.next_at() == 500
    assert timers.take(500) is not None
    timers.cancel(kept)
    assert (len(timers), timers.next_at(), timers.take(2000)) == (0, None, None)
