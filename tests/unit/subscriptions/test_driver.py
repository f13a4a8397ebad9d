"""What the driver does with subscriptions, and what it does when its collaborators fail."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest
import structlog.testing

from millstream.api.operations import Readiness
from millstream.faults import Faults
from millstream.http.message import Request
from millstream.journal.memory import MemoryJournal
from millstream.state.commands import (
    DeleteSubscription,
    ExpireLease,
    IssueWake,
    ReportDelivery,
)
from millstream.state.subscription import Subscription, SubscriptionConfig
from millstream.subscriptions.webhooks import Answer, Webhook
from tests.unit.subscriptions.world import DONE, SubscriptionWorld, driven, until

HOOK = "http://127.0.0.1:1/hook"


def run(story: Callable[[SubscriptionWorld], Any]) -> None:
    async def told() -> None:
        async with driven() as world:
            await story(world)

    asyncio.run(told())


def test_work_is_told_and_then_everything_rests() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("s", HOOK, b"a")
        await world.append(stream)
        await until(lambda: world.sender.sent)
        await until(lambda: world.is_at_rest("s"))
        (webhook,) = world.sender.sent
        assert json.loads(webhook.body)["callback_url"].startswith("http://here/v1/stream/__ds/")
        assert world.driver.numbers() == (1, 0, world.sender.outcomes, 0, 0.0, 0)
        await until(lambda: len(world.driver._tasks) == 1)

    run(story)


def test_a_wake_that_is_called_back_before_the_answer_is_followed_by_the_next() -> None:
    """The receiver takes its time to answer; its worker was quicker."""

    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("s", HOOK, b"a")
        first = asyncio.Event()

        async def behave(webhook: Webhook) -> Answer:
            if len(world.sender.sent) == 1:
                await first.wait()
            return DONE

        world.sender.behave = behave
        await world.append(stream)
        await until(lambda: world.sender.sent)
        seen, now_ms = world.subscription("s"), world.clock.now_ms()
        assert seen.wake_id is not None
        await world.perform(ReportDelivery(now_ms, "s", seen.wake_id, True, True, (), 0))
        await until(lambda: len(world.sender.sent) == 2)
        assert world.sender.under_way == 1
        first.set()
        await until(lambda: world.is_at_rest("s") and not world.sender.under_way)

    run(story)


def test_a_lease_ends_in_time_though_thousands_wait() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")

        async def accept(webhook: Webhook) -> Answer:
            return Answer("", False, 202)

        world.sender.behave = accept
        for number in range(1000):
            await world.subscribe(f"long{number}", f"https://h{number}.example/", b"a")
        await world.subscribe("short", HOOK, b"a", lease_ms=1000)
        await world.append(stream)
        await until(lambda: world.journal.count(ExpireLease))
        assert world.journal.count(ExpireLease) == 1
        assert len(world.driver._tasks) < 10

    run(story)


def test_what_follows_a_command_is_done_however_early_it_is_looked_at() -> None:
    """A lease ends, and its work needs a wake at once; the look comes before the driver hears."""

    async def story(world: SubscriptionWorld) -> None:
        stream, driver = await world.create(b"a"), world.driver

        async def accept(webhook: Webhook) -> Answer:
            return Answer("", False, 202)

        world.engine.listeners.append(lambda _: driver._look_at_some())
        world.sender.behave = accept
        await world.subscribe("s", HOOK, b"a", lease_ms=1000)
        await world.append(stream)
        await until(lambda: len(world.sender.sent) == 2)
        assert world.journal.count(ExpireLease) == 1

    run(story)


def test_hanging_receivers_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and however many webhooks wait for each of them."""

    # As with the 1024 descriptors that most systems give to a process.
    monkeypatch.setattr("millstream.subscriptions.driver.WEBHOOKS_AT_ONCE", 256)

    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")

        async def behave(webhook: Webhook) -> Answer:
            return await (world.sender.hang if "hang" in webhook.url else world.sender.finish)(
                webhook
            )

        world.sender.behave = behave
        for number in range(64):
            for copy in range(12):
                name = f"hang{number}-{copy}"
                await world.subscribe(name, f"https://hang{number}.example/", b"a")
        await world.append(stream)
        await until(lambda: world.sender.under_way >= 128)
        await world.subscribe("healthy", "https://healthy.example/", b"a")
        for _ in range(3):
            began, count = time.monotonic(), world.journal.count(ReportDelivery)
            await world.append(stream)
            await until(lambda count=count: world.journal.count(ReportDelivery) > count)  # type: ignore[misc]
            assert time.monotonic() - began < 5

    run(story)


