"""Routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from millstream.access.scopes import Scope
from millstream.api.arguments import Query
from millstream.api.batches import Batches
from millstream.api.bootstrap import Bootstraps
from millstream.api.cors import preflight_headers
from millstream.api.errors import respond_error
from millstream.api.long_poll import LongPolls
from millstream.api.namespace import NamespaceApi
from millstream.api.operations import Metrics, Readiness, respond_health
from millstream.api.paths import (
    CONTROL_ROOT,
    RESERVED_BUCKETS,
    RESERVED_STREAM,
    STREAM_ROOT,
    StreamPaths,
    bucketed_key,
    check_bucket_id,
    unescape_all,
)
from millstream.api.reads import Reads
from millstream.api.retention import RETENTION_ROOT
from millstream.api.snapshots import Snapshots
from millstream.api.sse import SseReaders
from millstream.api.subscriptions import SubscriptionRoutes
from millstream.api.writes import Writes
from millstream.errors import MethodNotAllowed, RouteNotFound, StreamError
from millstream.http.message import Request

_BUCKET_SCOPES = {
    b"GET": Scope.READ,
    b"HEAD": Scope.READ,
    b"PUT": Scope.MANAGE,
    b"DELETE": Scope.MANAGE,
}
_STREAM_SCOPES = {**_BUCKET_SCOPES, b"POST": Scope.APPEND}


class Gate(Protocol):
    """Lets a request pass, or raises what it is answered with."""

    def check(self, request: Request, scope: Scope, key: bytes | None) -> None:
        """`key` of a stream, `bucket/` for all of a bucket, None for anything at all."""
        ...


class Handlers(NamedTuple):
    """Everything the routes lead to."""

    writes: Writes
    reads: Reads
    long_polls: LongPolls
    sse: SseReaders
    namespace: NamespaceApi
    snapshots: Snapshots
    bootstraps: Bootstraps
    batches: Batches
    control: SubscriptionRoutes
    operators: tuple[tuple[bytes, Callable[[Request], None]], ...] = ()  # by start of the path


class App:
    """The handler the HTTP server calls. `metrics` is set once the server exists."""

    metrics: Metrics
    gate: Gate | None = None  # None: everybody may do everything

    def __init__(self, paths: StreamPaths, handlers: Handlers, readiness: Readiness) -> None:
        self._paths = paths
        self._known_keys = paths.keys
        self._handlers = handlers
        self._writes = handlers.writes
        self._append = handlers.writes.append
        self._operations: dict[bytes, tuple[str, Callable[[Request], None]]] = {
            b"/healthz": ("healthz", respond_health),
            b"/readyz": ("readyz", readiness.respond),
            b"/metrics": ("metrics", lambda request: self.metrics.respond(request)),
            b"/v1/streams": ("list", self._list_all),
            b"/v1/buckets": ("list", self._list_buckets),
            b"/__ursula/metrics": ("metrics", lambda request: self.metrics.respond_json(request)),
        }

    def __call__(self, request: Request) -> None:
        try:
            key = self._known_keys.get(request.path)
            if key is not None and request.method == b"POST":
                request.route = "append"
                if self.gate is not None:
                    self.gate.check(request, Scope.APPEND, key)
                self._append(request, key)
            elif request.method == b"OPTIONS":
                self._preflight(request)
            elif request.path.startswith(CONTROL_ROOT):
                self._handlers.control.handle(request, self.gate)
            elif request.path.startswith(STREAM_ROOT):
                self._handle_stream(request, self._paths.key(request.path), lenient=True)
            else:
                self._handle_other(request)
        except StreamError as error:
            respond_error(request, error)

    def _check(self, request: Request, scope: Scope, key: bytes | None) -> None:
        if self.gate is not None:
            self.gate.check(request, scope, key)

    def _handle_stream(self, request: Request, key: bytes, *, lenient: bool) -> None:
        method = request.method
        scope = _STREAM_SCOPES.get(method)
        if scope is not None:
            self._check(request, scope, key)
        if method == b"POST":
            request.route = "append"
            self._writes.append(request, key)
        elif method == b"GET":
            self._read(request, key)
        elif method == b"PUT":
            request.route = "create"
            self._writes.create(request, key, implies_bucket=lenient)
        elif method == b"HEAD":
            request.route = "head"
            self._handlers.reads.head(request, key)
        elif method == b"DELETE":
            request.route = "delete"
            self._writes.delete(request, key)
        else:
            raise _not_allowed("GET, HEAD, PUT, POST, DELETE")

    def _read(self, request: Request, key: bytes) -> None:
        query = Query(request.query)
        request.route = "read"
        live = query.live()
        if live is None:
            self._handlers.reads.catch_up(request, key, query)
        elif live == b"sse":
            request.route = "sse"
            self._handlers.sse.open(request, key, query)
        else:
            request.route = "long_poll"
            self._handlers.long_polls.open(request, key, query)

    def _handle_other(self, request: Request) -> None:
        if request.method == b"PUT" and request.path[1:] in RESERVED_BUCKETS:
            check_bucket_id(request.path[1:], new=True)
        operation = self._operations.get(request.path)
        if operation is None:
            if request.path.startswith(b"/__"):
                self._handle_operator(request)
            else:
                self._handle_bucketed(request)
            return
        if request.method not in (b"GET", b"HEAD"):
            raise _not_allowed("GET, HEAD")
        if request.path.endswith(b"/metrics"):
            self._check(request, Scope.ADMIN, None)
        elif request.path.startswith(b"/v1/"):
            self._check(request, Scope.READ, None)
        request.route, respond = operation
        respond(request)

    def _handle_operator(self, request: Request) -> None:
        request.route = "operator"
        for root, handle in self._handlers.operators:
            if request.path.startswith(root):
                if root == RETENTION_ROOT:
                    scope = Scope.READ if request.method in (b"GET", b"HEAD") else Scope.MANAGE
                    self._check(request, scope, unescape_all(request.path[len(root) :]) + b"/")
                else:
                    self._check(request, Scope.ADMIN, None)
                handle(request)
                return
        raise RouteNotFound("nothing is here for operators; see docs/operations.md")

    def _list_all(self, request: Request) -> None:
        self._handlers.namespace.listings.list_all(request, Query(request.query))

    def _list_buckets(self, request: Request) -> None:
        self._handlers.namespace.listings.list_buckets(request, Query(request.query))

    # /{bucket}, /{bucket}/streams, /{bucket}/{stream} and what hangs below a stream

    def _handle_bucketed(self, request: Request) -> None:
        root, *parts = request.path.split(b"/")
        is_route = not root and 1 <= len(parts) <= 4 and parts[0] not in (b"", b"v1")
        if not is_route or parts[0] in RESERVED_BUCKETS:
            raise RouteNotFound("nothing is here; try /v1/stream/{path} or /{bucket}/{stream}")
        if len(parts) == 1:
            self._handle_bucket(request, unescape_all(parts[0]))
        elif len(parts) == 2 and parts[1] == RESERVED_STREAM and request.method == b"GET":
            request.route = "list"
            bucket = unescape_all(parts[0])
            self._check(request, Scope.READ, None)
            self._handlers.namespace.list_streams(request, bucket, Query(request.query))
        else:
            key = bucketed_key(unescape_all(parts[0]), parts[1])
            if len(parts) == 2:
                self._handle_stream(request, key, lenient=False)
            else:
                self._handle_below_stream(request, key, parts[2:])

    def _handle_bucket(self, request: Request, bucket: bytes) -> None:
        request.route = "bucket"
        namespace = self._handlers.namespace
        scope = _BUCKET_SCOPES.get(request.method)
        if scope is not None:
            self._check(request, scope, bucket + b"/")
        if request.method == b"PUT":
            namespace.create(request, bucket)
        elif request.method in (b"GET", b"HEAD"):
            namespace.describe(request, bucket)
        elif request.method == b"DELETE":
            namespace.delete(request, bucket)
        else:
            raise _not_allowed("GET, HEAD, PUT, DELETE")

    def _handle_below_stream(self, request: Request, key: bytes, below: list[bytes]) -> None:
        method, what = request.method, below[0]
        if what == b"snapshot":
            request.route = "snapshot"
            self._handle_snapshot(request, key, below[1:])
        elif what == b"bootstrap" and len(below) == 1:
            request.route = "bootstrap"
            if method != b"GET":
                raise _not_allowed("GET")
            self._check(request, Scope.READ, key)
            self._handlers.bootstraps.open(request, key, Query(request.query))
        elif what == b"append-batch" and len(below) == 1:
            request.route = "append_batch"
            if method != b"POST":
                raise _not_allowed("POST")
            self._check(request, Scope.APPEND, key)
            self._handlers.batches.append(request, key)
        else:
            raise RouteNotFound("a stream has /snapshot, /bootstrap and /append-batch below it")

    def _handle_snapshot(self, request: Request, key: bytes, offset: list[bytes]) -> None:
        snapshots, method = self._handlers.snapshots, request.method
        if not offset:
            if method not in (b"GET", b"HEAD"):
                raise _not_allowed("GET, HEAD")
            self._check(request, Scope.READ, key)
            snapshots.redirect(request, key)
            return
        token = unescape_all(offset[0])
        scope = _BUCKET_SCOPES.get(method)
        if scope is not None:
            self._check(request, scope, key)
        if method == b"PUT":
            snapshots.publish(request, key, token)
        elif method in (b"GET", b"HEAD"):
            snapshots.read(request, key, token)
        elif method == b"DELETE":
            snapshots.delete(request, key, token)
        else:
            raise _not_allowed("GET, HEAD, PUT, DELETE")

    @staticmethod
    def _preflight(request: Request) -> None:
        request.route = "preflight"
        request.respond(204, preflight_headers(request.headers))


def _not_allowed(methods: str) -> MethodNotAllowed:
    return MethodNotAllowed(f"use one of {methods}", f"{methods}, OPTIONS")
