"""Subscriptions on a journal in memory, driven on a real loop, with receivers that are played."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

from millstream.clock import SystemClock
from millstream.engine.engine import Engine
from millstream.engine.timings import Backoff, Timings
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    CreateSubscription,
    InstallKeys,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream
from millstream.state.subscription import Subscription
from millstream.subscriptions.driver import Driver
from millstream.subscriptions.webhooks import Answer, Webhook, WebhookSender
from tests.unit.engine.world import ListeningJournal

BRIEF = 0.005
HASTY = dataclasses.replace(
    Timings(), subscription_retry=Backoff(BRIEF, 4 * BRIEF), subscription_refused=BRIEF
)
DONE = Answer("", True, 200)


class FakeSender:
    """Answers as `behave` says."""

    def __init__(self) -> None:
        self.sent: list[Webhook] = []
        self.under_way = 0
        self.outcomes = {"delivered": 0, "refused": 0, "failed": 0}
        self.behave: Callable[[Webhook], Awaitable[Answer]] = self.finish

    async def send(self, webhook: Webhook) -> Answer:
        self.sent.append(webhook)
        self.under_way += 1
        try:
            answer = await self.behave(webhook)
        finally:
            self.under_way -= 1
        self.outcomes[answer.outcome] += 1
        return answer

    async def finish(self, webhook: Webhook) -> Answer:
        return DONE

    async def hang(self, webhook: Webhook) -> Answer:
        await asyncio.sleep(3600)
        return DONE


class SubscriptionWorld:
    def __init__(self) -> None:
        self.clock = SystemClock()
        self.machine = StateMachine()
        self.journal = ListeningJournal()
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.sender = FakeSender()
        self.driver = self.new_driver()
        self.engine.start(asyncio.get_running_loop())

    def new_driver(self) -> Driver:
        return Driver(self.engine, cast(WebhookSender, self.sender), HASTY)

    async def perform(self, command: AnyCommand) -> Outcome:
        """Past the engine's own `perform`, which a test may have spoiled for the driver."""
        told = asyncio.get_running_loop().create_future()
        self.journal.submit((command, lambda context, outcome: told.set_result(outcome), None))
        return cast(Outcome, await told)

    async def create(self, path: bytes) -> Stream:
        await self.perform(CreateStream(self.clock.now_ms(), path, b"text/plain"))
        stream = self.machine.find(path)
        assert stream is not None
        return stream

    async def append(self, stream: Stream, data: bytes = b"more") -> None:
        now_ms = self.clock.now_ms()
        await self.perform(Append(now_ms, stream.stream_id, data, b"", 1, stream.essence))

    async def subscribe(self, name: str, url: str, *paths: bytes, lease_ms: int = 30_000) -> None:
        if self.machine.subscriptions.keys is None:
            await self.perform(InstallKeys(self.clock.now_ms(), b"s" * 32, b"k" * 32))
        now_ms, base_url = self.clock.now_ms(), "http://here"
        await self.perform(
            CreateSubscription(
                now_ms, name, base_url, lease_ms, streams=tuple(sorted(paths)), webhook_url=url
            )
        )

    def subscription(self, name: str) -> Subscription:
        return self.machine.subscriptions.by_id[name]

    def is_at_rest(self, name: str) -> bool:
        return self.subscription(name).next_step() is None


@contextlib.asynccontextmanager
async def driven() -> AsyncIterator[SubscriptionWorld]:
    """Whatever the driver met, its tasks raised nothing."""
    world = SubscriptionWorld()
    async with asyncio.TaskGroup() as group, world.driver.running(group):
        yield world


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)
