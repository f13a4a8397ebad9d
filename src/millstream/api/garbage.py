"""What of the cold store may go: show it, or collect it now. `GET` and `POST` of one route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.cold.garbage import Collected, Garbage, Item, Report
from millstream.errors import ColdUnavailable
from millstream.http.message import Request
from millstream.limits import GARBAGE_LISTED_MAX


class GarbageRoutes:
    def __init__(self, garbage: Garbage) -> None:
        self._garbage = garbage

    def show(self, request: Request) -> None:
        self._garbage.look(lambda report: _respond_report(request, report))

    def collect(self, request: Request) -> None:
        self._garbage.collect(lambda collected: _respond_collected(request, collected))


def _respond_report(request: Request, report: Report | Exception) -> None:
    if isinstance(report, Exception):
        respond_error(request, ColdUnavailable(f"the catalog cannot be read: {report}"))
        return
    waiting = [item for item, _ in report.waiting]
    listed = [_listed(item, waits_for) for item, waits_for in report.waiting[:GARBAGE_LISTED_MAX]]
    respond_json(
        request,
        200,
        {
            "ready": {
                **_totals(report.ready),
                "listed": [_listed(item) for item in report.ready[:GARBAGE_LISTED_MAX]],
            },
            "waiting": {**_totals(waiting), "listed": listed},
        },
    )


def _respond_collected(request: Request, collected: Collected) -> None:
    if collected.error is not None:
        gone = f"{len(collected.items)} objects are deleted, the rest is not"
        respond_error(request, ColdUnavailable(f"{gone}: {collected.error}"))
        return
    listed = [_listed(item) for item in collected.items[:GARBAGE_LISTED_MAX]]
    respond_json(request, 200, {"deleted": {**_totals(collected.items), "listed": listed}})


def _totals(items: Iterable[Item]) -> dict[str, int]:
    """`bytes` counts what has a size; that of a snapshot is not known."""
    sizes = [item.size for item in items]
    return {"objects": len(sizes), "bytes": sum(size or 0 for size in sizes)}


def _listed(item: Item, waits_for: str | None = None) -> dict[str, Any]:
    listed: dict[str, Any] = {"name": item.name, "bytes": item.size, "reason": item.reason}
    if waits_for is not None:
        listed["waits_for"] = waits_for
    return listed
