from __future__ import annotations

from structlog.testing import capture_logs

from millstream.limits import RUNAWAY_SECONDS, RUNAWAY_WAKES_PER_SECOND
from millstream.state.subscription import Subscription, SubscriptionConfig
from millstream.subscriptions.watch import SubscriptionNumbers, WakeWatch

NOW_MS = 1_750_000_000_000


def subscription(name: str = "s", *, is_pending: bool = True) -> Subscription:
    config = SubscriptionConfig(30_000, None, (b"a",), "https://hooks.example/", None, None)
    made = Subscription(name, config, "http://here", NOW_MS)
    if is_pending:
        made.pending[b"a"] = None
    return made


def numbers(watch: WakeWatch, now_ms: int = NOW_MS) -> SubscriptionNumbers:
    return watch.numbers(7, {"delivered": 1}, now_ms)


def test_a_wake_is_counted_from_its_work_to_its_end() -> None:
    watch, seen = WakeWatch(), subscription()
    watch.saw("s", seen, NOW_MS)
    assert numbers(watch, NOW_MS + 1500)[1:5] == (0, {"delivered": 1}, 0, 1.5)
    seen.begin_wake("w", NOW_MS)
    watch.saw("s", seen, NOW_MS + 1000)
    assert numbers(watch, NOW_MS + 2000)[1:5] == (1, {"delivered": 1}, 0, 2.0)
    seen.postpone(NOW_MS, 0)
    watch.saw("s", seen, NOW_MS + 2000)
    assert numbers(watch, NOW_MS + 3000)[1:5] == (1, {"delivered": 1}, 1, 3.0)
    seen.hold(NOW_MS)
    watch.saw("s", seen, NOW_MS + 3000)
    assert numbers(watch, NOW_MS + 4000)[1:5] == (1, {"delivered": 1}, 0, 0.0)
    seen.end_wake()
    seen.pending.clear()
    watch.saw("s", seen, NOW_MS + 4000)
    assert numbers(watch, NOW_MS + 5000) == (7, 0, {"delivered": 1}, 0, 0.0, 0)


def test_the_oldest_is_the_one_that_waits_longest() -> None:
    watch, first, second = WakeWatch(), subscription(), subscription()
    watch.saw("a", first, NOW_MS)
    watch.saw("b", second, NOW_MS + 1000)
    first.begin_wake("w", NOW_MS)
    first.end_wake()  # that one came and went between two looks
    watch.saw("a", first, NOW_MS + 2000)
    assert numbers(watch, NOW_MS + 5000).oldest_undelivered_seconds == 4.0
    watch.saw("b", None, NOW_MS + 5000)
    assert numbers(watch, NOW_MS + 5000).oldest_undelivered_seconds == 3.0


def wake_for(watch: WakeWatch, seconds: float, per_second: float, start_ms: int = NOW_MS) -> int:
    now_ms = start_ms
    for number in range(int(seconds * per_second)):
        now_ms = start_ms + round(number * 1000 / per_second)
        watch.woke("s", now_ms)
    return now_ms


def test_one_that_wakes_without_a_pause_is_named_once_a_minute() -> None:
    watch = WakeWatch()
    with capture_logs() as logs:
        now_ms = wake_for(watch, RUNAWAY_SECONDS * 3, RUNAWAY_WAKES_PER_SECOND * 2)
        assert numbers(watch).runaways == 1
        assert [line["subscription"] for line in logs] == ["s"]
        assert logs[0]["wakes_per_second"] == RUNAWAY_WAKES_PER_SECOND * 2
        wake_for(watch, 90, RUNAWAY_WAKES_PER_SECOND * 2, now_ms)
    assert len(logs) == 2


def test_one_that_is_only_busy_now_and_then_is_not() -> None:
    watch, idle = WakeWatch(), subscription(is_pending=False)
    with capture_logs() as logs:
        wake_for(watch, RUNAWAY_SECONDS * 3, RUNAWAY_WAKES_PER_SECOND * 0.8)
        watch.saw("s", idle, NOW_MS)
        now_ms = NOW_MS
        for _ in range(10):
            now_ms = wake_for(watch, RUNAWAY_SECONDS * 0.9, 100, now_ms)
            watch.saw("s", idle, now_ms)  # everything is processed, for a moment
    assert not logs
    assert numbers(watch).runaways == 0


def test_one_that_comes_to_rest_is_no_runaway_any_more() -> None:
    watch = WakeWatch()
    wake_for(watch, RUNAWAY_SECONDS * 2, 100)
    assert numbers(watch).runaways == 1
    watch.saw("s", None, NOW_MS)
    assert numbers(watch).runaways == 0
