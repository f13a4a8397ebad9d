"""Subscriptions: create, show, delete, and which streams they follow. Routes below `__ds/`.

What workers do with a wake (callback, claim, ack, release) is next door in wakes.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from millstream.access.gate import Grant, refusal
from millstream.access.scopes import Scope
from millstream.api.control import parse_body, respond_json, stream_key_of
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.own_urls import OwnUrls
from millstream.api.paths import CONTROL_ROOT, normal_pattern
from millstream.api.reads import Reads
from millstream.api.system_streams import refuse_system
from millstream.api.wakes import WakeRoutes
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import (
    InvalidRequest,
    InvalidSubscriptionRequest,
    StreamError,
    TooManyPatterns,
    WebhookUrlRejected,
)
from millstream.http.message import Request
from millstream.limits import (
    DESCRIPTION_BYTES_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LISTED_NAMES_MAX,
    LISTED_STREAMS_MAX,
    NAMED_STREAMS_MAX,
    PATTERN_SEGMENTS_MAX,
    PATTERN_WEIGHT_MAX,
    SUBSCRIPTION_ID_BYTES_MAX,
    SUBSCRIPTION_LINKS_MAX,
)
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.patterns import Wildcard, parse_pattern, path_of
from millstream.protocol.wake_tokens import KEY_BYTES
from millstream.protocol.webhook_signatures import SEED_BYTES, signer_of
from millstream.protocol.webhook_urls import AllowedReceivers, parse_webhook_url
from millstream.state.commands import (
    CreateSubscription,
    DeleteSubscription,
    InstallKeys,
    LinkStreams,
    UnlinkStream,
)
from millstream.state.outcomes import Done, Outcome
from millstream.state.subscription import Subscription, SubscriptionConfig, not_found

_JWKS = b"content-type: application/jwk-set+json\r\ncache-control: public, max-age=300\r\n"
_CREATE_STATUS = {Done.CREATED: 201, Done.EXISTED: 200}


TOKEN_ACTIONS = (b"callback", b"ack", b"release")  # their token says who they are


class WebhookBody(msgspec.Struct):
    url: str


class SubscriptionBody(msgspec.Struct):
    type: str
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookBody | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = 30_000
    description: str | None = None


class StreamsBody(msgspec.Struct):
    streams: list[str]


def subscription_id_of(raw_id: bytes) -> str:
    """As it stands in a URL. Raises InvalidSubscriptionRequest."""
    try:
        subscription_id = unquote_to_bytes(raw_id).decode()
    except UnicodeDecodeError:
        raise InvalidSubscriptionRequest("a subscription's id must be UTF-8") from None
    size = len(subscription_id.encode())
    if not 0 < size <= SUBSCRIPTION_ID_BYTES_MAX or not subscription_id.isprintable():
        raise InvalidSubscriptionRequest(
            f"a subscription's id must be printable, 1 to {SUBSCRIPTION_ID_BYTES_MAX} bytes"
        )
    return subscription_id


class SubscriptionRoutes:
    """Everything below `/v1/stream/__ds`."""

    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        clock: Clock,
        own_urls: OwnUrls,
        allowed: AllowedReceivers,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._own_urls = own_urls
        self._allowed = allowed
        self.wakes = WakeRoutes(engine, reads, clock)

    def check_covered(self, request: Request, subscription_id: str) -> None:
        """What a key does not cover is not there for it: whether it exists does not show."""
        grant: Grant | None = request.grant
        if grant is None or grant.allows_pattern(Scope.SUBSCRIBE, (Wildcard.ANY,)):
            return
        subscription = self._engine.machine.subscriptions.by_id.get(subscription_id)
        if subscription is None or not _is_covered(grant, subscription.config):
            raise not_found()

    def describe(self, request: Request, subscription_id: str) -> None:
        subscription = self._engine.machine.subscriptions.by_id.get(subscription_id)
        if subscription is None:
            raise not_found()
        respond_json(request, 200, self._describe(subscription))

    def delete(self, request: Request, subscription_id: str) -> None:
        command = DeleteSubscription(self._clock.now_ms(), subscription_id)
        self._engine.submit(command, _respond_empty, request)

    # Keys

    def respond_jwks(self, request: Request) -> None:
        self._with_keys(request, self._respond_jwks)

    def _with_keys(self, request: Request, respond: Callable[[Request], None]) -> None:
        """Calls `respond` once the server has its keys; the first who asks makes them."""
        if self._engine.machine.subscriptions.keys is not None:
            respond(request)
            return

        def installed(context: Request, outcome: Outcome) -> None:
            if isinstance(outcome, StreamError):
                respond_error(request, outcome)
            else:
                respond(request)

        self._engine.submit(self._new_keys(), installed, request)

    def _new_keys(self) -> InstallKeys:
        seed, token_key = secrets.token_bytes(SEED_BYTES), secrets.token_bytes(KEY_BYTES)
        return InstallKeys(self._clock.now_ms(), seed, token_key)

    def _signing_seed(self) -> bytes:
        keys = self._engine.machine.subscriptions.keys
        assert keys is not None
        return keys.signing_seed

    def _respond_jwks(self, request: Request) -> None:
        body = msgspec.json.encode({"keys": [signer_of(self._signing_seed()).jwk()]})
        request.respond(200, _JWKS, body)

    # Create and show

    def create(self, request: Request, subscription_id: str) -> None:
        command = _create_command(
            parse_body(request, SubscriptionBody),
            subscription_id,
            self._base_url(request),
            self._clock.now_ms(),
        )
        if command.webhook_url is not None:
            self._check_webhook(command.webhook_url, command.base_url)
        grant: Grant | None = request.grant
        if grant is not None:
            if not _is_covered(grant, command):
                raise refusal(Scope.SUBSCRIBE)
            if command.wake_stream is not None:  # the server will append to it
                grant.require(Scope.APPEND, command.wake_stream)
        if command.pattern is not None:
            self._check_pattern(command.pattern, subscription_id)
        if self._engine.machine.subscriptions.keys is None:
            self._engine.submit_and_forget(self._new_keys())
        self._engine.submit(command, self._created, (request, subscription_id))

    def _check_pattern(self, text: bytes, subscription_id: str) -> None:
        """Every new stream is matched against all patterns: that must never take long."""
        pattern, subscriptions = parse_pattern(text), self._engine.machine.subscriptions
        if len(pattern) > PATTERN_SEGMENTS_MAX:
            raise InvalidSubscriptionRequest(
                f"pattern has {len(pattern)} segments; at most {PATTERN_SEGMENTS_MAX} are allowed"
            )
        if subscription_id in subscriptions.by_id:
            return  # it is in the sum already
        load = subscriptions.pattern_load(pattern)
        if load > PATTERN_WEIGHT_MAX:
            raise TooManyPatterns(
                f"one new stream could meet patterns of weight {load} in all; at most "
                f"{PATTERN_WEIGHT_MAX} are allowed. Let the pattern begin with more segments "
                "that are no wildcards, or delete subscriptions whose patterns overlap with it"
            )

    def _base_url(self, request: Request) -> str:
        """Workers will be sent there."""
        root = self._own_urls.root(request)
        if root is None:
            raise InvalidSubscriptionRequest("callback URLs are built on Host; send a valid one")
        return root

    def _check_webhook(self, url: str, base_url: str) -> None:
        """Raises WebhookUrlRejected."""
        target = parse_webhook_url(url, self._allowed)
        if self._own_urls.leads_here(target, base_url):
            raise WebhookUrlRejected(
                "webhook.url leads back to this server: an append that wakes would be answered by "
                "another append, for ever. Name a receiver of your own"
            )

    def _created(self, waiting: tuple[Request, str], outcome: Outcome) -> None:
        request, subscription_id = waiting
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
            return
        subscription = self._engine.machine.subscriptions.by_id[subscription_id]
        respond_json(request, _CREATE_STATUS[outcome], self._describe(subscription))

    def _describe(self, subscription: Subscription) -> dict[str, Any]:
        config = subscription.config
        streams, has_more = self._engine.machine.subscriptions.followed_streams(
            subscription, LISTED_STREAMS_MAX, LISTED_NAMES_MAX
        )
        described: dict[str, Any] = {
            "id": subscription.subscription_id,
            "subscription_id": subscription.subscription_id,
            "type": "webhook" if subscription.is_webhook else "pull-wake",
            "pattern": None if config.pattern is None else config.pattern.decode(),
            "streams": streams,
            "stream_count": len(streams),
            "has_more": has_more,
            "pending_count": len(subscription.pending),
            "webhook": self._describe_webhook(subscription),
            "wake_stream": None if config.wake_stream is None else _path(config.wake_stream),
            "lease_ttl_ms": config.lease_ttl_ms,
            "created_at": encode_timestamp(subscription.created_ms),
            "status": subscription.status,
            "description": config.description,
        }
        return {name: value for name, value in described.items() if value is not None}

    def _describe_webhook(self, subscription: Subscription) -> dict[str, Any] | None:
        if not subscription.is_webhook:
            return None
        base_url = self._own_urls.public_url or subscription.base_url
        signing = {
            "alg": "ed25519",
            "kid": signer_of(self._signing_seed()).kid,
            "jwks_url": base_url + (CONTROL_ROOT + b"jwks.json").decode(),
        }
        return {"url": subscription.config.webhook_url, "signing": signing}

    # Which streams

    def link(self, request: Request, subscription_id: str) -> None:
        streams = parse_body(request, StreamsBody).streams
        keys, grant = _keys_of(streams), request.grant
        if grant is not None:
            for key in keys:
                grant.require(Scope.SUBSCRIBE, key)
        subscription = self._engine.machine.subscriptions.by_id.get(subscription_id)
        if subscription is not None and len(subscription.links) >= SUBSCRIPTION_LINKS_MAX:
            named = sum(link.is_explicit for link in subscription.links.values())
            if named + len(streams) > SUBSCRIPTION_LINKS_MAX:
                raise InvalidSubscriptionRequest(
                    f"a subscription may name {SUBSCRIPTION_LINKS_MAX} streams and this one names "
                    f"{named}; for more give it a pattern, or make another subscription"
                )
        command = LinkStreams(self._clock.now_ms(), subscription_id, keys)
        self._engine.submit(command, _respond_empty, request)

    def unlink(self, request: Request, subscription_id: str, rest: bytes) -> None:
        try:
            name = unquote_to_bytes(rest).decode()
        except UnicodeDecodeError:
            raise InvalidSubscriptionRequest("a stream's path must be UTF-8") from None
        command = UnlinkStream(self._clock.now_ms(), subscription_id, stream_key_of(name))
        self._engine.submit(command, _respond_empty, request)


def _is_covered(grant: Grant, config: CreateSubscription | SubscriptionConfig) -> bool:
    """Whether the key may subscribe to all that the subscription was made for."""
    if config.pattern is not None:
        pattern = parse_pattern(config.pattern)
        if not grant.allows_pattern(Scope.SUBSCRIBE, pattern):
            return False
    return all(grant.allows(Scope.SUBSCRIBE, key) for key in config.streams)


def _create_command(
    body: SubscriptionBody, subscription_id: str, base_url: str, now_ms: int
) -> CreateSubscription:
    """Raises InvalidSubscriptionRequest. Where its webhook leads is not judged here."""
    if not LEASE_MS_MIN <= body.lease_ttl_ms <= LEASE_MS_MAX:
        raise InvalidSubscriptionRequest(
            f"lease_ttl_ms must be a whole number from {LEASE_MS_MIN} to {LEASE_MS_MAX}"
        )
    if body.description is not None and len(body.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise InvalidSubscriptionRequest(
            f"description must not exceed {DESCRIPTION_BYTES_MAX} bytes"
        )
    if not body.pattern and not body.streams:
        raise InvalidSubscriptionRequest("give a pattern, or streams, or both")
    command = CreateSubscription(
        now_ms,
        subscription_id,
        base_url,
        body.lease_ttl_ms,
        _normal(body.pattern) if body.pattern else None,
        _keys_of(body.streams or ()),
        description=body.description,
    )
    if body.type == "webhook":
        if body.webhook is None or body.wake_stream is not None:
            raise InvalidSubscriptionRequest("a webhook subscription has webhook.url, and no more")
        command.webhook_url = body.webhook.url
    elif body.type == "pull-wake":
        if not body.wake_stream or body.webhook is not None:
            raise InvalidSubscriptionRequest("a pull-wake subscription has wake_stream")
        command.wake_stream = stream_key_of(body.wake_stream)
        refuse_system(command.wake_stream)
        if command.wake_stream in command.streams:
            raise InvalidSubscriptionRequest("a subscription cannot follow its own wake_stream")
    else:
        raise InvalidSubscriptionRequest("type must be webhook or pull-wake")
    return command


def _normal(pattern: str) -> bytes:
    try:
        return normal_pattern(pattern.strip("/").encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise InvalidSubscriptionRequest(f"pattern: {error}") from None


def _keys_of(streams: Sequence[str]) -> tuple[bytes, ...]:
    if len(streams) > NAMED_STREAMS_MAX:
        raise InvalidSubscriptionRequest(
            f"streams names {len(streams)}; at most {NAMED_STREAMS_MAX} are allowed in one request"
        )
    return tuple(sorted({stream_key_of(stream) for stream in streams}))


def _path(key: bytes) -> str:
    return path_of(key).decode()


def _respond_empty(request: Request, outcome: Outcome) -> None:
    if isinstance(outcome, StreamError):
        respond_error(request, outcome)
    else:
        request.respond(204, NO_STORE)
