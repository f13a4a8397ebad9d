"""Turns subscriptions into checkpoint blocks and back; they come after the streams they follow."""

from __future__ import annotations

import msgspec

from millstream.formats.checkpoint import KEYS, SUBSCRIPTION, KeysImage, SubscriptionImage
from millstream.state.subscription import Link, Subscription, SubscriptionConfig
from millstream.state.subscriptions import Keys, Subscriptions

SUBSCRIPTION_KINDS = frozenset((KEYS, SUBSCRIPTION))

SubscriptionBlock = tuple[int, KeysImage | SubscriptionImage]

_subscription_decoder = msgspec.msgpack.Decoder(SubscriptionImage)


def capture_subscriptions(subscriptions: Subscriptions) -> list[SubscriptionBlock]:
    """As they are now; later changes do not show."""
    blocks: list[SubscriptionBlock] = []
    if subscriptions.keys is not None:
        blocks.append((KEYS, KeysImage(*subscriptions.keys)))
    blocks += [(SUBSCRIPTION, _capture(each)) for each in subscriptions.by_id.values()]
    return blocks


def _capture(subscription: Subscription) -> SubscriptionImage:
    return SubscriptionImage(
        subscription.subscription_id,
        subscription.base_url,
        subscription.created_ms,
        *subscription.config,
        [
            (key, link.ordinal, link.byte, link.is_explicit, link.is_glob)
            for key, link in subscription.links.items()
        ],
        list(subscription.pending),
        subscription.generation,
        subscription.wake_id,
        subscription.is_delivered,
        subscription.holder,
        subscription.lease_deadline_ms,
        subscription.retries,
        subscription.next_attempt_ms,
    )


def restore_subscription_block(subscriptions: Subscriptions, kind: int, payload: bytes) -> None:
    """Raises ValueError (msgspec's included) when the block makes no sense."""
    if kind == KEYS:
        keys = msgspec.msgpack.decode(payload, type=KeysImage)
        subscriptions.keys = Keys(keys.signing_seed, keys.token_key)
    else:
        subscriptions.adopt(_restore(_subscription_decoder.decode(payload)))


def _restore(image: SubscriptionImage) -> Subscription:
    config = SubscriptionConfig(
        image.lease_ttl_ms,
        image.pattern,
        image.streams,
        image.webhook_url,
        image.wake_stream,
        image.description,
    )
    subscription = Subscription(image.subscription_id, config, image.base_url, image.created_ms)
    for key, ordinal, byte, is_explicit, is_glob in image.links:
        subscription.links[key] = Link(ordinal, byte, is_explicit=is_explicit, is_glob=is_glob)
    subscription.pending = dict.fromkeys(image.pending)
    if not subscription.pending.keys() <= subscription.links.keys():
        raise ValueError("a subscription has work on a stream that it does not follow")
    subscription.generation = image.generation
    subscription.wake_id = image.wake_id
    subscription.is_delivered = image.is_delivered
    subscription.holder = image.holder
    subscription.lease_deadline_ms = image.lease_deadline_ms
    subscription.retries = image.retries
    subscription.next_attempt_ms = image.next_attempt_ms
    return subscription
