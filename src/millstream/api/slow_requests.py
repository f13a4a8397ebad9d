"""Requests that take time: each is a coroutine, and ends with one answer whatever is raised."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from millstream.api.errors import respond_error
from millstream.api.headers import JSON
from millstream.errors import ShuttingDown, StreamError
from millstream.faults import Faults, Place, Service
from millstream.http.message import Request

Answer = tuple[int, bytes, bytes]  # status, headers, body
Answering = Coroutine[Any, Any, Answer | None]  # None: it has answered, in pieces


def json_answer(value: object) -> Answer:
    return 200, JSON, msgspec.json.encode(value)


class SlowRequests:
    """Those of one kind of route."""

    def __init__(
        self,
        faults: Faults,
        where: Place,
        explain: Callable[[Exception], StreamError],
        *,
        service: Service | None = None,
    ) -> None:
        """`explain` makes an answer of an error that is none; what is no OSError either, `faults`
        hears of. `service` has worked when a request has."""
        self._faults = faults
        self._where = where
        self._explain = explain
        self._service = service
        self._group: asyncio.TaskGroup | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, group: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Requests are served. Afterwards all of them have their answer: those that still waited
        were told that the server stops, and what they began may have happened."""
        self._group = group
        try:
            yield
        finally:
            self._group = None
            await asyncio.sleep(0)  # each has begun: one that has not would end without an answer
            for task in self._under_way:
                task.cancel()
            if self._under_way:
                await asyncio.wait(self._under_way)

    def begin(self, request: Request, answering: Answering) -> None:
        """The request is answered later. Raises ShuttingDown."""
        if self._group is None:
            answering.close()
            raise _shutting_down()
        task = self._group.create_task(self._serve(request, answering))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, request: Request, answering: Answering) -> None:
        """The one place where a request that takes time is answered."""
        try:
            answer = await answering
        except StreamError as error:
            respond_error(request, error)
        except Exception as error:
            if not isinstance(error, OSError):
                self._faults.report(self._where, error)
            respond_error(request, self._explain(error))
        except BaseException:
            respond_error(request, _shutting_down())
            raise
        else:
            if self._service is not None:
                self._faults.works(self._service)
            if answer is not None:
                request.respond(*answer)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server stops; ask again when it is back")
