"""All subscriptions, and the only code that changes them.

Streams tell of their birth, growth and end; everything else arrives as a command. What code
outside has to look at afterwards is left in the machine's outbox.

A stream that only a pattern names has a link while it holds something unprocessed, and only then:
without one it is processed to its tail. So a subscription over a million streams costs nothing when
it begins or ends. Every stream keeps a list of its subscribers, and makes it anew when patterns
have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millstream.errors import (
    InvalidSubscriptionRequest,
    SubscriptionExists,
)
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import START, Position, encode_offset
from millstream.protocol.patterns import Pattern, text_of
from millstream.state.commands import (
    CreateSubscription,
    DeleteSubscription,
    InstallKeys,
    LinkStreams,
    UnlinkStream,
)
from millstream.state.outcomes import Done, Outcome
from millstream.state.pattern_index import PatternIndex, examined_keys
from millstream.state.stream import Stream
from millstream.state.subscription import Link, Subscription, SubscriptionConfig, not_found
from millstream.state.subscription_wakes import Wakes

if TYPE_CHECKING:
    from millstream.state.machine import StateMachine


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
        self.changed: set[str] = set()  # since the last checkpoint; may be gone by now
        self._wakes = Wakes(machine, self)
        self._patterns = PatternIndex()
        self.version = 0  # of all patterns together
        self._explicit: dict[bytes, set[str]] = {}  # key -> all that name it themselves

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
            self.version += 1
        for key, link in subscription.links.items():
            if link.is_explicit:
                self._attach(key, subscription_id)

    def _apply_delete(self, command: DeleteSubscription) -> Outcome:
        subscription = self.by_id.pop(command.subscription_id, None)
        if subscription is None:
            return Done.NOTHING
        if subscription.pattern is not None:
            self._patterns.remove(subscription.pattern, subscription.subscription_id)
            self.version += 1
        for key, link in subscription.links.items():
            if link.is_explicit:
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
        self._detach(command.stream, subscription.subscription_id)
        if command.stream not in subscription.pending:
            del subscription.links[command.stream]
        elif not self._is_matched(subscription, command.stream):
            self._drop_link(subscription, command.stream)
        return Done.ACCEPTED

    def _link_explicitly(self, subscription: Subscription, key: bytes) -> None:
        link = subscription.links.get(key)
        if link is None:
            link = subscription.links[key] = Link(*self.tail(key), is_explicit=True)
        link.is_explicit = True
        self._attach(key, subscription.subscription_id)
        self.note_change(subscription)

    def _drop_link(self, subscription: Subscription, key: bytes) -> None:
        del subscription.links[key]
        self._no_longer_pending(subscription, key)

    def _attach(self, key: bytes, subscription_id: str) -> None:
        self._explicit.setdefault(key, set()).add(subscription_id)
        self._forget_subscribers(key)

    def _detach(self, key: bytes, subscription_id: str) -> None:
        self._explicit[key].discard(subscription_id)
        if not self._explicit[key]:
            del self._explicit[key]
        self._forget_subscribers(key)

    def _forget_subscribers(self, key: bytes) -> None:
        stream = self._machine.residents.by_path.get(key)
        if stream is not None:
            stream.subscribers_as_of = -1

    def _is_matched(self, subscription: Subscription, key: bytes) -> bool:
        """Whether its pattern alone makes it follow this stream."""
        if subscription.pattern is None or key == subscription.config.wake_stream:
            return False
        return subscription.subscription_id in self._matching(key)

    def _matching(self, key: bytes) -> Collection[str]:
        """A pattern means the streams of clients; one of the server's own has to be named."""
        return () if key in self._machine.names.hidden else self._patterns.match(key)

    def subscribers(self, stream: Stream) -> tuple[str, ...]:
        """Subscriptions that follow it, by its name or by a pattern."""
        if stream.subscribers_as_of != self.version:
            key = stream.path
            matching = self._matching(key)
            matched = {s for s in matching if self.by_id[s].config.wake_stream != key}
            stream.subscribers = tuple(sorted(matched | self._explicit.get(key, set())))
            stream.subscribers_as_of = self.version
        return stream.subscribers

    def find_link(self, subscription: Subscription, key: bytes) -> Link | None:
        """How far the stream is processed; None: the subscription does not follow it."""
        link = subscription.links.get(key)
        if link is None and self.live(key) is not None and self._is_matched(subscription, key):
            return Link(*self.tail(key), is_explicit=False)
        return link

    def live(self, key: bytes) -> Stream | None:
        stream = self._machine.find(key)
        return None if stream is None or stream.deleted else stream

    def tail(self, key: bytes) -> Position:
        """A stream that does not exist is as good as an empty one."""
        stream = self.live(key)
        return START if stream is None else stream.log.tail

    # What streams tell

    def stream_created(self, stream: Stream) -> None:
        """All it holds from its birth on is new to those who follow it."""
        first, tail = stream.log.first, stream.log.tail
        for subscription_id in self.subscribers(stream):
            subscription = self.by_id[subscription_id]
            link = subscription.links.get(stream.path)
            if tail > (first if link is None else link.acked):
                self._has_work(subscription, stream.path, first)

    def stream_grows(self, stream: Stream) -> None:
        """Called before it does: who has no link is done with what is there now."""
        for subscription_id in self.subscribers(stream):
            subscription = self.by_id[subscription_id]
            if stream.path not in subscription.pending:
                self._has_work(subscription, stream.path, stream.log.tail)

    def stream_ended(self, stream: Stream) -> None:
        """Patterns will find a new stream of this name; explicit links wait for it."""
        key = stream.path
        for subscription_id in self.subscribers(stream):
            subscription = self.by_id[subscription_id]
            link = subscription.links.get(key)
            if link is None:
                continue
            if link.is_explicit:
                link.acked = START
                self._no_longer_pending(subscription, key)
            else:
                self._drop_link(subscription, key)

    def _has_work(self, subscription: Subscription, key: bytes, done: Position) -> None:
        """Who has no link has processed everything up to `done`."""
        if key not in subscription.pending:
            if key not in subscription.links:
                subscription.links[key] = Link(*done, is_explicit=False)
            subscription.pending[key] = None
            self.note_change(subscription)
            if subscription.wake_id is None:
                self.stir(subscription)

    def _no_longer_pending(self, subscription: Subscription, key: bytes) -> None:
        subscription.pending.pop(key, None)
        self.note_change(subscription)
        if not subscription.pending and subscription.lease_deadline_ms is None:
            subscription.end_wake()  # no worker holds it, and there is nothing left to do
            self.stir(subscription)

    # What others have to hear of

    def note_change(self, subscription: Subscription) -> None:
        """The next checkpoint has to tell of it."""
        self.changed.add(subscription.subscription_id)

    def stir(self, subscription: Subscription) -> None:
        self.note_change(subscription)
        self._machine.outbox.stirred[subscription.subscription_id] = None

    def move(self, subscription: Subscription, key: bytes, position: Position) -> None:
        link = subscription.links.get(key)
        if link is None:
            return  # it is processed to its tail, and further than that no worker gets
        link.acked = position
        self.note_change(subscription)
        if position >= self.tail(key):
            subscription.pending.pop(key, None)
            if not link.is_explicit:
                del subscription.links[key]

    # What is told of a subscription

    def linked_streams(self, subscription: Subscription, limit: int) -> list[LinkedStream]:
        """Streams with work come first, then others that it names itself, `limit` in all."""
        return [
            self._describe(subscription, key)
            for key in islice(self._linked_keys(subscription), limit)
        ]

    @staticmethod
    def _linked_keys(subscription: Subscription) -> Iterator[bytes]:
        yield from subscription.pending
        yield from (key for key in subscription.links if key not in subscription.pending)

    def followed_streams(
        self, subscription: Subscription, limit: int, names_max: int
    ) -> tuple[list[LinkedStream], bool]:
        """The same, then those that only the pattern names; and whether there may be more of them.

        `names_max` names are looked at to find them.
        """
        keys = self._linked_keys(subscription)
        found = [self._describe(subscription, key) for key in islice(keys, limit)]
        if subscription.pattern is None or len(found) == limit:
            return found, next(keys, None) is not None
        examined = examined_keys(self._machine.names, subscription.pattern)
        for key, is_match in islice(examined, names_max):
            if len(found) == limit:
                return found, True
            if (
                is_match
                and key not in subscription.links
                and key != subscription.config.wake_stream
            ):
                found.append(self._describe(subscription, key))
        return found, next(examined, None) is not None

    def pending_tails(
        self, subscription: Subscription, limit: int
    ) -> tuple[tuple[StreamId, int, int], ...]:
        """(stream_id, ordinal, byte) of the tails that `linked_streams` tells of as pending."""
        streams = [self._machine.find(key) for key in islice(subscription.pending, limit)]
        return tuple((s.stream_id, s.log.tail_ordinal, s.log.tail_byte) for s in streams if s)

    def _describe(self, subscription: Subscription, key: bytes) -> LinkedStream:
        stream = self._machine.look_up(key)
        is_there = stream is not None and not stream.deleted
        tail = stream.log.tail if stream and is_there else START
        link = subscription.links.get(key)
        return LinkedStream(
            text_of(key),
            "explicit" if link is not None and link.is_explicit else "glob",
            encode_offset(*(tail if link is None else link.acked)),
            encode_offset(*tail),
            key in subscription.pending,
        )