def test_one_receiver_has_only_so_many_at_once() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        world.sender.behave = world.sender.hang
        for number in range(100):
            await world.subscribe(f"s{number}", f"https://same.example/{number}", b"a")
        await world.append(stream)
        await until(lambda: world.journal.count(IssueWake) == 100)
        await asyncio.sleep(0.05)
        assert world.sender.under_way == 8
        assert len(world.driver._tasks) == 9  # those that wait are no tasks

    run(story)


def test_a_deleted_subscription_leaves_nothing_behind() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("s", HOOK, b"a")

        async def refuse(webhook: Webhook) -> Answer:
            return Answer("the receiver answered 500", status=500)

        world.sender.behave = refuse
        await world.append(stream)
        await until(lambda: world.subscription("s").retries)
        await until(lambda: world.driver.numbers().retries_waiting == 1)
        await world.perform(DeleteSubscription(world.clock.now_ms(), "s"))
        await until(lambda: world.driver.numbers()[:2] == (0, 0))
        assert world.driver.numbers().retries_waiting == 0

    run(story)


def test_while_the_journal_is_full_it_is_tried_again_and_told_once_it_has_room() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("s", HOOK, b"a")
        answered = asyncio.Event()

        async def behave(webhook: Webhook) -> Answer:
            await answered.wait()
            return DONE

        world.sender.behave = behave
        await world.append(stream)
        await until(lambda: world.sender.sent)
        world.journal.is_full = True
        answered.set()
        await until(lambda: world.journal.count(ReportDelivery) > 3)
        world.journal.is_full = False
        await until(lambda: world.is_at_rest("s"))
        assert len(world.sender.sent) == 1  # once is enough

    run(story)


def test_a_stop_submits_nothing_and_the_next_start_sends_again() -> None:
    async def story() -> None:
        world = SubscriptionWorld()
        async with asyncio.TaskGroup() as group:
            async with world.driver.running(group):
                stream = await world.create(b"a")
                await world.subscribe("s", HOOK, b"a")
                world.sender.behave = world.sender.hang
                await world.append(stream)
                await until(lambda: world.sender.under_way)
            assert not world.sender.under_way
            submitted = len(world.journal.submitted)
            await asyncio.sleep(0.05)
            assert len(world.journal.submitted) == submitted
            world.sender.behave = world.sender.finish
            async with world.new_driver().running(group):
                await until(lambda: world.is_at_rest("s"))
        first, second = (json.loads(webhook.body)["wake_id"] for webhook in world.sender.sent)
        assert first == second

    asyncio.run(story())


def test_a_hundred_thousand_idle_subscriptions_cost_no_task_no_timer_and_little_time() -> None:
    count = 100_000

    async def story() -> None:
        world = SubscriptionWorld()
        stream = await world.create(b"busy")
        await world.subscribe("busy", HOOK, b"busy")
        subscriptions = world.machine.subscriptions
        config = SubscriptionConfig(30_000, None, (), HOOK, None, None)
        for number in range(count):
            subscriptions.adopt(Subscription(f"s{number}", config, "http://here", 0))
        gc.collect()
        objects, began = len(gc.get_objects()), time.process_time()
        async with asyncio.TaskGroup() as group, world.driver.running(group):
            await until(lambda: not world.driver._changed)
            assert time.process_time() - began < 5
            await asyncio.sleep(0.01)
            assert len(world.driver._tasks) == 1
            assert len(world.driver._due) == 0
            gc.collect()
            assert len(gc.get_objects()) - objects < 1000
            began = time.process_time()
            for _ in range(10):
                await world.append(stream)
                await until(lambda: world.is_at_rest("busy"))
                assert world.driver.numbers().subscriptions == count + 1
            assert time.process_time() - began < 2  # the others are not looked at

    asyncio.run(story())


@pytest.mark.parametrize("feeds", [True, False])
def test_a_receiver_that_feeds_itself_is_named_in_the_log_and_counted(
    monkeypatch: pytest.MonkeyPatch, feeds: bool
) -> None:
    """Its delivery appends to the stream that it tells of, before it is answered."""
    monkeypatch.setattr("millstream.subscriptions.watch.RUNAWAY_SECONDS", 0.3)

    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("loop", HOOK, b"a")

        async def feed(webhook: Webhook) -> Answer:
            await world.append(stream)
            return DONE

        await world.append(stream)
        if feeds:
            world.sender.behave = feed
            await until(lambda: world.driver.numbers().runaways)
            world.sender.behave = world.sender.finish
            await until(lambda: world.is_at_rest("loop"))
        else:  # as busy, from outside and with pauses
            began = time.monotonic()
            while time.monotonic() - began < 0.7:
                await until(lambda: world.is_at_rest("loop") and not world.driver._changed)
                await asyncio.sleep(0)
                await world.append(stream)
        await until(lambda: not world.driver.numbers().runaways)

    with structlog.testing.capture_logs() as logs:
        run(story)
    named = [line["subscription"] for line in logs if "without a pause" in line["event"]]
    assert named == (["loop"] if feeds else [])


