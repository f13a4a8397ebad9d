"""`_schema` and `_profile` of a stream: what it asks of its entries, and changes to that."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from millstream.api.slow_requests import Answer, SlowRequests, json_answer
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.engine.threads import Threads
from millstream.errors import CatalogUnavailable, InvalidSchema, RulesChanged, StreamError
from millstream.http.message import Request
from millstream.limits import RULES_TRIES_MAX
from millstream.protocol.patterns import DEFAULT_BUCKET
from millstream.schemas.profiles import plan_profile, profile_document
from millstream.schemas.registry import Change, plan_update, registry_document
from millstream.state.commands import SetRules
from millstream.state.decisions import revision_of, rules_changed
from millstream.state.rules import Rules
from millstream.state.stream import Stream

Plan = Callable[[Stream, bytes], Change]
Show = Callable[[Stream], dict[str, Any]]


def stream_name(stream: Stream) -> str:
    """As it is below /v1/stream/."""
    return stream.path.removeprefix(DEFAULT_BUCKET + b"/").decode()


def show_registry(stream: Stream) -> dict[str, Any]:
    return registry_document(stream_name(stream), stream.rules)


def show_profile(stream: Stream) -> dict[str, Any]:
    return profile_document(stream.rules)


class RulesRoutes:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._requests = SlowRequests(engine.faults, "request", _explain)
        # One thread: to prove a lens takes the interpreter, and no change is in a hurry.
        self._thread = Threads("rules", 1)

    @contextlib.asynccontextmanager
    async def running(self, group: Any) -> AsyncIterator[None]:
        """Changes are served."""
        async with self._requests.running(group):
            yield
        await self._thread.close()

    def describe_schema(self, request: Request, key: bytes) -> None:
        request.respond(*json_answer(show_registry(self._find(key))))

    def describe_profile(self, request: Request, key: bytes) -> None:
        request.respond(*json_answer(show_profile(self._find(key))))

    def update_schema(self, request: Request, key: bytes) -> None:
        def plan(stream: Stream, body: bytes) -> Change:
            if not stream.is_json:
                raise InvalidSchema("schema requires application/json stream content-type")
            is_empty = stream.log.tail_ordinal == 0
            return plan_update(stream_name(stream), stream.rules, body, is_empty)

        self._requests.begin(request, self._change(key, request.body, plan, show_registry))

    def update_profile(self, request: Request, key: bytes) -> None:
        def plan(stream: Stream, body: bytes) -> Change:
            is_empty = stream.log.tail_ordinal == 0
            return plan_profile(stream.rules, body, stream.is_json, is_empty)

        self._requests.begin(request, self._change(key, request.body, plan, show_profile))

    def _find(self, key: bytes) -> Stream:
        return self._engine.find(key, self._clock.now_ms())

    async def _change(self, key: bytes, body: bytes, plan: Plan, show: Show) -> Answer:
        """Planned again when another change came first."""
        for _ in range(RULES_TRIES_MAX):
            stream = self._find(key)
            revision = revision_of(stream)
            change = await self._thread.run(lambda stream=stream: plan(stream, body))  # type: ignore[misc]
            if _is_same(stream.rules, change):
                return json_answer(show(stream))
            command = SetRules(
                self._clock.now_ms(), stream.stream_id, revision, *_fields_of(change)
            )
            outcome = await self._engine.perform(command)
            if not isinstance(outcome, StreamError):
                return json_answer(show(self._find(key)))
            if not isinstance(outcome, RulesChanged):
                raise outcome
        raise rules_changed()


def _fields_of(change: Change) -> tuple[Rules, bool, bool, bool]:
    return change.rules, change.begins_version, change.is_fresh, change.needs_empty


def _is_same(rules: Rules | None, change: Change) -> bool:
    """Whether nothing would change."""
    before = Rules(0) if rules is None else rules
    settled = msgspec.structs.replace(
        change.rules, revision=before.revision, boundaries=before.boundaries
    )
    return settled == before and not change.begins_version


def _explain(error: Exception) -> StreamError:
    return CatalogUnavailable(f"the change could not be made: {error}")
