"""Turns subscriptions into what is kept of them, and back."""

from __future__ import annotations

import msgspec

from millstream.formats.images import KeysImage, SubscriptionImage
from millstream.state.subscription import Link, Subscription, SubscriptionConfig
from millstream.state.subscriptions import Keys, Subscriptions

_encode = msgspec.msgpack.Encoder().encode
_keys_decoder = msgspec.msgpack.Decoder(KeysImage)
_subscription_decoder = msgspec.msgpack.Decoder(SubscriptionImage)


def encode_keys(keys: Keys) -> bytes:
    return _encode(KeysImage(*keys))


def decode_keys(encoded: bytes) -> Keys:
    image = _keys_decoder.decode(encoded)
    return Keys(image.signing_seed, image.token_key)


def encode_subscription(subscription: Subscription) -> bytes:
    return _encode(_capture(subscription))


def adopt_subscription(subscriptions: Subscriptions, encoded: bytes) -> None:
    """Raises ValueError (msgspec's included) when the bytes make no sense."""
    subscriptions.adopt(_restore(_subscription_decoder.decode(encoded)))


def _capture(subscription: Subscription) -> SubscriptionImage:
    return SubscriptionImage(
        subscription.subscription_id,
        subscription.base_url,
        subscription.created_ms,
        *subscription.config,
        [
            (key, link.ordinal, link.byte, link.is_explicit, not link.is_explicit)
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
    subscription.pending = dict.fromkeys(image.pending)
    for key, ordinal, byte, is_explicit, _ in image.links:
        if is_explicit or key in subscription.pending:  # others were written down once
            subscription.links[key] = Link(ordinal, byte, is_explicit=is_explicit)
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
