"""From a request to its handler: the table says which, the gate says whether."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from millstream.access.scopes import Scope
from millstream.api.errors import respond_error
from millstream.api.paths import V1_STREAM
from millstream.api.routing import Route, RouteTable
from millstream.api.system_streams import check_use
from millstream.errors import RouteNotFound, StreamError
from millstream.http.message import Request
from millstream.state.system_streams import SYSTEM_KEYS


class Gate(Protocol):
    """Who may do what, on a server with access keys."""

    def check(self, request: Request, scope: Scope, key: bytes | None, /) -> None:
        """Returns when the request may go on, raises StreamError when not. `key` is that of a
        stream, or of a bucket its id and a slash; None: the request is about neither."""
        ...


class Part(Enum):
    """Which routes an address has. Health and readiness are on each."""

    ALL = "all"
    CLIENTS = "clients"
    OPERATORS = "operators"

    def has(self, route: Route) -> bool:
        if self is Part.ALL or route.is_everywhere:
            return True
        return route.is_operator is (self is Part.OPERATORS)


class App:
    """Answers the requests of one address: `handle` is the HTTP server's handler."""

    gate: Gate | None = None  # None: requests need no key. It may come with the first key

    def __init__(self, table: RouteTable, part: Part = Part.ALL, elsewhere: str = "") -> None:
        """`elsewhere` tells where the routes are that are not here."""
        self._table = table
        self._part = part
        self._elsewhere = elsewhere
        append = table.row(V1_STREAM).actions[b"POST"]
        self._append = append.handle
        self._known_keys = {} if part is Part.OPERATORS else table.paths.keys

    def handle(self, request: Request) -> None:
        try:
            key = self._known_keys.get(request.path)
            if key is not None and request.method == b"POST":
                request.route = "append"
                if self.gate is not None:
                    self.gate.check(request, Scope.APPEND, key)
                self._append(request, key)
            else:
                self._dispatch(request)
        except StreamError as error:
            respond_error(request, error)

    def _dispatch(self, request: Request) -> None:
        route, action, key, arguments = self._table.resolve(request.method, request.path)
        request.route = route.label
        if not self._part.has(route):
            raise RouteNotFound(self._elsewhere)
        if action is None:
            raise route.refusal()
        request.route = action.label or route.label
        if self.gate is not None and action.scope is not None:
            self.gate.check(request, action.scope, key)
        if key in SYSTEM_KEYS:
            assert key is not None
            check_use(request, action, key)
        action.handle(request, *arguments)
