"""A table of routes, and which of them a request asks for. The rows are in routes.py.

Three kinds of patterns. Exact paths, such as `/healthz`. Paths with `{parameter}` segments, where
`{parameter*}` takes all that is left: they live below `/__…` and `/v1/stream/__ds/`, where no
stream can be. And paths that name a bucket, a stream or something below a stream: those StreamPaths
knows (paths.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millstream.access.scopes import Scope
from millstream.api.paths import (
    BELOW_STREAM,
    BUCKETED_STREAM,
    CONTROL_ROOT,
    LISTING,
    RESERVED_BUCKETS,
    RESERVED_STREAM,
    StreamPaths,
    bucketed_key,
    check_bucket_id,
)
from millstream.errors import MethodNotAllowed, StreamError

OPERATORS_ROOT = b"/__"

_ORDER = (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE", b"OPTIONS")


class Action(NamedTuple):
    """What one method of a route does. `handle` gets the request, then what the path names."""

    handle: Callable[..., None]
    scope: Scope | None
    label: str = ""  # for metrics; else that of the route
    open_because: str = ""  # why it has no scope


@dataclass(frozen=True)
class Route:
    pattern: str
    label: str  # for metrics
    actions: Mapping[bytes, Action]
    is_operator: bool = False
    is_everywhere: bool = False  # on the address for clients and on that for operators
    otherwise: Callable[[], StreamError] | None = None  # the answer of a row without actions

    @property
    def allow(self) -> str:
        methods = [method.decode() for method in _ORDER if method in self.actions]
        return ", ".join(methods)

    def refusal(self) -> StreamError:
        """For a method that it does not have."""
        if self.otherwise is not None:
            return self.otherwise()
        return MethodNotAllowed(f"use one of {self.allow}", f"{self.allow}, OPTIONS")


class Match(NamedTuple):
    """What a request asks for. No action: the route does not have its method."""

    route: Route
    action: Action | None
    key: bytes | None  # of a stream; of a bucket its id and a slash; None: neither
    arguments: tuple[bytes, ...]  # for the handler


class RouteTable:
    def __init__(self, rows: Iterable[Route], paths: StreamPaths) -> None:
        """Of two rows that fit a path, the first one counts."""
        self.rows = tuple(rows)
        self.paths = paths
        self._by_pattern = {row.pattern: row for row in self.rows}
        self._exact = {
            row.pattern.encode(): row
            for row in self.rows
            if row.pattern.startswith("/") and "{" not in row.pattern
        }
        self._patterns = [
            (tuple(row.pattern.encode().split(b"/")), row)
            for row in self.rows
            if row.pattern.encode().startswith((OPERATORS_ROOT, CONTROL_ROOT))
        ]
        below = {row.pattern for row in self.rows if row.pattern.startswith(BELOW_STREAM)}
        assert below == paths.patterns_below, "each is declared, and has a row"
        self._preflight = self._by_pattern["*"]

    def row(self, pattern: str) -> Route:
        return self._by_pattern[pattern]

    def resolve(self, method: bytes, path: bytes) -> Match:
        """Raises StreamError for a path that names nothing, or nothing well-formed."""
        if method == b"OPTIONS":
            return Match(self._preflight, self._preflight.actions[method], None, ())
        if method == b"PUT" and path[1:] in RESERVED_BUCKETS:
            check_bucket_id(path[1:], new=True)
        key: bytes | None = None
        arguments: tuple[bytes, ...] = ()
        route = self._exact.get(path)
        if route is None and path.startswith((OPERATORS_ROOT, CONTROL_ROOT)):
            route, arguments = self._match(path)
        elif route is None:
            place = self.paths.resolve(path)
            if place.pattern == LISTING and method != b"GET":
                self._refuse_listing(method, place.arguments[0])
            route, key, arguments = self._by_pattern[place.pattern], place.key, place.arguments
        return Match(route, route.actions.get(method), key, arguments)

    def _match(self, path: bytes) -> tuple[Route, tuple[bytes, ...]]:
        if path.startswith(CONTROL_ROOT):
            path = path.removesuffix(b"/")
        segments = path.split(b"/")
        for pattern, route in self._patterns:
            arguments = _arguments(pattern, segments)
            if arguments is not None:
                return route, arguments
        raise AssertionError(f"no row takes what is left of {path!r}")

    def _refuse_listing(self, method: bytes, bucket: bytes) -> None:
        """To write to a stream called `streams` is an attempt at a name that no stream can have."""
        if method in self._by_pattern[BUCKETED_STREAM].actions:
            bucketed_key(bucket, RESERVED_STREAM)


def _arguments(pattern: tuple[bytes, ...], segments: list[bytes]) -> tuple[bytes, ...] | None:
    """What the segments give for the parameters; None when they do not fit."""
    found: list[bytes] = []
    for index, wanted in enumerate(pattern):
        if wanted.endswith(b"*}"):
            return (*found, b"/".join(segments[index:])) if index <= len(segments) else None
        if index >= len(segments):
            return None
        if wanted.startswith(b"{"):
            found.append(segments[index])
        elif wanted != segments[index]:
            return None
    return tuple(found) if len(segments) == len(pattern) else None
