"""What operators see of subscriptions: counts that are kept up as they change, and runaways.

A receiver that writes to the very streams that wake it wakes itself for ever. From here that looks
like a busy stream, so it is only pointed out: one wake behind the other, without a pause.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from millstream.limits import (
    RUNAWAY_SECONDS,
    RUNAWAY_WAKES_PER_SECOND,
    RUNAWAY_WARNING_SECONDS,
)
from millstream.state.subscription import Subscription

logger = structlog.get_logger("millstream.subscriptions")


class SubscriptionNumbers(NamedTuple):
    subscriptions: int
    wakes_in_flight: int
    webhooks: Mapping[str, int]  # attempts, by outcome
    retries_waiting: int
    oldest_undelivered_seconds: float
    runaways: int


class WakeWatch:
    """Told of every look at a subscription; asking it costs the same however many there are."""

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._retrying: set[str] = set()
        # Generation of the wake that is not delivered, and since when; oldest first.
        self._undelivered: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._runaways = RunawayWatch()

    def saw(self, name: str, subscription: Subscription | None, now_ms: int) -> None:
        """None: it is gone."""
        if subscription is None or (subscription.wake_id is None and not subscription.pending):
            self._forget(name)
            return
        _set(self._in_flight, name, subscription.wake_id is not None)
        is_waiting = not subscription.is_delivered
        _set(self._retrying, name, is_waiting and subscription.retries > 0)
        if not is_waiting:
            self._undelivered.pop(name, None)
            return
        generation = subscription.generation + (subscription.wake_id is None)
        known = self._undelivered.get(name)
        if known is None or known[0] != generation:
            self._undelivered[name] = generation, now_ms
            self._undelivered.move_to_end(name)

    def _forget(self, name: str) -> None:
        self._in_flight.discard(name)
        self._retrying.discard(name)
        self._undelivered.pop(name, None)
        self._runaways.paused(name)

    def woke(self, name: str, now_ms: int) -> None:
        """A wake was issued whose webhook is next."""
        self._runaways.woke(name, now_ms)

    def numbers(
        self, subscriptions: int, webhooks: Mapping[str, int], now_ms: int
    ) -> SubscriptionNumbers:
        oldest = next(iter(self._undelivered.values()), None)
        return SubscriptionNumbers(
            subscriptions,
            len(self._in_flight),
            webhooks,
            len(self._retrying),
            0.0 if oldest is None else max(now_ms - oldest[1], 0) / 1000,
            len(self._runaways.running),
        )


class RunawayWatch:
    """Knows only subscriptions with a wake in flight, or work for one."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._wakes: dict[str, tuple[int, int]] = {}  # how many, and since when
        self._warned_ms: dict[str, int] = {}

    def woke(self, name: str, now_ms: int) -> None:
        count, since_ms = self._wakes.get(name, (0, now_ms))
        seconds = (now_ms - since_ms) / 1000
        if seconds < RUNAWAY_SECONDS:
            self._wakes[name] = count + 1, since_ms
            return
        self._wakes[name] = 1, now_ms
        is_runaway = count >= RUNAWAY_WAKES_PER_SECOND * seconds
        _set(self.running, name, is_runaway)
        if is_runaway:
            self._warn(name, round(count / seconds), now_ms)

    def _warn(self, name: str, rate: int, now_ms: int) -> None:
        recently_ms = now_ms - RUNAWAY_WARNING_SECONDS * 1000
        self._warned_ms = {n: at for n, at in self._warned_ms.items() if at > recently_ms}
        if name not in self._warned_ms:
            self._warned_ms[name] = now_ms
            logger.warning(
                "a subscription wakes without a pause; does its webhook write to what it follows?",
                subscription=name,
                wakes_per_second=rate,
            )

    def paused(self, name: str) -> None:
        """Everything is processed, or the subscription is gone: what comes next begins anew."""
        self.running.discard(name)
        self._wakes.pop(name, None)


def _set(names: set[str], name: str, is_in: bool) -> None:
    if is_in:
        names.add(name)
    else:
        names.discard(name)
