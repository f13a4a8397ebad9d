"""Touches on a journal in memory, on a real loop: the routes, the service and the engine below."""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from millstream.access.gate import Grant
from millstream.api.errors import respond_error
from millstream.api.reads import Reads
from millstream.api.touch import TouchRoutes
from millstream.clock import SystemClock
from millstream.cold.cold_reads import ColdReads
from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.errors import StreamError
from millstream.state.commands import (
    AnyCommand,
    AppendEntries,
    CreateStream,
    DeleteStream,
    SetRules,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from millstream.state.stream import Stream
from millstream.touch.service import TouchService
from millstream.touch.stream import StreamTouches
from tests.unit.api.fake_request import UNCOMPRESSED, FakeRequest
from tests.unit.engine.world import ListeningJournal

PATH = b"_default/todos"


class TouchRequest(FakeRequest):
    def __init__(self, body: bytes = b"", query: bytes = b"") -> None:
        super().__init__()
        self.body = body
        self.query = query
        self.on_half_close: Callable[[], None] | None = None

    @property
    def status(self) -> int:
        return self.answer[0]

    @property
    def json(self) -> Any:
        return json.loads(self.answer[2])

    @property
    def message(self) -> str:
        return cast(str, self.json["error"]["message"])


def record(operation: str = "insert", entity: str = "public.todos", **rows: Any) -> dict[str, Any]:
    return {"type": entity, "key": "1", **rows, "headers": {"operation": operation}}


def row(status: str = "open", tenant: str = "t1", **more: Any) -> dict[str, Any]:
    return {"status": status, "tenantId": tenant, **more}


TEMPLATE = {
    "entity": "public.todos",
    "fields": [
        {"name": "tenantId", "encoding": "string"},
        {"name": "status", "encoding": "string"},
    ],
}


class TouchWorld:
    def __init__(self) -> None:
        self.clock = SystemClock()
        self.machine = StateMachine()
        self.journal = ListeningJournal()
        self.engine = Engine(self.machine, self.journal, self.clock, 0)
        self.engine.start(asyncio.get_running_loop())
        self.service = TouchService(self.engine, Timings())
        cold_reads = ColdReads(self.machine, None, None, 1, faults=self.engine.faults)
        reads = Reads(self.engine, cold_reads, self.clock, "tag", 1 << 20, UNCOMPRESSED)
        self.routes = TouchRoutes(self.service, reads, self.clock)

    async def perform(self, command: AnyCommand) -> Outcome:
        return await self.engine.perform(command)

    async def create(self, path: bytes = PATH, **touch: Any) -> Stream:
        """A stream whose touches are enabled, with these settings."""
        await self.perform(CreateStream(self.clock.now_ms(), path, b"application/json"))
        stream = self.machine.find(path)
        assert stream is not None
        await self.set_touch(stream, **touch)
        return stream

    async def set_touch(self, stream: Stream, enabled: bool = True, **touch: Any) -> None:
        profile = {"kind": "state-protocol", "touch": {"enabled": enabled, **touch}}
        revision = 0 if stream.rules is None else stream.rules.revision
        rules = Rules(0, "state-protocol", json.dumps(profile).encode(), touch=enabled)
        command = SetRules(self.clock.now_ms(), stream.stream_id, revision, rules)
        assert await self.perform(command) is Done.ACCEPTED

    def command(self, stream: Stream, *records: Any) -> AppendEntries:
        messages = [json.dumps(each).encode() + b"," for each in records]
        ends, end = array("I"), 0
        for message in messages:
            end += len(message)
            ends.append(end)
        assert stream.rules is not None
        return AppendEntries(
            self.clock.now_ms(),
            stream.stream_id,
            b"".join(messages),
            b"" if len(messages) == 1 else ends.tobytes(),
            len(messages),
            stream.essence,
            rules_revision=stream.rules.revision,
        )

    async def append(self, stream: Stream, *records: Any) -> None:
        assert await self.perform(self.command(stream, *records)) is Done.APPENDED

    async def delete(self, stream: Stream) -> None:
        await self.perform(DeleteStream(self.clock.now_ms(), stream.stream_id))

    def touches(self, stream: Stream) -> StreamTouches:
        return self.service.touches_of(stream)

    async def settled(self, stream: Stream) -> str:
        """All that is appended is told; the cursor then."""
        request = self.meta(stream.path, b"settle=flush")
        await until(lambda: request.is_answered)
        assert request.json["settled"]
        return cast(str, request.json["cursor"])

    def meta(self, path: bytes = PATH, query: bytes = b"") -> TouchRequest:
        return _asked(self.routes.meta, TouchRequest(query=query), path)

    def activate(self, *templates: Any, path: bytes = PATH, **fields: Any) -> TouchRequest:
        body = json.dumps({"templates": templates or (TEMPLATE,), **fields}).encode()
        return _asked(self.routes.activate, TouchRequest(body), path)

    def wait(self, path: bytes = PATH, grant: Grant | None = None, **fields: Any) -> TouchRequest:
        body = json.dumps({"cursor": "now", **fields}).encode()
        request = TouchRequest(body)
        request.grant = grant  # type: ignore[assignment]
        return _asked(self.routes.wait, request, path)


def _asked(handle: Callable[..., None], request: TouchRequest, path: bytes) -> TouchRequest:
    try:
        handle(request.request, path)
    except StreamError as error:
        respond_error(request.request, error)
    return request


@contextlib.asynccontextmanager
async def driven() -> AsyncIterator[TouchWorld]:
    """What the service met, its task raised nothing and no fault was heard."""
    world = TouchWorld()
    async with asyncio.TaskGroup() as group, world.service.running(group):
        yield world
    assert world.engine.faults.last is None, world.engine.faults.last


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def answered(request: TouchRequest) -> Any:
    """The body of its answer, which is a success."""
    await until(lambda: request.is_answered)
    assert request.status == 200, request.answer
    return request.json
