"""Jobs of the data pipeline: ask for one, fetch its tasks, bring their results, commit once.

docs/pipeline.md is the contract, jobs/service.py does what is asked. A request that takes time is a
coroutine.
"""

from __future__ import annotations

import re

from millstream.api.headers import JSON, NO_STORE
from millstream.api.slow_requests import Answer, SlowRequests, json_answer
from millstream.errors import (
    JobFailed,
    MethodNotAllowed,
    Overloaded,
    RouteNotFound,
    StreamError,
)
from millstream.faults import Faults
from millstream.formats.jobs import JOBS_PATH, MSGPACK_TYPE
from millstream.http.message import Request
from millstream.jobs.service import Jobs

JOBS_ROOT = JOBS_PATH.encode()

_MSGPACK = f"content-type: {MSGPACK_TYPE}\r\n".encode() + NO_STORE
_NUMBER = re.compile(r"[0-9]{1,9}")


class JobRoutes:
    def __init__(self, jobs: Jobs, faults: Faults) -> None:
        self._jobs = jobs
        self._requests = SlowRequests(faults, "jobs", _explain, service="jobs")
        self.running = self._requests.running

    def handle(self, request: Request) -> None:
        request.route = "jobs"
        parts = request.path[len(JOBS_ROOT) :].decode("latin-1").split("/")
        match parts:
            case [kind] if kind in self._jobs.kinds:
                self._allow(request, b"POST")
                self._requests.begin(request, self._ask(kind))
            case [job_id]:
                self._allow(request, b"DELETE")
                self._jobs.give_up(job_id)
                request.respond(204, NO_STORE)
            case [job_id, "commit"]:
                self._allow(request, b"POST")
                self._requests.begin(request, self._commit(job_id))
            case [job_id, "tasks", number] if _NUMBER.fullmatch(number):
                self._allow(request, b"GET", b"PUT")
                if request.method == b"GET":
                    request.respond(200, _MSGPACK, self._jobs.task(job_id, int(number)))
                else:
                    self._requests.begin(
                        request, self._put_result(job_id, int(number), request.body)
                    )
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
        return (204, NO_STORE, b"") if offer is None else (200, JSON, offer)

    async def _put_result(self, job_id: str, number: int, body: bytes) -> Answer:
        await self._jobs.put_result(job_id, number, body)
        return 204, NO_STORE, b""

    async def _commit(self, job_id: str) -> Answer:
        await self._jobs.commit(job_id)
        return json_answer({"job": job_id, "committed": True})


def _explain(error: Exception) -> StreamError:
    if isinstance(error, OSError):
        return Overloaded(f"the cold tier does not answer: {error}")
    return JobFailed(f"an unexpected error, see the log: {type(error).__name__}: {error}")
