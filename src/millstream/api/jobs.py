"""Jobs of the data pipeline: ask for one, fetch its tasks, bring their results, commit once.

docs/pipeline.md is the contract, jobs/service.py does what is asked. A request that takes time is a
coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec

from millstream.api.errors import respond_error
from millstream.errors import (
    JobFailed,
    MethodNotAllowed,
    Overloaded,
    RouteNotFound,
    ShuttingDown,
    StreamError,
)
from millstream.faults import Faults
from millstream.formats.jobs import JOBS_PATH, MSGPACK_TYPE
from millstream.http.message import Request
from millstream.jobs.service import Jobs

JOBS_ROOT = JOBS_PATH.encode()

_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
_MSGPACK = f"content-type: {MSGPACK_TYPE}\r\ncache-control: no-store\r\n".encode()
_NO_STORE = b"cache-control: no-store\r\n"
_NUMBER = re.compile(r"[0-9]{1,9}")

Answer = tuple[int, bytes, bytes]  # status, headers, body
Answering = Coroutine[Any, Any, Answer]


class JobRoutes:
    """Every request has one answer, whatever is raised on the way: see `_serve`."""

    def __init__(self, jobs: Jobs, faults: Faults) -> None:
        self._jobs = jobs
        self._faults = faults
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
            for task in self._under_way:
                task.cancel()
            if self._under_way:
                await asyncio.wait(self._under_way)

    def handle(self, request: Request) -> None:
        request.route = "jobs"
        parts = request.path[len(JOBS_ROOT) :].decode("latin-1").split("/")
        match parts:
            case [kind] if kind in self._jobs.kinds:
                self._allow(request, b"POST")
                self._begin(request, self._ask(kind))
            case [job_id]:
                self._allow(request, b"DELETE")
                self._jobs.give_up(job_id)
                request.respond(204, _NO_STORE)
            case [job_id, "commit"]:
                self._allow(request, b"POST")
                self._begin(request, self._commit(job_id))
            case [job_id, "tasks", number] if _NUMBER.fullmatch(number):
                self._allow(request, b"GET", b"PUT")
                if request.method == b"GET":
                    request.respond(200, _MSGPACK, self._jobs.task(job_id, int(number)))
                else:
                    self._begin(request, self._put_result(job_id, int(number), request.body))
            case _:
                below = ", ".join([*self._jobs.kinds, "{job}", "{job}/tasks/{k} and {job}/commit"])
                raise RouteNotFound(f"jobs: {below}")

    @staticmethod
    def _allow(request: Request, *methods: bytes) -> None:
        if request.method not in methods:
            allowed = b", ".join(methods).decode()
            raise MethodNotAllowed(f"use one of {allowed}", f"{allowed}, OPTIONS")

    async def _ask(self, kind: str) -> Answer:
        offer = await self._jobs.ask(kind)
        return (204, _NO_STORE, b"") if offer is None else (200, _JSON, offer)

    async def _put_result(self, job_id: str, number: int, body: bytes) -> Answer:
        await self._jobs.put_result(job_id, number, body)
        return 204, _NO_STORE, b""

    async def _commit(self, job_id: str) -> Answer:
        await self._jobs.commit(job_id)
        return 200, _JSON, msgspec.json.encode({"job": job_id, "committed": True})

    def _begin(self, request: Request, answering: Answering) -> None:
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
        except OSError as error:
            respond_error(request, Overloaded(f"the cold tier does not answer: {error}"))
        except Exception as error:
            self._faults.report("jobs", error)
            kind = type(error).__name__
            respond_error(request, JobFailed(f"an unexpected error, see the log: {kind}: {error}"))
        except BaseException:
            respond_error(request, _shutting_down())
            raise
        else:
            self._faults.works("jobs")
            request.respond(*answer)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server stops; ask again when it is back")
