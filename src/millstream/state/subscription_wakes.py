"""Wakes: how subscriptions tell of work, who takes it up, and how far they came.

A wake is issued when streams have work, announced or delivered, held under a lease, acknowledged,
and ends. What subscriptions follow, and everything they have in common, is in subscriptions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import (
    AlreadyClaimed,
    InvalidAck,
    InvalidSubscriptionRequest,
    NoPendingWork,
    StreamError,
    WakeFenced,
)
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import START, Offset, Position
from millstream.protocol.patterns import text_of
from millstream.state.commands import (
    AckWake,
    AnnounceWake,
    Append,
    ClaimWake,
    ExpireLease,
    IssueWake,
    ReleaseWake,
    ReportDelivery,
)
from millstream.state.outcomes import Done, Outcome
from millstream.state.subscription import Subscription, not_found

if TYPE_CHECKING:
    from millstream.state.machine import StateMachine
    from millstream.state.subscriptions import Subscriptions


class Wakes:
    def __init__(self, machine: StateMachine, subscriptions: Subscriptions) -> None:
        self._machine = machine
        self._all = subscriptions

    def appliers(self) -> dict[type, Callable[[Any], Outcome]]:
        return {
            IssueWake: self._apply_issue,
            AnnounceWake: self._apply_announce,
            ReportDelivery: self._apply_report,
            ClaimWake: self._apply_claim,
            AckWake: self._apply_ack,
            ReleaseWake: self._apply_release,
            ExpireLease: self._apply_expire,
        }

    def _apply_issue(self, command: IssueWake) -> Outcome:
        subscription = self._all.by_id.get(command.subscription_id)
        if (
            subscription is None
            or subscription.wake_id is not None
            or not subscription.pending
            or command.generation != subscription.generation + 1
        ):
            return Done.NOTHING
        self._begin_wake(subscription, command)
        return Done.ACCEPTED

    def _begin_wake(self, subscription: Subscription, command: IssueWake | ClaimWake) -> None:
        subscription.begin_wake(command.wake_id, command.now_ms)
        if not subscription.is_webhook:
            self._announce(subscription, command.now_ms, command.jitter_permille)
        self._all.stir(subscription)

    def _apply_announce(self, command: AnnounceWake) -> Outcome:
        subscription = self._all.by_id.get(command.subscription_id)
        if (
            subscription is None
            or subscription.wake_id != command.wake_id
            or subscription.is_delivered
            or subscription.is_webhook
        ):
            return Done.NOTHING
        self._announce(subscription, command.now_ms, command.jitter_permille)
        self._all.stir(subscription)
        return Done.ACCEPTED

    def _announce(self, subscription: Subscription, now_ms: int, jitter_permille: int) -> None:
        """Writes the wake event: an append like any other, in the same step as the wake itself."""
        assert subscription.config.wake_stream is not None
        stream = self._all.live(subscription.config.wake_stream)
        if stream is not None:
            event = _wake_event(subscription, now_ms) + (b"," if stream.is_json else b"\n")
            append = Append(now_ms, stream.stream_id, event, b"", 1)
            if self._machine.apply_append(append) is Done.APPENDED:
                subscription.is_delivered = True
                subscription.retries = 0
                self._machine.outbox.grown.add(stream.stream_id)
                return
        subscription.postpone(now_ms, jitter_permille)

    def _apply_report(self, command: ReportDelivery) -> Outcome:
        subscription = self._all.by_id.get(command.subscription_id)
        if subscription is None or subscription.wake_id != command.wake_id:
            return Done.NOTHING
        if command.delivered:
            if command.done:
                self._accept_tails(subscription, command.tails)
                subscription.retries = 0
                subscription.end_wake()
            else:
                subscription.hold(command.now_ms)
        elif subscription.is_delivered:
            return Done.NOTHING  # the worker has called back meanwhile
        else:
            subscription.postpone(command.now_ms, command.jitter_permille)
        self._all.stir(subscription)
        return Done.ACCEPTED

    def _accept_tails(
        self, subscription: Subscription, tails: Iterable[tuple[StreamId, int, int]]
    ) -> None:
        for stream_id, ordinal, byte in tails:
            stream = self._machine.find_by_id(stream_id)
            link = None if stream is None else subscription.links.get(stream.path)
            if stream is not None and link is not None and not stream.deleted:
                tail = Position(ordinal, byte)
                self._all.move(subscription, stream.path, max(link.acked, tail))

    # Workers

    def _apply_claim(self, command: ClaimWake) -> Outcome:
        subscription = self._all.by_id.get(command.subscription_id)
        if subscription is None:
            return not_found()
        if subscription.is_webhook:
            return InvalidSubscriptionRequest("only pull-wake subscriptions can be claimed")
        if subscription.is_lease_over(command.now_ms):
            subscription.end_wake()
            self._all.stir(subscription)
        if subscription.holder is not None:
            return AlreadyClaimed(
                f"held by {subscription.holder}", subscription.holder, subscription.generation
            )
        if not subscription.pending:
            return NoPendingWork("every stream is processed to its tail")
        if subscription.wake_id is None:
            self._begin_wake(subscription, command)
        subscription.holder = command.worker
        subscription.hold(command.now_ms)
        self._all.stir(subscription)
        return Done.ACCEPTED

    def _apply_ack(self, command: AckWake) -> Outcome:
        subscription = self._held_by(command)
        if isinstance(subscription, StreamError):
            return subscription
        moves = self._check_acks(subscription, command)
        if isinstance(moves, StreamError):
            return moves
        for key, position in moves.items():
            self._all.move(subscription, key, position)
        subscription.hold(command.now_ms)
        if command.done:
            subscription.end_wake()
        self._all.stir(subscription)
        return Done.ACCEPTED

    def _held_by(self, command: AckWake | ReleaseWake) -> Subscription | StreamError:
        """Only the worker that holds this very wake may speak for it."""
        subscription = self._all.by_id.get(command.subscription_id)
        if subscription is None:
            return not_found()
        if (subscription.wake_id, subscription.generation) != (command.wake_id, command.generation):
            return WakeFenced("this wake is over; a later one may be in flight")
        if not subscription.is_webhook and subscription.holder is None:
            return WakeFenced("this wake is not claimed")
        if subscription.is_lease_over(command.now_ms):
            return WakeFenced("the lease ended before this arrived")
        return subscription

    def _check_acks(
        self, subscription: Subscription, command: AckWake
    ) -> dict[bytes, Position] | StreamError:
        """Where each stream's progress moves to; all of them may, or none does."""
        moves: dict[bytes, Position] = {}
        for key, ordinal, byte in command.acks:
            link = self._all.find_link(subscription, key)
            if link is None:
                return InvalidAck(f"{text_of(key)} is no stream of this subscription")
            position = self._resolve(key, Offset(ordinal, byte))
            if position is None:
                return InvalidAck(f"the offset is no position up to the tail of {text_of(key)}")
            if position < moves.get(key, link.acked):
                return InvalidAck(f"the offset is before what is acknowledged of {text_of(key)}")
            moves[key] = position
        return moves

    def _resolve(self, key: bytes, offset: Offset) -> Position | None:
        stream = self._all.live(key)
        if stream is None:
            return START if offset == (0, 0) else None
        log, (ordinal, byte) = stream.log, offset
        if ordinal is None and byte is None:
            return None
        if ordinal is not None and byte is not None:
            # Trimmed or published: it was a boundary when the worker read up to it.
            if ordinal <= log.first_ordinal and byte <= log.first_byte:
                return Position(ordinal, byte)
            if ordinal <= log.cold_ordinal and byte <= log.cold_byte:
                return None if stream.is_trimmed(offset) else Position(ordinal, byte)
        return stream.resolve_unpublished(offset)

    def _apply_release(self, command: ReleaseWake) -> Outcome:
        subscription = self._held_by(command)
        if isinstance(subscription, StreamError):
            return subscription
        subscription.end_wake()
        self._all.stir(subscription)
        return Done.ACCEPTED

    def _apply_expire(self, command: ExpireLease) -> Outcome:
        subscription = self._all.by_id.get(command.subscription_id)
        if (
            subscription is None
            or subscription.wake_id != command.wake_id
            or not subscription.is_lease_over(command.now_ms)
        ):
            return Done.NOTHING
        subscription.end_wake()
        self._all.stir(subscription)
        return Done.ACCEPTED


def _wake_event(subscription: Subscription, now_ms: int) -> bytes:
    """These bytes are rebuilt on replay: a change here needs a new command."""
    return msgspec.json.encode(
        {
            "type": "wake",
            "subscription_id": subscription.subscription_id,
            "stream": text_of(next(iter(subscription.pending))),
            "generation": subscription.generation,
            "ts": now_ms,
        }
    )
