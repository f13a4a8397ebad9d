"""One subscription: what it follows, how far it got, and the wake it has in flight.

A wake goes through: issued (`wake_id` is set) -> delivered (the webhook was accepted, or the
wake event written) -> held (`lease_deadline_ms` is set) -> over. A generation is one wake.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from millstream.errors import StreamError, SubscriptionNotFound
from millstream.limits import RETRY_MS_MAX, RETRY_MS_MIN, STORED_INTEGER_MAX
from millstream.protocol.offsets import Position
from millstream.protocol.patterns import Pattern, parse_pattern


class SubscriptionConfig(NamedTuple):
    """What was asked for; two requests with equal ones are the same subscription."""

    lease_ttl_ms: int
    pattern: bytes | None
    streams: tuple[bytes, ...]
    webhook_url: str | None
    wake_stream: bytes | None
    description: str | None


class Link:
    """A stream that is followed. Everything up to `acked` is processed."""

    __slots__ = ("byte", "is_explicit", "ordinal")

    def __init__(self, ordinal: int, byte: int, *, is_explicit: bool) -> None:
        self.ordinal = ordinal
        self.byte = byte
        self.is_explicit = is_explicit  # else only the pattern names it

    @property
    def acked(self) -> Position:
        return Position(self.ordinal, self.byte)

    @acked.setter
    def acked(self, position: Position) -> None:
        self.ordinal, self.byte = position


class Step(Enum):
    """What a subscription needs next from outside."""

    ISSUE = auto()  # a wake
    DELIVER = auto()  # the webhook
    ANNOUNCE = auto()  # the wake event, which could not be written before
    EXPIRE = auto()  # the end of the lease


class Subscription:
    """Mutable, and only ever changed by state.subscriptions."""

    __slots__ = (
        "base_url",
        "config",
        "created_ms",
        "generation",
        "holder",
        "is_delivered",
        "lease_deadline_ms",
        "links",
        "next_attempt_ms",
        "pattern",
        "pending",
        "retries",
        "subscription_id",
        "wake_id",
    )

    def __init__(
        self, subscription_id: str, config: SubscriptionConfig, base_url: str, now_ms: int
    ) -> None:
        self.subscription_id = subscription_id
        self.config = config
        self.base_url = base_url
        self.created_ms = now_ms
        pattern = None if config.pattern is None else parse_pattern(config.pattern)
        self.pattern: Pattern | None = pattern
        self.links: dict[bytes, Link] = {}  # by the stream's key; not all that a pattern names
        self.pending: dict[bytes, None] = {}  # keys of links with work, oldest first
        self.generation = 0
        self.wake_id: str | None = None
        self.is_delivered = False
        self.holder: str | None = None
        self.lease_deadline_ms: int | None = None
        self.retries = 0  # failed attempts since the last that went well
        self.next_attempt_ms = 0

    @property
    def is_webhook(self) -> bool:
        return self.config.webhook_url is not None

    @property
    def status(self) -> str:
        return "failed" if self.retries else "active"

    def next_step(self) -> tuple[Step, int] | None:
        """What is due and when, in milliseconds of the wall clock; None: nothing to wait for."""
        if self.wake_id is None:
            return (Step.ISSUE, 0) if self.pending else None
        if self.lease_deadline_ms is not None:
            return Step.EXPIRE, self.lease_deadline_ms
        if self.is_delivered:
            return None  # a wake event waits for a worker
        return (Step.DELIVER if self.is_webhook else Step.ANNOUNCE), self.next_attempt_ms

    def begin_wake(self, wake_id: str, now_ms: int) -> None:
        self.generation += 1
        self.wake_id = wake_id
        self.is_delivered = False
        self.next_attempt_ms = now_ms

    def hold(self, now_ms: int) -> None:
        """A worker has the wake and shows it."""
        self.is_delivered = True
        self.retries = 0
        self.lease_deadline_ms = min(now_ms + self.config.lease_ttl_ms, STORED_INTEGER_MAX)

    def postpone(self, now_ms: int, jitter_permille: int) -> None:
        """An attempt failed; the next one comes later than the one before it did."""
        self.retries += 1
        self.next_attempt_ms = now_ms + retry_delay_ms(self.retries, jitter_permille)

    def end_wake(self) -> None:
        self.wake_id = None
        self.is_delivered = False
        self.holder = None
        self.lease_deadline_ms = None

    def is_lease_over(self, now_ms: int) -> bool:
        return self.lease_deadline_ms is not None and now_ms >= self.lease_deadline_ms


def retry_delay_ms(retries: int, jitter_permille: int) -> int:
    doublings = min(retries - 1, RETRY_MS_MAX.bit_length())
    delay: int = min(RETRY_MS_MIN << doublings, RETRY_MS_MAX)
    return delay + delay * min(max(jitter_permille, -1000), 1000) // 1000


def not_found() -> StreamError:
    return SubscriptionNotFound("subscription does not exist")
