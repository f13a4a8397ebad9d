"""What workers do with a wake: callback and ack, claim, release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millstream.api.control import parse_body, respond_json, stream_key_of
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.api.reads import Reads
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import (
    InvalidAck,
    InvalidOffset,
    InvalidSubscriptionRequest,
    StreamError,
    SubscriptionNotFound,
    TokenInvalid,
    WakeFenced,
)
from millstream.http.message import Request
from millstream.limits import WAKE_STREAMS_MAX, WORKER_NAME_BYTES_MAX
from millstream.protocol.offsets import Offset, decode_offset
from millstream.protocol.wake_tokens import TokenClaims, check_token, issue_token
from millstream.state.commands import AckWake, ClaimWake, ReleaseWake
from millstream.state.log import Log
from millstream.state.outcomes import Outcome
from millstream.state.stream import Stream, resolve_in
from millstream.state.subscription import Subscription
from millstream.subscriptions.driver import new_jitter, new_wake_id

Ack = tuple[bytes, int | None, int | None]  # key, ordinal, byte


class ClaimBody(msgspec.Struct):
    worker: str


class AckItem(msgspec.Struct):
    offset: str
    stream: str | None = None
    path: str | None = None  # another word for stream


class AckBody(msgspec.Struct):
    wake_id: str | None = None
    generation: int | None = None
    acks: list[AckItem] = []
    done: bool = False


class WakeRoutes:
    def __init__(self, engine: Engine, reads: Reads, clock: Clock) -> None:
        self._engine = engine
        self._reads = reads
        self._clock = clock

    # Claim

    def claim(self, request: Request, subscription_id: str) -> None:
        worker = parse_body(request, ClaimBody).worker
        if not worker or len(worker.encode()) > WORKER_NAME_BYTES_MAX:
            raise InvalidSubscriptionRequest(
                f"worker must be a name of 1 to {WORKER_NAME_BYTES_MAX} bytes"
            )
        command = ClaimWake(
            self._clock.now_ms(), subscription_id, worker, new_wake_id(), new_jitter()
        )
        self._engine.submit(command, self._claimed, (request, subscription_id, command.now_ms))

    def _claimed(self, waiting: tuple[Request, str, int], outcome: Outcome) -> None:
        request, subscription_id, now_ms = waiting
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
            return
        subscriptions = self._engine.machine.subscriptions
        subscription = subscriptions.by_id[subscription_id]
        answer = {
            "wake_id": subscription.wake_id,
            "generation": subscription.generation,
            "token": self._token(subscription, now_ms),
            "streams": subscriptions.linked_streams(subscription, WAKE_STREAMS_MAX),
            "lease_ttl_ms": subscription.config.lease_ttl_ms,
        }
        respond_json(request, 200, answer)

    def _token(self, subscription: Subscription, now_ms: int) -> str:
        keys = self._engine.machine.subscriptions.keys
        assert keys is not None
        assert subscription.wake_id is not None
        return issue_token(
            keys.token_key,
            subscription.subscription_id,
            subscription.wake_id,
            subscription.generation,
            now_ms,
        )

    # Callback, ack, release

    def callback(self, request: Request, subscription_id: str) -> None:
        self._acknowledge(request, subscription_id, is_webhook=True)

    def ack(self, request: Request, subscription_id: str) -> None:
        self._acknowledge(request, subscription_id, is_webhook=False)

    def _acknowledge(self, request: Request, subscription_id: str, *, is_webhook: bool) -> None:
        now_ms = self._clock.now_ms()
        body, claims = self._admit(request, subscription_id, now_ms, is_webhook=is_webhook)
        acks = [_decode_ack(item) for item in body.acks]

        def submit() -> None:
            command = AckWake(
                self._clock.now_ms(),
                subscription_id,
                claims.wake_id,
                claims.generation,
                tuple(acks),
                body.done,
            )
            self._engine.submit(command, self._acknowledged, (request, command, claims))

        self._complete(request, acks, 0, submit)

    def _complete(
        self, request: Request, acks: list[Ack], first: int, then: Callable[[], None]
    ) -> None:
        """Fills in the half that is not given: what is published, the state cannot look into.

        An offset that names no place stays as it is: it is refused in its turn.
        """
        for index in range(first, len(acks)):
            key, ordinal, byte = acks[index]
            offset = Offset(ordinal, byte)
            stream = self._look_up_in(key, offset)
            if stream is None:
                continue
            window = self._reads.cold_reads.in_memory(stream, offset, 0)
            if window is None:
                self._complete_later(request, acks, index, stream, then)
                return
            acks[index] = (key, *(resolve_in(window, offset) or offset))
        then()

    def _complete_later(
        self,
        request: Request,
        acks: list[Ack],
        index: int,
        stream: Stream,
        then: Callable[[], None],
    ) -> None:
        key, ordinal, byte = acks[index]
        offset = Offset(ordinal, byte)

        def loaded(window: Log) -> None:
            acks[index] = (key, *(resolve_in(window, offset) or offset))
            self._complete(request, acks, index + 1, then)

        self._reads.with_log(request, stream, offset, 0, loaded)

    def _look_up_in(self, key: bytes, offset: Offset) -> Stream | None:
        """The stream whose content must tell the other half; None when it need not be looked up."""
        if offset.ordinal is not None and offset.byte is not None:
            return None
        stream = self._engine.machine.find(key)
        if stream is None or stream.deleted or stream.is_trimmed(offset):
            return None
        return stream

    def _acknowledged(
        self, waiting: tuple[Request, AckWake, TokenClaims], outcome: Outcome
    ) -> None:
        request, command, claims = waiting
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
            return
        subscription = self._engine.machine.subscriptions.by_id[command.subscription_id]
        answer: dict[str, Any] = {
            "ok": True,
            "next_wake": command.done and bool(subscription.pending),
        }
        if not command.done and claims.is_ageing(command.now_ms):
            answer["token"] = self._token(subscription, command.now_ms)
        respond_json(request, 200, answer)

    def release(self, request: Request, subscription_id: str) -> None:
        now_ms = self._clock.now_ms()
        _, claims = self._admit(request, subscription_id, now_ms, is_webhook=False)
        command = ReleaseWake(now_ms, subscription_id, claims.wake_id, claims.generation)
        self._engine.submit(command, self._released, request)

    @staticmethod
    def _released(request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
        else:
            request.respond(204, NO_STORE)

    def _admit(
        self, request: Request, subscription_id: str, now_ms: int, *, is_webhook: bool
    ) -> tuple[AckBody, TokenClaims]:
        """Who holds a token of the wake that the body speaks of. Raises for everybody else."""
        token = _bearer(request)
        body = parse_body(request, AckBody)
        subscriptions = self._engine.machine.subscriptions
        subscription = subscriptions.by_id.get(subscription_id)
        if subscription is None:
            raise SubscriptionNotFound("subscription does not exist")
        if subscription.is_webhook is not is_webhook:
            raise InvalidSubscriptionRequest(
                "callback is for webhook subscriptions; claim, ack and release are for pull-wake"
            )
        assert subscriptions.keys is not None
        claims = check_token(subscriptions.keys.token_key, token, subscription_id, now_ms)
        if (body.wake_id, body.generation) != (claims.wake_id, claims.generation):
            raise WakeFenced("token, wake_id and generation are not of the same wake")
        return body, claims


def _bearer(request: Request) -> bytes:
    scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise TokenInvalid("send the token in the header Authorization: Bearer")
    return token.strip()


def _decode_ack(item: AckItem) -> Ack:
    try:
        ordinal, byte = decode_offset(item.offset.encode())
        return stream_key_of(item.stream or item.path or ""), ordinal, byte
    except InvalidSubscriptionRequest as error:
        raise InvalidAck(str(error)) from None
    except (InvalidOffset, UnicodeEncodeError):
        raise InvalidAck("acknowledge an offset that this server handed out") from None
