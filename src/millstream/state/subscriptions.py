"""All subscriptions, and the only code that changes them.

Streams tell of their birth, growth and end; everything else arrives as a command. What somebody
outside has to look at afterwards is left in `stirred` and `grown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millstream.errors import (
    InvalidSubscriptionRequest,
    SubscriptionExists,
)
from millstream.protocol.offsets import encode_offset
from millstream.protocol.patterns import Pattern, text_of
from millstream.state.commands import (
    CreateSubscription,
    DeleteSubscription,
    InstallKeys,
    LinkStreams,
    UnlinkStream,
)
from millstream.state.outcomes import Done, Outcome
from millstream.state.pattern_index import PatternIndex, matching_keys
from millstream.state.stream import Stream
from millstream.state.subscription import START, Link, Subscription, SubscriptionConfig, not_found
from millstream.state.subscription_wakes import Wakes

if TYPE_CHECKING:
    from millstream.state.machine import StateMachine
    from millstream.state.preparation import FoundAtRest


class Keys(NamedTuple):
    """The server's secrets, made once."""

    signing_seed: bytes
    token_key: bytes


class LinkedStream(msgspec.Struct):
    """A followed stream as workers are told of it."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class Subscriptions:
    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.by_id: dict[str, Subscription] = {}
        self.keys: Keys | None = None
        self.stirred: dict[str, None] = {}  # subscriptions that changed since anybody looked
        self.changed: set[str] = set()  # since the last checkpoint; may be gone by now
        self.grown: set[int] = set()  # streams that got a wake event since anybody looked
        self.found_at_rest: dict[int, FoundAtRest] = {}  # by the command that was prepared with it
        self._wakes = Wakes(machine, self)
        self._patterns = PatternIndex()
        self._followers: dict[bytes, tuple[str, ...]] = {}  # key -> all that have a link to it

    def appliers(self) -> dict[type, Callable[[Any], Outcome]]:
        return {
            InstallKeys: self._apply_install_keys,
            CreateSubscription: self._apply_create,
            DeleteSubscription: self._apply_delete,
            LinkStreams: self._apply_link,
            UnlinkStream: self._apply_unlink,
            **self._wakes.appliers(),
        }

    # What is followed

    def _apply_install_keys(self, command: InstallKeys) -> Outcome:
        if self.keys is not None:
            return Done.EXISTED
        self.keys = Keys(command.signing_seed, command.token_key)
        return Done.CREATED

    def _apply_create(self, command: CreateSubscription) -> Outcome:
        config = SubscriptionConfig(
            command.lease_ttl_ms,
            command.pattern,
            command.streams,
            command.webhook_url,
            command.wake_stream,
            command.description,
        )
        existing = self.by_id.get(command.subscription_id)
        if existing is not None:
            if existing.config == config:
                return Done.EXISTED
            return SubscriptionExists("a subscription of this id has another configuration")
        if config.webhook_url is None and config.wake_stream is None:
            return InvalidSubscriptionRequest("a subscription needs a webhook or a wake_stream")
        subscription = Subscription(
            command.subscription_id, config, command.base_url, command.now_ms
        )
        self.adopt(subscription)
        self.note_change(subscription)
        if subscription.pattern is not None:
            found = self.found_at_rest.pop(id(command), None)
            for key in matching_keys(found or self._machine.names, subscription.pattern):
                if key != config.wake_stream:
                    self._link(subscription, key, self._tail_in(found, key)).is_glob = True
        for key in command.streams:
            self._link_explicitly(subscription, key)
        return Done.CREATED

    def pattern_load(self, pattern: Pattern) -> int:
        """The weight of all patterns that a new stream might meet, were this one among them."""
        return self._patterns.load_with(pattern)

    def adopt(self, subscription: Subscription) -> None:
        """From now on streams that its pattern or its links name find it."""
        subscription_id = subscription.subscription_id
        self.by_id[subscription_id] = subscription
        if subscription.pattern is not None:
            self._patterns.add(subscription.pattern, subscription_id)
        for key in subscription.links:
            self._attach(key, subscription_id)

    def _apply_delete(self, command: DeleteSubscription) -> Outcome:
        subscription = self.by_id.pop(command.subscription_id, None)
        if subscription is None:
            return Done.NOTHING
        if subscription.pattern is not None:
            self._patterns.remove(subscription.pattern, subscription.subscription_id)
        for key in subscription.links:
            self._detach(key, subscription.subscription_id)
        self.stir(subscription)
        return Done.DELETED

    def _apply_link(self, command: LinkStreams) -> Outcome:
        subscription = self.by_id.get(command.subscription_id)
        if subscription is None:
            return not_found()
        if subscription.config.wake_stream in command.streams:
            return InvalidSubscriptionRequest("a subscription cannot follow its own wake_stream")
        for key in command.streams:
            self._link_explicitly(subscription, key)
        return Done.ACCEPTED

    def _apply_unlink(self, command: UnlinkStream) -> Outcome:
        subscription = self.by_id.get(command.subscription_id)
        if subscription is None:
            return not_found()
        link = subscription.links.get(command.stream)
        if link is None or not link.is_explicit:
            return Done.NOTHING
        link.is_explicit = False
        self.note_change(subscription)
        if not link.is_glob:
            self._drop_link(subscription, command.stream)
            self._detach(command.stream, subscription.subscription_id)
        return Done.ACCEPTED

    def _link_explicitly(self, subscription: Subscription, key: bytes) -> None:
        self._link(subscription, key, self.tail(key)).is_explicit = True
        self.note_change(subscription)

    def _link(self, subscription: Subscription, key: bytes, acked: tuple[int, int]) -> Link:
        """The link to this stream, a new one from `acked` on if there was none."""
        link = subscription.links.get(key)
        if link is None:
            link = subscription.links[key] = Link(*acked, is_explicit=False, is_glob=False)
            self._attach(key, subscription.subscription_id)
            self.note_change(subscription)
        return link

    def _drop_link(self, subscription: Subscription, key: bytes) -> None:
        del subscription.links[key]
        self.note_change(subscription)
        self._no_longer_pending(subscription, key)

    def _attach(self, key: bytes, subscription_id: str) -> None:
        self._attach_all(key, (subscription_id,))

    def _attach_all(self, key: bytes, subscription_ids: Iterable[str]) -> None:
        self._followers[key] = tuple(sorted({*self._followers.get(key, ()), *subscription_ids}))
        self._tell_followers(key)

    def _detach(self, key: bytes, subscription_id: str) -> None:
        self._detach_all(key, {subscription_id})

    def _detach_all(self, key: bytes, subscription_ids: set[str]) -> None:
        left = tuple(other for other in self._followers[key] if other not in subscription_ids)
        if left:
            self._followers[key] = left
        else:
            del self._followers[key]
        self._tell_followers(key)

    def _tell_followers(self, key: bytes) -> None:
        """A stream that is not in memory hears of it when it comes back."""
        stream = self._machine.residents.by_path.get(key)
        if stream is not None and not stream.deleted:
            stream.subscribers = self._followers.get(key)

    def stream_returned(self, stream: Stream) -> None:
        """It was not in memory while its followers were."""
        if not stream.deleted:
            stream.subscribers = self._followers.get(stream.path)

    def live(self, key: bytes) -> Stream | None:
        stream = self._machine.find(key)
        return None if stream is None or stream.deleted else stream

    def tail(self, key: bytes) -> tuple[int, int]:
        """A stream that does not exist is as good as an empty one."""
        stream = self.live(key)
        return START if stream is None else (stream.log.tail_ordinal, stream.log.tail_byte)

    def _tail_in(self, found: FoundAtRest | None, key: bytes) -> tuple[int, int]:
        if found is None or self._machine.residents.find_in_memory(key) is not None:
            return self.tail(key)
        return found.tail(key)

    # What streams tell

    def stream_created(self, stream: Stream) -> None:
        """Followers are linked before its first message: all it holds is new to them."""
        if not self.by_id:
            return
        key, first = stream.path, (stream.log.first_ordinal, stream.log.first_byte)
        matching = [self.by_id[subscription_id] for subscription_id in self._patterns.match(key)]
        linked = [s for s in matching if key != s.config.wake_stream]
        for subscription in linked:
            if key not in subscription.links:
                subscription.links[key] = Link(*first, is_explicit=False, is_glob=True)
            subscription.links[key].is_glob = True
            self.note_change(subscription)
        if linked:
            self._attach_all(key, [subscription.subscription_id for subscription in linked])
        stream.subscribers = self._followers.get(key)
        for subscription_id in stream.subscribers or ():
            subscription = self.by_id[subscription_id]
            if self.tail(key) > subscription.links[key].acked:
                self._has_work(subscription, key)

    def stream_grew(self, stream: Stream) -> None:
        assert stream.subscribers is not None
        for subscription_id in stream.subscribers:
            self._has_work(self.by_id[subscription_id], stream.path)

    def stream_ended(self, stream: Stream) -> None:
        """Patterns will find a new stream of this name; explicit links wait for it."""
        assert stream.subscribers is not None
        key, left = stream.path, set[str]()
        for subscription_id in stream.subscribers:
            subscription = self.by_id[subscription_id]
            link = subscription.links[key]
            if link.is_explicit:
                link.is_glob = False
                link.acked = START
                self.note_change(subscription)
                self._no_longer_pending(subscription, key)
            else:
                self._drop_link(subscription, key)
                left.add(subscription_id)
        self._detach_all(key, left)
        stream.subscribers = None

    def _has_work(self, subscription: Subscription, key: bytes) -> None:
        if key not in subscription.pending:
            subscription.pending[key] = None
            self.note_change(subscription)
            if subscription.wake_id is None:
                self.stir(subscription)

    def _no_longer_pending(self, subscription: Subscription, key: bytes) -> None:
        subscription.pending.pop(key, None)
        self.note_change(subscription)
        if not subscription.pending and subscription.lease_deadline_ms is None:
            subscription.end_wake()  # nobody holds it, and there is nothing left to do
            self.stir(subscription)

    # What others have to hear of

    def note_change(self, subscription: Subscription) -> None:
        """The next checkpoint has to tell of it."""
        self.changed.add(subscription.subscription_id)

    def stir(self, subscription: Subscription) -> None:
        self.note_change(subscription)
        self.stirred[subscription.subscription_id] = None

    def move(self, subscription: Subscription, key: bytes, position: tuple[int, int]) -> None:
        subscription.links[key].acked = position
        self.note_change(subscription)
        if position >= self.tail(key):
            subscription.pending.pop(key, None)

    # What is told of a subscription

    def linked_streams(self, subscription: Subscription, limit: int) -> list[LinkedStream]:
        """Streams with work come first, then the others, `limit` in all."""
        idle = (key for key in subscription.links if key not in subscription.pending)
        return [
            self._describe(subscription, key)
            for key in islice(chain(subscription.pending, idle), limit)
        ]

    def pending_tails(
        self, subscription: Subscription, limit: int
    ) -> tuple[tuple[int, int, int], ...]:
        """(stream_id, ordinal, byte) of the tails that `linked_streams` tells of as pending."""
        streams = [self._machine.find(key) for key in islice(subscription.pending, limit)]
        return tuple((s.stream_id, s.log.tail_ordinal, s.log.tail_byte) for s in streams if s)

    def _describe(self, subscription: Subscription, key: bytes) -> LinkedStream:
        link = subscription.links[key]
        return LinkedStream(
            text_of(key),
            "explicit" if link.is_explicit else "glob",
            encode_offset(*link.acked),
            encode_offset(*self.tail(key)),
            key in subscription.pending,
        )
