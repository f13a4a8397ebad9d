"""Requests that wait too long get a 408 in place of their answer, which is dropped when it comes.

Not those that wait on purpose (live reads), not answers under way, and not what an operator asked
for, which takes its time.
"""

from __future__ import annotations

from millstream.api.errors import respond_error
from millstream.errors import AppendTimeout, RequestTimeout, StreamError
from millstream.http.message import Request

APPENDS = frozenset(("append", "append_batch"))
# By the label of the route. Who adds a request that waits on purpose gives it one of these.
LIVE = ("long_poll", "sse", "touch_wait", "touch_meta", "inspect")
PATIENT = frozenset((*LIVE, "operator", "flush", "garbage", "jobs", "keys", "metrics"))


class Timeouts:
    def __init__(self, append_seconds: float) -> None:
        self._are_appends_limited = append_seconds > 0

    def append_overdue(self, context: object) -> None:
        """`context` is a request, or a tuple with one, that an append waits in the journal with."""
        for part in context if isinstance(context, tuple) else (context,):
            if isinstance(part, Request):
                _answer(part, append_timeout())

    def request_overdue(self, request: Request) -> None:
        if request.route in APPENDS:
            if self._are_appends_limited:
                _answer(request, append_timeout())
        elif not _is_patient(request):
            _answer(request, RequestTimeout("request timed out"))


def append_timeout() -> AppendTimeout:
    return AppendTimeout(
        "append timed out; append outcome is unknown, check Stream-Next-Offset before retrying"
    )


def _is_patient(request: Request) -> bool:
    if request.route == "snapshot":  # its body may be large, and goes to the object store
        return request.method == b"PUT"
    return request.route in PATIENT


def _answer(request: Request, error: StreamError) -> None:
    if request.connection.give_up(request):
        respond_error(request, error)