# In trouble


class Sabotage:
    """Raises in place of an attribute."""

    def __init__(self, owner: Any, name: str, error: Exception) -> None:
        self.calls = 0
        self._owner, self._name = owner, name
        self._is_own = name in vars(owner)
        self._before = getattr(owner, name)

        def fail(*_: object, **__: object) -> None:
            self.calls += 1
            raise error

        setattr(owner, name, fail)

    def end(self) -> None:
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)


class Step(NamedTuple):
    owner: Callable[[SubscriptionWorld], Any]
    name: str

    def __str__(self) -> str:
        return self.name


def _module(world: SubscriptionWorld) -> Any:
    return importlib.import_module("millstream.subscriptions.driver")


STEPS = [
    Step(_module, "new_wake_id"),
    Step(_module, "new_jitter"),
    Step(_module, "signer_of"),
    Step(_module, "issue_token"),
    Step(_module, "ReportDelivery"),
    Step(_module, "urlsplit"),
    Step(lambda w: w.sender, "send"),
    Step(lambda w: w.engine, "perform"),
    Step(lambda w: w.driver, "_take_up"),
    Step(lambda w: w.driver, "_command"),
    Step(lambda w: w.driver, "_report"),
    Step(lambda w: w.driver, "_look_at_some"),
    Step(lambda w: w.driver, "_send_some"),
    Step(lambda w: w.driver._watch, "saw"),
    Step(lambda w: w.driver._due, "take"),
    Step(lambda w: w.driver._turns, "take"),
]
FAULTS = (RuntimeError, KeyError, MemoryError)  # by turns: they are all the same to the policy


class _Asked:
    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        self.answer = json.loads(body)


def reasons(faults: Faults) -> list[str]:
    readiness, asked = Readiness(faults, MemoryJournal()), _Asked()
    readiness.is_open = True
    readiness.respond(cast(Request, asked))
    return [reason["code"] for reason in asked.answer.get("reasons", [])]


@pytest.mark.parametrize(
    ("step", "error"),
    [(step, FAULTS[i % len(FAULTS)]) for i, step in enumerate(STEPS)]
    + [(step, OSError) for step in STEPS],
    ids=str,
)
def test_trouble_is_heard_shown_and_got_over(step: Step, error: type[Exception]) -> None:
    """If this hangs or fails, the driver was dead, deaf or silent after the error."""

    async def story(world: SubscriptionWorld) -> None:
        faults = world.engine.faults
        stream = await world.create(b"a")
        await world.subscribe("s", HOOK, b"a")
        await until(lambda: not world.driver._changed)
        expected = [] if error is OSError else ["subscriptions_failed"]
        append = asyncio.ensure_future(world.append(stream))
        sabotage = Sabotage(step.owner(world), step.name, error("injected"))
        try:
            if error is OSError:
                await until(lambda: "injected" in str(logs))
            else:
                await until(lambda: faults.counts["subscriptions"])
            for _ in range(2):
                assert reasons(faults) == expected
                await until(lambda calls=sabotage.calls: sabotage.calls > calls)  # type: ignore[misc]
        finally:
            sabotage.end()
        await append
        await until(lambda: world.sender.sent and world.is_at_rest("s"))
        await until(lambda: not faults.failing())
        if error is OSError:
            assert not any(faults.counts.values()), "the world's errors are no faults of ours"

    with structlog.testing.capture_logs() as logs:
        run(story)


def test_one_that_makes_trouble_costs_the_others_nothing() -> None:
    async def story(world: SubscriptionWorld) -> None:
        stream = await world.create(b"a")
        await world.subscribe("bad", "https://bad.example/", b"a")
        await world.subscribe("good", HOOK, b"a")

        async def behave(webhook: Webhook) -> Answer:
            if "bad" in webhook.url:
                raise RuntimeError("injected")
            return DONE

        world.sender.behave = behave
        for number in range(1, 6):
            await world.append(stream)
            await until(lambda: world.is_at_rest("good"))
            good = [webhook for webhook in world.sender.sent if webhook.url == HOOK]
            assert len(good) == number
        assert reasons(world.engine.faults) == ["subscriptions_failed"]
        world.sender.behave = world.sender.finish
        await until(lambda: world.is_at_rest("bad"))
        await until(lambda: not world.engine.faults.failing())

    with structlog.testing.capture_logs():
        run(story)
