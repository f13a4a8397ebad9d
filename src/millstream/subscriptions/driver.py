"""Does for subscriptions what they need from outside: wakes, webhooks, leases, retries.

Nothing is decided here and nothing is remembered here that matters: `Subscription.next_step` says
what is due when, a command says what became of it. After a restart the state alone tells where to
go on, so a webhook whose answer was lost is sent again.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from urllib.parse import quote

import msgspec
import structlog

from millstream.engine.engine import Engine
from millstream.engine.timings import Backoff
from millstream.engine.upkeep import Upkeep
from millstream.errors import StreamError
from millstream.formats.layout import StreamId
from millstream.limits import WAKE_STREAMS_MAX, WEBHOOK_SECONDS_MAX
from millstream.protocol.wake_tokens import issue_token
from millstream.protocol.webhook_signatures import signer_of
from millstream.state.commands import (
    AnnounceWake,
    AnyCommand,
    ExpireLease,
    IssueWake,
    ReportDelivery,
)
from millstream.state.outcomes import Done, Outcome
from millstream.state.subscription import Step, Subscription
from millstream.subscriptions.webhooks import Answer, Webhook, WebhookSender

logger = structlog.get_logger("millstream.subscriptions")

SLEEP_SECONDS_MAX = 60.0  # the wall clock may be set; look again now and then
REFUSED_SECONDS = 1.0  # when the journal has no room: until the next try
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 30.0
JITTER_PERMILLE = 200
ATTENDING, REPORTING = "attending", "reporting"


def new_wake_id() -> str:
    return "w_" + secrets.token_hex(12)


def new_jitter() -> int:
    return random.randint(-JITTER_PERMILLE, JITTER_PERMILLE)


def control_url(base_url: str, subscription_id: str, action: str) -> str:
    name = quote(subscription_id, safe="!~*'()")
    return f"{base_url}/v1/stream/__ds/subscriptions/{name}/{action}"


class Driver:
    def __init__(self, engine: Engine, sender: WebhookSender) -> None:
        self._engine = engine
        self._sender = sender
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._submitted: set[str] = set()  # subscriptions with a command of ours on its way
        self._sending: set[str] = set()  # wakes whose webhook is under way
        self._upkeep = Upkeep(
            engine.faults, "subscriptions", Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        )
        self._failed: dict[str, str] = {}  # subscriptions that met an error, and doing what
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes up every subscription where the state says it is."""
        self._loop = loop
        self._engine.attend_subscriptions = self.attend
        self.attend(list(self._engine.machine.subscriptions.by_id))

    def stop(self) -> None:
        """Submits nothing any more; webhooks under way are dropped and sent again at next start."""
        self._stopped = True
        self._engine.attend_subscriptions = None
        for timer in self._timers.values():
            timer.cancel()
        self._sender.close()

    def attend(self, subscription_ids: Iterable[str]) -> None:
        """These changed: do what is due, or wait until it is."""
        for subscription_id in subscription_ids:
            self._attend(subscription_id)

    def _attend(self, subscription_id: str) -> None:
        """One that makes trouble is looked at again later, and costs the others nothing."""
        self._guard(subscription_id, ATTENDING, lambda: self._take_step(subscription_id))

    def _guard(self, subscription_id: str, doing: str, step: Callable[[], None]) -> None:
        """Whatever the step raises, somebody looks at the subscription again."""
        try:
            step()
        except Exception as error:
            self._failed[subscription_id] = doing
            delay = self._upkeep.failed(error, "a subscription waits")
            if not self._stopped:
                self._look_again(subscription_id, delay)
        else:
            if self._failed.get(subscription_id) == doing:
                self._got_over(subscription_id)

    def _got_over(self, subscription_id: str) -> None:
        if self._failed.pop(subscription_id, None) is not None and not self._failed:
            self._upkeep.worked()

    def _take_step(self, subscription_id: str) -> None:
        timer = self._timers.pop(subscription_id, None)
        if timer is not None:
            timer.cancel()
        subscription = self._engine.machine.subscriptions.by_id.get(subscription_id)
        if self._stopped or subscription_id in self._submitted:
            return
        step = None if subscription is None else subscription.next_step()
        if subscription is None or step is None:
            self._got_over(subscription_id)  # it is gone, or nothing is left to do
            return
        wait_ms = step[1] - self._engine.clock.now_ms()
        if wait_ms > 0:
            self._look_again(subscription_id, min(wait_ms / 1000 + 0.001, SLEEP_SECONDS_MAX))
        else:
            self._act(subscription, step[0])

    def _look_again(self, subscription_id: str, seconds: float) -> None:
        self._timers[subscription_id] = self._loop.call_later(
            seconds, self._attend, subscription_id
        )

    def _act(self, subscription: Subscription, step: Step) -> None:
        now_ms, name = self._engine.clock.now_ms(), subscription.subscription_id
        if step is Step.DELIVER:
            self._deliver(subscription, now_ms)
        elif step is Step.ISSUE:
            self._settle_wake_stream(subscription, now_ms)
            turn = subscription.generation + 1
            self._submit(IssueWake(now_ms, name, turn, new_wake_id(), new_jitter()), name)
        elif step is Step.ANNOUNCE:
            assert subscription.wake_id is not None
            self._settle_wake_stream(subscription, now_ms)
            logger.info("wake stream is missing or closed", subscription=name)
            self._submit(AnnounceWake(now_ms, name, subscription.wake_id, new_jitter()), name)
        else:
            assert subscription.wake_id is not None
            self._submit(ExpireLease(now_ms, name, subscription.wake_id), name)

    def _settle_wake_stream(self, subscription: Subscription, now_ms: int) -> None:
        """The journal hears of a renewal before it has to decide whether the stream is alive."""
        key = subscription.config.wake_stream
        stream = None if key is None else self._engine.machine.find(key)
        if stream is not None and not stream.deleted:
            self._engine.lifetimes.confirm_alive(stream, now_ms)

    def _submit(self, command: AnyCommand, subscription_id: str) -> None:
        self._engine.submit(command, self._applied, subscription_id)
        self._submitted.add(subscription_id)

    def _applied(self, subscription_id: str, outcome: Outcome) -> None:
        self._submitted.discard(subscription_id)
        if isinstance(outcome, StreamError):
            if not self._stopped:
                self._look_again(subscription_id, REFUSED_SECONDS)
        elif outcome is Done.NOTHING:  # it came too late; something else may be due
            self._loop.call_soon(self._attend, subscription_id)

    # Webhooks

    def _deliver(self, subscription: Subscription, now_ms: int) -> None:
        wake_id = subscription.wake_id
        assert wake_id is not None
        assert subscription.config.webhook_url is not None
        if wake_id in self._sending:
            return
        subscriptions = self._engine.machine.subscriptions
        assert subscriptions.keys is not None
        signer = signer_of(subscriptions.keys.signing_seed)
        clock = self._engine.clock
        webhook = Webhook(
            subscription.config.webhook_url,
            self._wake_body(subscription, wake_id, subscriptions.keys.token_key, now_ms),
            lambda body: signer.sign(body, clock.now_ms() // 1000),
            min(subscription.config.lease_ttl_ms / 1000, WEBHOOK_SECONDS_MAX),
        )
        tails = subscriptions.pending_tails(subscription, WAKE_STREAMS_MAX)
        self._sender.send(
            webhook, partial(self._answered, subscription.subscription_id, wake_id, tails)
        )
        self._sending.add(wake_id)

    def _wake_body(
        self, subscription: Subscription, wake_id: str, token_key: bytes, now_ms: int
    ) -> bytes:
        name, generation = subscription.subscription_id, subscription.generation
        streams = self._engine.machine.subscriptions.linked_streams(subscription, WAKE_STREAMS_MAX)
        return msgspec.json.encode(
            {
                "subscription_id": name,
                "wake_id": wake_id,
                "generation": generation,
                "streams": streams,
                "callback_url": control_url(subscription.base_url, name, "callback"),
                "callback_token": issue_token(token_key, name, wake_id, generation, now_ms),
            }
        )

    def _answered(
        self,
        subscription_id: str,
        wake_id: str,
        tails: tuple[tuple[StreamId, int, int], ...],
        answer: Answer,
    ) -> None:
        def report() -> None:
            self._report(self._delivery(subscription_id, wake_id, tails, answer))
            self._sending.add(wake_id)

        if not self._stopped:
            self._sending.discard(wake_id)  # when it cannot be reported, it is sent again
            self._guard(subscription_id, REPORTING, report)

    def _delivery(
        self,
        subscription_id: str,
        wake_id: str,
        tails: tuple[tuple[StreamId, int, int], ...],
        answer: Answer,
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

    def _report(self, report: ReportDelivery) -> None:
        self._engine.submit(report, self._reported, report)

    def _reported(self, report: ReportDelivery, outcome: Outcome) -> None:
        if isinstance(outcome, StreamError):
            if not self._stopped:
                self._loop.call_later(REFUSED_SECONDS, self._report_again, report)
            return
        self._sending.discard(report.wake_id)
        self._loop.call_soon(self._attend, report.subscription_id)

    def _report_again(self, report: ReportDelivery) -> None:
        if not self._stopped:
            self._report(report)
