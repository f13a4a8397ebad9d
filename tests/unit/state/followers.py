"""A store with subscriptions, spoken to in few words, and all that is known of them as values."""

from __future__ import annotations

from typing import Any

from millstream.state.commands import (
    AckWake,
    AnnounceWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    ExpireLease,
    IssueWake,
    LinkStreams,
    ReleaseWake,
    ReportDelivery,
    UnlinkStream,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.pattern_index import PatternIndex
from millstream.state.subscription import Subscription
from tests.unit.state.store import JSON, Store

LEASE_MS = 5000
HOOK = "https://hooks.example/in"
WAKE_STREAM = b"wake/pool"


class Followers(Store):
    """Subscriptions go by one-letter ids; wake ids are `w` and a running number."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    def __call__(self, subscription_id: str) -> Subscription:
        return self.machine.subscriptions.by_id[subscription_id]

    def webhook(
        self, subscription_id: str, pattern: bytes | None = None, *streams: bytes, **fields: Any
    ) -> Outcome:
        fields = {"webhook_url": HOOK, **fields}
        return self.subscribe(subscription_id, pattern, *streams, **fields)

    def pull(
        self, subscription_id: str, pattern: bytes | None = None, *streams: bytes, **fields: Any
    ) -> Outcome:
        fields = {"wake_stream": WAKE_STREAM, **fields}
        return self.subscribe(subscription_id, pattern, *streams, **fields)

    def subscribe(
        self, subscription_id: str, pattern: bytes | None, *streams: bytes, **fields: Any
    ) -> Outcome:
        return self.machine.apply(
            CreateSubscription(
                self.now_ms, subscription_id, "http://here", LEASE_MS, pattern, streams, **fields
            )
        )

    def unsubscribe(self, subscription_id: str) -> Outcome:
        return self.machine.apply(DeleteSubscription(self.now_ms, subscription_id))

    def link(self, subscription_id: str, *streams: bytes) -> Outcome:
        return self.machine.apply(LinkStreams(self.now_ms, subscription_id, streams))

    def unlink(self, subscription_id: str, stream: bytes) -> Outcome:
        return self.machine.apply(UnlinkStream(self.now_ms, subscription_id, stream))

    def new_wake_id(self) -> str:
        self.wakes += 1
        return f"w{self.wakes}"

    def issue(self, subscription_id: str) -> Outcome:
        turn = self(subscription_id).generation + 1
        return self.machine.apply(IssueWake(self.now_ms, subscription_id, turn, self.new_wake_id()))

    def announce(self, subscription_id: str) -> Outcome:
        wake_id = self(subscription_id).wake_id or ""
        return self.machine.apply(AnnounceWake(self.now_ms, subscription_id, wake_id))

    def report(self, subscription_id: str, delivered: bool, **fields: Any) -> Outcome:
        wake_id = fields.pop("wake_id", self(subscription_id).wake_id or "")
        return self.machine.apply(
            ReportDelivery(self.now_ms, subscription_id, wake_id, delivered, **fields)
        )

    def done(self, subscription_id: str) -> Outcome:
        """The webhook was accepted with `{"done": true}`, as of now."""
        tails = self.machine.subscriptions.pending_tails(self(subscription_id), 1000)
        return self.report(subscription_id, True, done=True, tails=tails)

    def claim(self, subscription_id: str, worker: str = "me") -> Outcome:
        return self.machine.apply(
            ClaimWake(self.now_ms, subscription_id, worker, self.new_wake_id())
        )

    def ack(
        self,
        subscription_id: str,
        *acks: tuple[bytes, int | None, int | None],
        done: bool = False,
        wake: tuple[str, int] | None = None,
    ) -> Outcome:
        wake_id, generation = wake or self.wake_of(subscription_id)
        return self.machine.apply(
            AckWake(self.now_ms, subscription_id, wake_id, generation, acks, done)
        )

    def release(self, subscription_id: str, wake: tuple[str, int] | None = None) -> Outcome:
        wake_id, generation = wake or self.wake_of(subscription_id)
        return self.machine.apply(ReleaseWake(self.now_ms, subscription_id, wake_id, generation))

    def expire_lease(self, subscription_id: str) -> Outcome:
        wake_id = self(subscription_id).wake_id or ""
        return self.machine.apply(ExpireLease(self.now_ms, subscription_id, wake_id))

    def wake_of(self, subscription_id: str) -> tuple[str, int]:
        subscription = self(subscription_id)
        return subscription.wake_id or "", subscription.generation

    def add_wake_stream(self) -> None:
        self.create(WAKE_STREAM, content_type=JSON)

    def acked(self, subscription_id: str, stream: bytes) -> tuple[int, int]:
        link = self.machine.subscriptions.find_link(self(subscription_id), stream)
        assert link is not None
        return link.acked

    def followed(self, subscription_id: str) -> set[bytes]:
        """All it follows, by name or by pattern."""
        subscription, find = self(subscription_id), self.machine.subscriptions.find_link
        named = {key for key, link in subscription.links.items() if link.is_explicit}
        keys = {*self.machine.names.keys_from(b"")}
        return named | {key for key in keys if find(subscription, key) is not None}

    def subscribers(self, stream: bytes) -> tuple[str, ...]:
        found = self.machine.find(stream)
        assert found is not None
        return self.machine.subscriptions.subscribers(found)

    def pending(self, subscription_id: str) -> list[bytes]:
        return list(self(subscription_id).pending)


def describe_subscriptions(machine: StateMachine) -> dict[str, Any]:
    """Everything replay has to reach again; a new field of Subscription is in here at once."""
    subscriptions = machine.subscriptions
    return {
        "keys": subscriptions.keys,
        **{
            subscription_id: {
                **{slot: getattr(each, slot) for slot in Subscription.__slots__},
                "links": {key: (link.acked, link.is_explicit) for key, link in each.links.items()},
                "pending": list(each.pending),
            }
            for subscription_id, each in subscriptions.by_id.items()
        },
    }


def check_bookkeeping(machine: StateMachine) -> None:
    """What is kept twice for speed says the same twice."""
    by_id = machine.subscriptions.by_id
    for subscription in by_id.values():
        for key, link in subscription.links.items():
            stream = machine.residents.by_path.get(key)
            assert link.is_explicit or key in subscription.pending
            if stream is None or stream.deleted:
                assert link.acked == (0, 0)
                assert key not in subscription.pending
            else:
                tail = stream.log.tail_ordinal, stream.log.tail_byte
                assert (key in subscription.pending) == (tail > link.acked), key
        assert subscription.pending.keys() <= subscription.links.keys()
        assert subscription.wake_id is not None or subscription.lease_deadline_ms is None
    for stream in machine.by_id.values():
        if not stream.deleted:
            following = (name for name in by_id if follows(machine, by_id[name], stream.path))
            assert machine.subscriptions.subscribers(stream) == tuple(sorted(following))


def follows(machine: StateMachine, subscription: Subscription, key: bytes) -> bool:
    link = subscription.links.get(key)
    if link is not None and link.is_explicit:
        return True
    if subscription.pattern is None or key == subscription.config.wake_stream:
        return False
    if key in machine.names.hidden:
        return False
    single = PatternIndex()
    single.add(subscription.pattern, "it")
    return single.match(key) == {"it"}
