"""What of the cold store may go: show it, or collect it now. `GET` and `POST` of one route."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.cold.garbage import Garbage, Item
from millstream.errors import ColdUnavailable, ShuttingDown, StreamError
from millstream.faults import Faults
from millstream.http.message import Request
from millstream.limits import GARBAGE_LISTED_MAX


class GarbageRoutes:
    """Every request has one answer, whatever is raised on the way: see `_serve`."""

    def __init__(self, garbage: Garbage, faults: Faults) -> None:
        self._garbage = garbage
        self._faults = faults
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, request: Request) -> None:
        self._begin(request, self._show())

    def collect(self, request: Request) -> None:
        self._begin(request, self._collect())

    def _begin(self, request: Request, answering: Coroutine[Any, Any, dict[str, Any]]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(request, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, request: Request, answering: Coroutine[Any, Any, dict[str, Any]]
    ) -> None:
        """The one place where a request is answered."""
        try:
            answer = await answering
        except StreamError as error:
            respond_error(request, error)
        except Exception as error:
            if not isinstance(error, OSError):
                self._faults.report("request", error)
            respond_error(request, ColdUnavailable(f"the catalog cannot be read: {error}"))
        except BaseException:
            respond_error(request, ShuttingDown("the server stops; ask again when it is back"))
            raise
        else:
            respond_json(request, 200, answer)

    async def close(self) -> None:
        """All requests are answered: those that still wait hear that the server stops."""
        await asyncio.sleep(0)  # each has begun: one that has not would end without an answer
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _show(self) -> dict[str, Any]:
        report = await self._garbage.look()
        waiting = [item for item, _ in report.waiting]
        return {
            "ready": {
                **_totals(report.ready),
                "listed": [_listed(item) for item in report.ready[:GARBAGE_LISTED_MAX]],
            },
            "waiting": {
                **_totals(waiting),
                "listed": [_listed(*each) for each in report.waiting[:GARBAGE_LISTED_MAX]],
            },
        }

    async def _collect(self) -> dict[str, Any]:
        items, error = await self._garbage.collect()
        if error is not None:
            gone = f"{len(items)} objects are deleted, the rest is not"
            raise ColdUnavailable(f"{gone}: {error}")
        listed = [_listed(item) for item in items[:GARBAGE_LISTED_MAX]]
        return {"deleted": {**_totals(items), "listed": listed}}


def _totals(items: Iterable[Item]) -> dict[str, int]:
    """`bytes` counts what has a size; that of a snapshot is not known."""
    sizes = [item.size for item in items]
    return {"objects": len(sizes), "bytes": sum(size or 0 for size in sizes)}


def _listed(item: Item, waits_for: str | None = None) -> dict[str, Any]:
    listed: dict[str, Any] = {"name": item.name, "bytes": item.size, "reason": item.reason}
    if waits_for is not None:
        listed["waits_for"] = waits_for
    return listed
