"""Does for subscriptions what they need from outside: wakes, webhooks, leases, retries.

Nothing is decided here and nothing is remembered here that matters: `Subscription.next_step` says
what is due when, a command says what became of it. After a restart the state alone tells where to
go on, so a webhook whose answer was lost is sent again.

One loop looks at what changed and at what is due; only work under way has a task. However many
subscriptions there are, one that waits costs an entry in a heap, and one at rest nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec
import structlog

from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.engine.upkeep import Upkeep
from millstream.errors import StreamError
from millstream.formats.layout import StreamId
from millstream.limits import (
    SUBSCRIPTION_COMMANDS_MAX,
    SUBSCRIPTION_LOOKS_AT_ONCE,
    WAKE_STREAMS_MAX,
    WEBHOOK_SECONDS_MAX,
    WEBHOOKS_AT_ONCE,
    WEBHOOKS_BEGUN_AT_ONCE,
    WEBHOOKS_DESCRIPTORS_SHARE,
    WEBHOOKS_PER_RECEIVER,
)
from millstream.protocol.wake_tokens import issue_token
from millstream.protocol.webhook_signatures import signer_of
from millstream.state.commands import (
    AnnounceWake,
    AnyCommand,
    ExpireLease,
    IssueWake,
    ReportDelivery,
)
from millstream.state.outbox import Outbox
from millstream.state.outcomes import Done
from millstream.state.subscription import Step, Subscription
from millstream.subscriptions.due_times import DueTimes
from millstream.subscriptions.turns import Turn, Turns
from millstream.subscriptions.watch import SubscriptionNumbers, WakeWatch
from millstream.subscriptions.webhooks import Answer, Webhook, WebhookSender

logger = structlog.get_logger("millstream.subscriptions")

SLEEP_SECONDS_MAX = 60.0  # the wall clock may be set; look again now and then
JITTER_PERMILLE = 200

Tails = tuple[tuple[StreamId, int, int], ...]  # stream id, ordinal, byte


def new_wake_id() -> str:
    return "w_" + secrets.token_hex(12)


def new_jitter() -> int:
    return random.randint(-JITTER_PERMILLE, JITTER_PERMILLE)


def control_url(base_url: str, subscription_id: str, action: str) -> str:
    name = quote(subscription_id, safe="!~*'()")
    return f"{base_url}/v1/stream/__ds/subscriptions/{name}/{action}"


def webhook_turns() -> Turns:
    """Sockets of webhooks must leave enough descriptors for clients."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    at_once = WEBHOOKS_AT_ONCE
    if descriptors != resource.RLIM_INFINITY:
        at_once = max(min(at_once, descriptors // WEBHOOKS_DESCRIPTORS_SHARE), 1)
    return Turns(at_once, WEBHOOKS_PER_RECEIVER)


class Trouble(NamedTuple):
    """A subscription met an error: how often in a row, and when it is looked at again."""

    failures: int
    until_ms: int


class Driver:
    def __init__(
        self, engine: Engine, sender: WebhookSender, timings: Timings, public_url: str = ""
    ) -> None:
        """`public_url`: what callbacks are built on; empty: where each subscription was made."""
        self._engine = engine
        self._sender = sender
        self._timings = timings
        self._public_url = public_url
        self._changed: OrderedDict[str, None] = OrderedDict()  # to be looked at
        self._due = DueTimes()
        self._stirred = asyncio.Event()
        self._commanding: set[str] = set()  # subscriptions with a command of ours on its way
        self._sending: set[str] = set()  # wakes whose webhook is under way
        self._turns = webhook_turns()
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubled: dict[str, Trouble] = {}
        self._upkeep = Upkeep(engine.faults, "subscriptions", timings.subscription_retry)
        self._watch = WakeWatch()

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Takes up every subscription where the state says it is.

        Afterwards nothing is submitted any more; webhooks under way are dropped, and sent again at
        the next start.
        """
        self._group = group
        self.attend(list(self._engine.machine.subscriptions.by_id))
        self._engine.listeners.append(self._heard)
        self._begin(self._drive())
        try:
            yield
        finally:
            self._engine.listeners.remove(self._heard)
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _heard(self, outbox: Outbox) -> None:
        if outbox.stirred:
            self.attend(outbox.stirred)

    def attend(self, subscription_ids: Iterable[str]) -> None:
        """These changed: they are looked at soon. Called once per batch, and does no more."""
        for subscription_id in subscription_ids:
            self._changed[subscription_id] = None
        self._stirred.set()

    def numbers(self) -> SubscriptionNumbers:
        count = len(self._engine.machine.subscriptions.by_id)
        return self._watch.numbers(count, self._sender.outcomes, self._engine.clock.now_ms())

    # One loop for all of them

    async def _drive(self) -> None:
        while True:
            try:
                await self._wait_until_due()
                self._look_at_some()
                self._send_some()
            except Exception as error:
                await asyncio.sleep(self._upkeep.failed(error, "subscriptions wait"))
                self._stirred.set()  # what was to be done then still is
            else:
                if not self._troubled:
                    self._upkeep.worked()
                await asyncio.sleep(0)  # others have their turn, however much is to do

    async def _wait_until_due(self) -> None:
        """Until something changed, or its time has come."""
        seconds = SLEEP_SECONDS_MAX
        due_ms = self._due.next_ms()
        if due_ms is not None:
            # A millisecond more: a timer may ring a little early.
            seconds = min((due_ms - self._engine.clock.now_ms() + 1) / 1000, SLEEP_SECONDS_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._stirred.wait()
        self._stirred.clear()

    def _look_at_some(self) -> None:
        now_ms = self._engine.clock.now_ms()
        for _ in range(SUBSCRIPTION_LOOKS_AT_ONCE):
            if len(self._commanding) >= SUBSCRIPTION_COMMANDS_MAX:
                return  # the end of each of them stirs
            subscription_id = self._due.take(now_ms)
            if subscription_id is not None:
                self._changed.pop(subscription_id, None)
            elif self._changed:
                subscription_id, _ = self._changed.popitem(last=False)
            else:
                return
            self._look_at(subscription_id, now_ms)
        self._stirred.set()  # there may be more

    def _look_at(self, subscription_id: str, now_ms: int) -> None:
        """One that makes trouble is looked at again later, and costs the others nothing."""
        try:
            self._take_up(subscription_id, now_ms)
        except Exception as error:
            self._in_trouble(subscription_id, error)

    def _take_up(self, subscription_id: str, now_ms: int) -> None:
        """Does what is due, or notes when it is."""
        subscription = self._engine.machine.subscriptions.by_id.get(subscription_id)
        self._watch.saw(subscription_id, subscription, now_ms)
        step = None if subscription is None else subscription.next_step()
        if subscription is None or step is None:
            self._got_over(subscription_id)  # it is gone, or nothing is left to do
            return
        what, due_ms = step
        trouble = self._troubled.get(subscription_id)
        if due_ms > now_ms:
            self._got_over(subscription_id)
            self._due.note(subscription_id, due_ms)
        elif trouble is not None and trouble.until_ms > now_ms:
            self._due.note(subscription_id, trouble.until_ms)
        elif what is Step.DELIVER:
            self._queue_webhook(subscription)
        elif subscription_id not in self._commanding:
            self._commanding.add(subscription_id)
            self._begin(self._advance(subscription, what))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Trouble

    def _in_trouble(self, subscription_id: str, error: Exception) -> None:
        self._upkeep.failed(error, "a subscription waits")
        before = self._troubled.get(subscription_id)
        failures = 1 if before is None else before.failures + 1
        seconds = self._timings.subscription_retry.seconds(failures)
        until_ms = self._engine.clock.now_ms() + round(seconds * 1000)
        self._troubled[subscription_id] = Trouble(failures, until_ms)
        self._look_later(subscription_id, seconds)

    def _got_over(self, subscription_id: str) -> None:
        if self._troubled.pop(subscription_id, None) is not None and not self._troubled:
            self._upkeep.worked()

    def _look_later(self, subscription_id: str, seconds: float) -> None:
        self._due.note(subscription_id, self._engine.clock.now_ms() + round(seconds * 1000))
        self._stirred.set()

    # Commands

    async def _advance(self, subscription: Subscription, step: Step) -> None:
        """Tells the journal that a wake begins, is announced again, or has lost its lease."""
        name = subscription.subscription_id
        try:
            outcome = await self._engine.perform(self._command(subscription, step))
        except Exception as error:
            self._in_trouble(name, error)
        else:
            self._got_over(name)
            if isinstance(outcome, StreamError):
                self._look_later(name, self._timings.subscription_refused)
            else:
                self.attend((name,))  # a look that came meanwhile was for nothing
            if step is Step.ISSUE and outcome is Done.ACCEPTED and subscription.is_webhook:
                self._watch.woke(name, self._engine.clock.now_ms())
        finally:
            self._commanding.discard(name)
            self._stirred.set()

    def _command(self, subscription: Subscription, step: Step) -> AnyCommand:
        now_ms, name = self._engine.clock.now_ms(), subscription.subscription_id
        if step is Step.ISSUE:
            self._settle_wake_stream(subscription, now_ms)
            turn = subscription.generation + 1
            return IssueWake(now_ms, name, turn, new_wake_id(), new_jitter())
        assert subscription.wake_id is not None
        if step is Step.ANNOUNCE:
            self._settle_wake_stream(subscription, now_ms)
            logger.info("wake stream is missing or closed", subscription=name)
            return AnnounceWake(now_ms, name, subscription.wake_id, new_jitter())
        return ExpireLease(now_ms, name, subscription.wake_id)

    def _settle_wake_stream(self, subscription: Subscription, now_ms: int) -> None:
        """The journal hears of a renewal before it has to decide whether the stream is alive."""
        key = subscription.config.wake_stream
        stream = None if key is None else self._engine.machine.find(key)
        if stream is not None and not stream.deleted:
            self._engine.lifetimes.confirm_alive(stream, now_ms)

    # Webhooks

    def _queue_webhook(self, subscription: Subscription) -> None:
        assert subscription.config.webhook_url is not None
        if subscription.wake_id not in self._sending:
            receiver = urlsplit(subscription.config.webhook_url).netloc.lower()
            name, is_retry = subscription.subscription_id, subscription.retries > 0
            self._turns.wait(receiver, name, is_retry=is_retry)

    def _send_some(self) -> None:
        for _ in range(WEBHOOKS_BEGUN_AT_ONCE):
            turn = self._turns.take()
            if turn is None:
                return
            subscription = self._engine.machine.subscriptions.by_id.get(turn.name)
            wake_id = None if subscription is None else _undelivered_wake(subscription)
            if subscription is None or wake_id is None or wake_id in self._sending:
                self._turns.give_back(turn)  # it was deleted, or called back, while it waited
            else:
                self._sending.add(wake_id)
                self._begin(self._deliver(turn, subscription, wake_id))
        self._stirred.set()  # there may be more

    async def _deliver(self, turn: Turn, subscription: Subscription, wake_id: str) -> None:
        """Sends the webhook and tells the journal what came of it. When that cannot be told, the
        webhook is sent again."""
        try:
            answer, tails = await self._send(turn, subscription, wake_id)
            await self._report(self._delivery(turn.name, wake_id, tails, answer))
        except Exception as error:
            self._in_trouble(turn.name, error)
        else:
            self._got_over(turn.name)
        finally:
            self._sending.discard(wake_id)
            self.attend((turn.name,))

    async def _send(
        self, turn: Turn, subscription: Subscription, wake_id: str
    ) -> tuple[Answer, Tails]:
        """The answer, with the tails that the receiver was told of."""
        try:
            webhook, tails = self._webhook(subscription, wake_id)
            return await self._sender.send(webhook), tails
        finally:
            self._turns.give_back(turn)
            self._stirred.set()

    def _webhook(self, subscription: Subscription, wake_id: str) -> tuple[Webhook, Tails]:
        assert subscription.config.webhook_url is not None
        subscriptions, clock = self._engine.machine.subscriptions, self._engine.clock
        assert subscriptions.keys is not None
        signer = signer_of(subscriptions.keys.signing_seed)
        webhook = Webhook(
            subscription.config.webhook_url,
            self._wake_body(subscription, wake_id, subscriptions.keys.token_key, clock.now_ms()),
            lambda body: signer.sign(body, clock.now_ms() // 1000),
            min(subscription.config.lease_ttl_ms / 1000, WEBHOOK_SECONDS_MAX),
        )
        return webhook, subscriptions.pending_tails(subscription, WAKE_STREAMS_MAX)

    def _wake_body(
        self, subscription: Subscription, wake_id: str, token_key: bytes, now_ms: int
    ) -> bytes:
        name, generation = subscription.subscription_id, subscription.generation
        streams = self._engine.machine.subscriptions.linked_streams(subscription, WAKE_STREAMS_MAX)
        base_url = self._public_url or subscription.base_url
        return msgspec.json.encode(
            {
                "subscription_id": name,
                "wake_id": wake_id,
                "generation": generation,
                "streams": streams,
                "callback_url": control_url(base_url, name, "callback"),
                "callback_token": issue_token(token_key, name, wake_id, generation, now_ms),
            }
        )

    def _delivery(
        self, subscription_id: str, wake_id: str, tails: Tails, answer: Answer
    ) -> ReportDelivery:
        if answer.problem:
            logger.warning("webhook failed", subscription=subscription_id, problem=answer.problem)
        return ReportDelivery(
            self._engine.clock.now_ms(),
            subscription_id,
            wake_id,
            not answer.problem,
            answer.done,
            tails if answer.done else (),
            new_jitter(),
        )

    async def _report(self, report: ReportDelivery) -> None:
        """Returns once the journal took it."""
        while True:
            outcome = await self._engine.perform(report)
            if not isinstance(outcome, StreamError):
                return
            await asyncio.sleep(self._timings.subscription_refused)


def _undelivered_wake(subscription: Subscription) -> str | None:
    step = subscription.next_step()
    return subscription.wake_id if step is not None and step[0] is Step.DELIVER else None
