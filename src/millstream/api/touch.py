"""`{stream}/touch/…`: templates, waits for touches, and how the touches of a stream are doing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from millstream.access.gate import Grant, unauthorized
from millstream.api.arguments import Query
from millstream.api.errors import respond_error
from millstream.api.headers import JSON
from millstream.api.reads import Reads
from millstream.api.touch_bodies import (
    Declaration,
    WaitBody,
    parse_activation,
    parse_wait,
    settle_seconds,
)
from millstream.clock import Clock
from millstream.errors import InvalidRequest, StreamError
from millstream.http.message import Request
from millstream.state.stream import Stream
from millstream.touch.journal import Moment, Reach, Told, Wait
from millstream.touch.keys import key_text
from millstream.touch.meta import touch_meta
from millstream.touch.service import TouchService
from millstream.touch.stream import Kind, StreamTouches, Watch

_INVALID = key_text(0)
_STALE = {
    "code": "stale",
    "message": "cursor epoch mismatch; rerun/re-subscribe and start from cursor",
}
_ANSWERS_CACHED = 256


class TouchRoutes:
    def __init__(self, service: TouchService, reads: Reads, clock: Clock) -> None:
        self.service = service
        self.clock = clock
        self._reads = reads

    # Templates

    def activate(self, request: Request, key: bytes) -> None:
        stream = self._reads.find(key)
        touches = self.service.touches_of(stream)
        declaration = parse_activation(request.body)
        cursor = touches.journal.moment().cursor
        activated, denied = self._activate(stream, declaration)
        limits = touches.settings.templates
        answer = {
            "activated": [
                {"templateId": each, "state": "active", "activeFromTouchOffset": cursor}
                for each in activated
            ],
            "denied": [{"templateId": each, "reason": reason} for each, reason in denied],
            "limits": {
                "maxActiveTemplatesPerStream": limits.max_active_templates_per_stream,
                "maxActiveTemplatesPerEntity": limits.max_active_templates_per_entity,
            },
        }
        _respond(request, msgspec.json.encode(answer))

    def _activate(
        self, stream: Stream, declaration: Declaration
    ) -> tuple[list[str], list[tuple[str, str]]]:
        sound = [each for each in declaration.templates if each is not None]
        denied = [(_INVALID, "invalid")] * (len(declaration.templates) - len(sound))
        activations = self.service.activate(stream, sound, declaration.ttl_ms)
        activated = [key_text(each.template_id) for each in activations if each.denied is None]
        denied += [
            (key_text(each.template_id), each.denied)
            for each in activations
            if each.denied is not None
        ]
        return activated, denied

    # Meta

    def meta(self, request: Request, key: bytes) -> None:
        stream = self._reads.find(key)
        touches = self.service.touches_of(stream)
        seconds = settle_seconds(Query(request.query))
        settling = Settling(self, request, stream, touches)
        if seconds is None:
            settling.tell(Told(False, touches.journal.moment()))
        else:
            settling.begin(seconds)

    # Waits

    def wait(self, request: Request, key: bytes) -> None:
        stream = self._reads.find(key)
        touches = self.service.touches_of(stream)
        body = parse_wait(request.body)
        now_ms = self.clock.now_ms()
        for each in body.asked.template_ids:
            touches.templates.see(each, now_ms)
        if body.declaration is not None:
            self._activate(stream, body.declaration)
        watch = touches.watch_for(body.asked)
        _check_exact(body, watch)
        cursor = body.cursor or self.service.current_cursor(stream.stream_id, touches)
        if touches.is_stale(cursor):
            touches.totals.stale_waits += 1
            _respond(request, _stale_body(touches.journal.moment(), watch.kind))
            return
        wait = TouchWait(self, request, touches, watch, body)
        self.service.wait(stream.stream_id, touches, wait, cursor.generation, wait.begin(body))


def _check_exact(body: WaitBody, watch: Watch) -> None:
    if not body.is_exact:
        return
    if body.asked.is_coarse or watch.kind is not Kind.FINE:
        raise InvalidRequest("wait.exact requires fine interest while runtime is in fine-key mode")
    if not body.asked.exact_keys:
        raise InvalidRequest("wait.exact requires 1 to 16 literal 64-bit routing keys")


class ClientWait(Wait):
    """A request that waits. What happens first answers it, and only once."""

    __slots__ = ("_request", "_routes", "_touches")

    def __init__(
        self, routes: TouchRoutes, request: Request, touches: StreamTouches, watch: Watch
    ) -> None:
        super().__init__(watch.key_ids, watch.reach, watch.exact)
        self._routes = routes
        self._request = request
        self._touches = touches

    def follow_client(self, seconds: float) -> float:
        """From now on it hears of the client; for how long its key lets it wait."""
        request, grant = self._request, self._grant
        request.on_disconnect = self._left
        request.on_half_close = self._half_closed
        if grant is None:
            return seconds
        grant.join(self)
        return grant.seconds_within(seconds, self._routes.clock.now_ms())

    @property
    def _grant(self) -> Grant | None:
        grant: Grant | None = self._request.grant
        return grant

    def unfollow_client(self) -> None:
        self._request.on_disconnect = self._request.on_half_close = None
        if self._grant is not None:
            self._grant.leave(self)

    def _left(self) -> None:
        self.unfollow_client()
        self._routes.service.leave(self._touches, self)

    def _half_closed(self) -> None:
        self._routes.service.end(self._touches, self)

    def revoked(self) -> None:
        """The key that opened it is no more."""
        if not self.is_over:
            self._left()
            respond_error(self._request, unauthorized())

    def tell(self, outcome: Told | StreamError) -> None:
        self.unfollow_client()
        if isinstance(outcome, StreamError):
            respond_error(self._request, outcome)
        else:
            _respond(self._request, self.body(outcome))

    def body(self, told: Told) -> bytes:
        raise NotImplementedError


class TouchWait(ClientWait):
    __slots__ = ("_inactive", "_kind")

    def __init__(
        self,
        routes: TouchRoutes,
        request: Request,
        touches: StreamTouches,
        watch: Watch,
        body: WaitBody,
    ) -> None:
        super().__init__(routes, request, touches, watch)
        self.template_ids = body.asked.template_ids
        self._kind = watch.kind
        self._inactive = tuple(map(key_text, touches.inactive(self.template_ids)))

    def begin(self, body: WaitBody) -> float:
        """For how long it may wait."""
        return self.follow_client(body.seconds)

    def body(self, told: Told) -> bytes:
        return _wait_body(told.touched, told.moment, self._kind, self._inactive)


class Settling(ClientWait):
    """A question for meta that waits until nothing is pending."""

    __slots__ = ("_stream",)

    def __init__(
        self, routes: TouchRoutes, request: Request, stream: Stream, touches: StreamTouches
    ) -> None:
        super().__init__(routes, request, touches, Watch(Kind.FINE, (), Reach.NOTHING, frozenset()))
        self._stream = stream

    def begin(self, seconds: float) -> None:
        seconds = self.follow_client(seconds)
        self._routes.service.settle(self._stream.stream_id, self._touches, self, seconds)

    def body(self, told: Told) -> bytes:
        meta = touch_meta(self._touches, self._stream, self._routes.clock.now_ms())
        return msgspec.json.encode(meta)


def _respond(request: Request, body: bytes) -> None:
    request.respond(200, JSON, body)


@lru_cache(maxsize=_ANSWERS_CACHED)
def _wait_body(touched: bool, moment: Moment, kind: Kind, inactive: tuple[str, ...]) -> bytes:
    """Of all clients that one flush wakes most get the same one."""
    answer: dict[str, Any] = {"touched": touched, "cursor": moment.cursor, **_facts(moment, kind)}
    if inactive:  # of these no rows are told: they have to be activated first
        answer["inactiveTemplateIds"] = inactive
    return msgspec.json.encode(answer)


def _stale_body(moment: Moment, kind: Kind) -> bytes:
    return msgspec.json.encode(
        {
            "stale": True,
            "cursor": moment.cursor,
            "epoch": key_text(moment.epoch),
            "generation": moment.generation,
            **_facts(moment, kind),
            "error": _STALE,
        }
    )


def _facts(moment: Moment, kind: Kind) -> dict[str, Any]:
    return {
        "effectiveWaitKind": kind.value,
        "bucketMaxSourceOffsetSeq": str(moment.ordinal),
        "flushAtMs": moment.flushed_ms,
        "bucketStartMs": moment.began_ms,
    }
