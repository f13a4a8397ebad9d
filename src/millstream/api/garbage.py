"""What of the cold store may go: show it, or collect it now. `GET` and `POST` of one route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.api.slow_requests import Answer, SlowRequests, json_answer
from millstream.cold.garbage import Garbage, Item
from millstream.errors import ColdUnavailable
from millstream.faults import Faults
from millstream.http.message import Request
from millstream.limits import GARBAGE_LISTED_MAX


class GarbageRoutes:
    def __init__(self, garbage: Garbage, faults: Faults) -> None:
        self._garbage = garbage
        self._requests = SlowRequests(faults, "request", _explain)
        self.running = self._requests.running

    def show(self, request: Request) -> None:
        self._requests.begin(request, self._show())

    def collect(self, request: Request) -> None:
        self._requests.begin(request, self._collect())

    async def _show(self) -> Answer:
        report = await self._garbage.look()
        waiting = [item for item, _ in report.waiting]
        shown = {
            "ready": {
                **_totals(report.ready),
                "listed": [_listed(item) for item in report.ready[:GARBAGE_LISTED_MAX]],
            },
            "waiting": {
                **_totals(waiting),
                "listed": [_listed(*each) for each in report.waiting[:GARBAGE_LISTED_MAX]],
            },
        }
        return json_answer(shown)

    async def _collect(self) -> Answer:
        items, error = await self._garbage.collect()
        if error is not None:
            gone = f"{len(items)} objects are deleted, the rest is not"
            raise ColdUnavailable(f"{gone}: {error}")
        listed = [_listed(item) for item in items[:GARBAGE_LISTED_MAX]]
        return json_answer({"deleted": {**_totals(items), "listed": listed}})


def _explain(error: Exception) -> ColdUnavailable:
    return ColdUnavailable(f"the catalog cannot be read: {error}")


def _totals(items: Iterable[Item]) -> dict[str, int]:
    """`bytes` counts what has a size; that of a snapshot is not known."""
    sizes = [item.size for item in items]
    return {"objects": len(sizes), "bytes": sum(size or 0 for size in sizes)}


def _listed(item: Item, waits_for: str | None = None) -> dict[str, Any]:
    listed: dict[str, Any] = {"name": item.name, "bytes": item.size, "reason": item.reason}
    if waits_for is not None:
        listed["waits_for"] = waits_for
    return listed
