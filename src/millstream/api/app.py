"""Routes, CORS, and what every answer carries."""

from __future__ import annotations

from collections.abc import Callable

from millstream.api.arguments import Query
from millstream.api.errors import respond_error
from millstream.api.long_poll import LongPolls
from millstream.api.operations import Metrics, respond_health, respond_ready
from millstream.api.paths import CONTROL_ROOT, STREAM_ROOT, StreamPaths
from millstream.api.reads import Reads
from millstream.api.sse import Subscriptions
from millstream.api.subscriptions import SubscriptionRoutes
from millstream.api.writes import Writes
from millstream.errors import MethodNotAllowed, RouteNotFound, StreamError
from millstream.http.message import Request

_EXPOSED = ", ".join(
    (
        "Stream-Next-Offset, Stream-End-Offset, Stream-Up-To-Date, Stream-Closed, Stream-Cursor",
        "Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Earliest-Offset",
        "Stream-Snapshot-Offset, Producer-Epoch, Producer-Seq, Producer-Expected-Seq",
        "Producer-Received-Seq, ETag, Location, Retry-After",
    )
)
_ALLOWED = ", ".join(
    (
        "Authorization, Content-Type, If-None-Match, Accept, Cache-Control, Last-Event-ID",
        "Stream-TTL, Stream-Expires-At, Stream-Seq, Stream-Closed, Stream-Forked-From",
        "Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq",
    )
)
_PREFLIGHT = (
    "access-control-allow-methods: GET, HEAD, PUT, POST, DELETE, OPTIONS\r\n"
    f"access-control-allow-headers: {_ALLOWED}\r\n"
    "access-control-max-age: 86400\r\n"
).encode()
_STREAM_METHODS = "GET, HEAD, PUT, POST, DELETE, OPTIONS"


def fixed_headers(cors_origin: str) -> bytes:
    """On every answer, errors and refusals included."""
    lines = [
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: cross-origin",
    ]
    if cors_origin:
        lines += [
            f"access-control-allow-origin: {cors_origin}",
            f"access-control-expose-headers: {_EXPOSED}",
        ]
    return "".join(line + "\r\n" for line in lines).encode()


class App:
    """The handler the HTTP server calls. `metrics` and `control` are set before it is used."""

    metrics: Metrics
    control: SubscriptionRoutes

    def __init__(
        self,
        paths: StreamPaths,
        writes: Writes,
        reads: Reads,
        long_polls: LongPolls,
        subscriptions: Subscriptions,
    ) -> None:
        self._paths = paths
        self._writes = writes
        self._reads = reads
        self._long_polls = long_polls
        self._subscriptions = subscriptions
        self._operations: dict[bytes, tuple[str, Callable[[Request], None]]] = {
            b"/healthz": ("healthz", respond_health),
            b"/readyz": ("readyz", lambda request: respond_ready(request, self.is_ready)),
            b"/metrics": ("metrics", lambda request: self.metrics.respond(request)),
        }
        self.is_ready = False

    def __call__(self, request: Request) -> None:
        try:
            if request.path.startswith(STREAM_ROOT):
                self._handle_stream(request)
            else:
                self._handle_other(request)
        except StreamError as error:
            respond_error(request, error)

    def _handle_stream(self, request: Request) -> None:
        method = request.method
        if request.path.startswith(CONTROL_ROOT) and method != b"OPTIONS":
            self.control.handle(request)
        elif method == b"POST":
            request.route = "append"
            self._writes.append(request, self._paths.key(request.path))
        elif method == b"GET":
            self._read(request, self._paths.key(request.path))
        elif method == b"PUT":
            request.route = "create"
            self._writes.create(request, self._paths.key(request.path))
        elif method == b"HEAD":
            request.route = "head"
            self._reads.head(request, self._paths.key(request.path))
        elif method == b"DELETE":
            request.route = "delete"
            self._writes.delete(request, self._paths.key(request.path))
        elif method == b"OPTIONS":
            self._preflight(request)
        else:
            raise MethodNotAllowed("streams know GET, HEAD, PUT, POST and DELETE", _STREAM_METHODS)

    def _read(self, request: Request, key: bytes) -> None:
        query = Query(request.query)
        request.route = "read"
        live = query.live()
        if live is None:
            self._reads.catch_up(request, key, query)
        elif live == b"sse":
            request.route = "sse"
            self._subscriptions.open(request, key, query)
        else:
            request.route = "long_poll"
            self._long_polls.open(request, key, query)

    def _handle_other(self, request: Request) -> None:
        if request.method == b"OPTIONS":
            self._preflight(request)
            return
        operation = self._operations.get(request.path)
        if operation is None:
            raise RouteNotFound("there is nothing here; streams live below /v1/stream/")
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("use GET", "GET, HEAD, OPTIONS")
        request.route, respond = operation
        respond(request)

    @staticmethod
    def _preflight(request: Request) -> None:
        request.route = "preflight"
        request.respond(204, _PREFLIGHT)
