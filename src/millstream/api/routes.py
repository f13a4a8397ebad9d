"""Every route of the server, as rows of one table: path, methods with handler and scope, label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.access.scopes import Scope
from millstream.api.arguments import Query
from millstream.api.batches import Batches
from millstream.api.bootstrap import Bootstraps
from millstream.api.cors import preflight_headers
from millstream.api.flush_all import FlushAll
from millstream.api.flush_cold import FlushCold
from millstream.api.garbage import GarbageRoutes
from millstream.api.inspection import ServerDescriptors, StreamDescriptors
from millstream.api.jobs import JobRoutes
from millstream.api.keys import KeyRoutes
from millstream.api.long_poll import LongPolls
from millstream.api.namespace import NamespaceApi
from millstream.api.operations import Metrics, Readiness, respond_health, respond_health_json
from millstream.api.paths import (
    BUCKET,
    BUCKETED_STREAM,
    CONTROL_ROOT,
    LISTING,
    V1_STREAM,
    SubResource,
    Surface,
)
from millstream.api.reads import Reads
from millstream.api.retention import RetentionRoutes
from millstream.api.routing import Action, Route
from millstream.api.rules import RulesRoutes
from millstream.api.shaped_reads import ShapedReads
from millstream.api.snapshots import Snapshots
from millstream.api.sse import SseReaders
from millstream.api.subscriptions import SubscriptionRoutes, subscription_id_of
from millstream.api.touch import TouchRoutes
from millstream.api.writes import Writes
from millstream.errors import InvalidRequest, InvalidSubscriptionRequest, RouteNotFound
from millstream.http.message import Request

GET, HEAD, PUT, POST, DELETE = b"GET", b"HEAD", b"PUT", b"POST", b"DELETE"
READ, APPEND, MANAGE = Scope.READ, Scope.APPEND, Scope.MANAGE
SUBSCRIBE, ADMIN = Scope.SUBSCRIBE, Scope.ADMIN

_SUBSCRIPTIONS = CONTROL_ROOT.decode() + "subscriptions/{subscription}"
_BUCKETED = frozenset((Surface.BUCKETED,))
_HAS_WAKE_TOKEN = "it carries the token of its wake"

SUB_RESOURCES = (
    SubResource("{stream}/snapshot", _BUCKETED),
    SubResource("{stream}/snapshot/{offset}", _BUCKETED),
    SubResource("{stream}/bootstrap", _BUCKETED),
    SubResource("{stream}/append-batch", _BUCKETED),
    SubResource("{stream}/_schema"),
    SubResource("{stream}/_profile"),
    SubResource("{stream}/pk/{key}"),
    SubResource("{stream}/touch/meta"),
    SubResource("{stream}/touch/wait"),
    SubResource("{stream}/touch/templates/activate"),
    SubResource("{stream}/_details"),
    SubResource("{stream}/_index_status"),
)

Handle = Callable[..., None]


class ColdRoutes(NamedTuple):
    """For operators of a server that has a cold tier."""

    jobs: JobRoutes
    garbage: GarbageRoutes
    flush_all: FlushAll


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
    rules: RulesRoutes
    shaped: ShapedReads
    descriptors: StreamDescriptors
    control: SubscriptionRoutes
    touch: TouchRoutes
    flush_cold: FlushCold
    retention: RetentionRoutes
    keys: KeyRoutes
    cold: ColdRoutes | None


def build_rows(
    handlers: Handlers, readiness: Readiness, metrics: Metrics, server: ServerDescriptors
) -> Iterator[Route]:
    yield Route(
        "*", "preflight", {b"OPTIONS": _open(_preflight, "it does nothing")}, is_everywhere=True
    )
    alive = _open(respond_health, "balancers ask, and learn one word")
    yield Route("/healthz", "healthz", {GET: alive, HEAD: alive}, is_everywhere=True)
    also_alive = _open(respond_health_json, "the same for clients that expect JSON")
    yield Route("/health", "healthz", {GET: also_alive, HEAD: also_alive}, is_everywhere=True)
    ready = _open(readiness.respond, "balancers ask, and learn what does not work")
    yield Route("/readyz", "readyz", {GET: ready, HEAD: ready}, is_everywhere=True)
    yield from _stream_rows(handlers)
    yield from _below_stream_rows(handlers)
    yield from _touch_rows(handlers.touch)
    yield from _bucket_rows(handlers.namespace)
    yield from _subscription_rows(handlers.control)
    yield from _operator_rows(handlers, metrics, server)


def _open(handle: Handle, because: str) -> Action:
    return Action(handle, None, open_because=because)


def _preflight(request: Request) -> None:
    request.respond(204, preflight_headers(request.headers))


def _stream_rows(handlers: Handlers) -> Iterator[Route]:
    writes = handlers.writes

    def create_in_bucket(request: Request, key: bytes) -> None:
        writes.create(request, key, implies_bucket=False)

    def create(request: Request, key: bytes) -> None:
        writes.create(request, key, implies_bucket=True)

    actions = {
        POST: Action(writes.append, APPEND, "append"),
        GET: Action(_read(handlers), READ, "read"),
        HEAD: Action(handlers.reads.head, READ, "head"),
        DELETE: Action(writes.delete, MANAGE, "delete"),
    }
    yield Route(V1_STREAM, "other", {**actions, PUT: Action(create, MANAGE, "create")})
    in_bucket = Action(create_in_bucket, MANAGE, "create")
    yield Route(BUCKETED_STREAM, "other", {**actions, PUT: in_bucket})


def _read(handlers: Handlers) -> Handle:
    def read(request: Request, key: bytes) -> None:
        query = Query(request.query)
        live = query.live()
        if handlers.shaped.open(request, key, query, live):
            return
        if live is None:
            handlers.reads.catch_up(request, key, query)
        elif live == b"sse":
            request.route = "sse"
            handlers.sse.open(request, key, query)
        else:
            request.route = "long_poll"
            handlers.long_polls.open(request, key, query)

    return read


def _below_stream_rows(handlers: Handlers) -> Iterator[Route]:
    snapshots, bootstraps = handlers.snapshots, handlers.bootstraps

    def bootstrap(request: Request, key: bytes) -> None:
        bootstraps.open(request, key, Query(request.query))

    latest = Action(snapshots.redirect, READ)
    yield Route("{stream}/snapshot", "snapshot", {GET: latest, HEAD: latest})
    read = Action(snapshots.read, READ)
    yield Route(
        "{stream}/snapshot/{offset}",
        "snapshot",
        {
            GET: read,
            HEAD: read,
            PUT: Action(snapshots.publish, MANAGE),
            DELETE: Action(snapshots.delete, MANAGE),
        },
    )
    yield Route("{stream}/bootstrap", "bootstrap", {GET: Action(bootstrap, READ)})
    yield from _rules_rows(handlers)
    descriptors = handlers.descriptors
    details, index_status = (
        Action(handle, READ) for handle in (descriptors.details, descriptors.index_status)
    )
    yield Route("{stream}/_details", "inspect", {GET: details, HEAD: details})
    yield Route("{stream}/_index_status", "inspect", {GET: index_status, HEAD: index_status})
    append = Action(handlers.batches.append, APPEND)
    yield Route("{stream}/append-batch", "append_batch", {POST: append})


def _rules_rows(handlers: Handlers) -> Iterator[Route]:
    rules, reads = handlers.rules, handlers.shaped

    def read_key(request: Request, key: bytes, routing_key: bytes) -> None:
        query = Query(request.query)
        if not routing_key:
            raise InvalidRequest("name a routing key: /pk/{key}")
        reads.open(request, key, query, query.live(), routing_key)

    yield Route(
        "{stream}/_schema",
        "rules",
        {GET: Action(rules.describe_schema, READ), POST: Action(rules.update_schema, MANAGE)},
    )
    yield Route(
        "{stream}/_profile",
        "rules",
        {GET: Action(rules.describe_profile, READ), POST: Action(rules.update_profile, MANAGE)},
    )
    yield Route("{stream}/pk/{key}", "read", {GET: Action(read_key, READ)})


def _touch_rows(touch: TouchRoutes) -> Iterator[Route]:
    yield Route("{stream}/touch/meta", "touch_meta", {GET: Action(touch.meta, READ)})
    yield Route("{stream}/touch/wait", "touch_wait", {POST: Action(touch.wait, READ)})
    activate = Action(touch.activate, READ)
    yield Route("{stream}/touch/templates/activate", "touch_templates", {POST: activate})


def _bucket_rows(namespace: NamespaceApi) -> Iterator[Route]:
    listings = namespace.listings

    def list_streams(request: Request, bucket: bytes) -> None:
        namespace.list_streams(request, bucket, Query(request.query))

    def list_all(request: Request) -> None:
        listings.list_all(request, Query(request.query))

    def list_buckets(request: Request) -> None:
        listings.list_buckets(request, Query(request.query))

    describe = Action(namespace.describe, READ)
    yield Route(
        BUCKET,
        "bucket",
        {
            GET: describe,
            HEAD: describe,
            PUT: Action(namespace.create, MANAGE),
            DELETE: Action(namespace.delete, MANAGE),
        },
    )
    yield Route(LISTING, "list", {GET: Action(list_streams, READ)})
    all_streams, all_buckets = Action(list_all, READ), Action(list_buckets, READ)
    yield Route("/v1/streams", "list", {GET: all_streams, HEAD: all_streams})
    yield Route("/v1/buckets", "list", {GET: all_buckets, HEAD: all_buckets})


def _subscription_rows(control: SubscriptionRoutes) -> Iterator[Route]:
    wakes = control.wakes

    def row(below: str, **actions: Action) -> Route:
        methods = {name.encode(): action for name, action in actions.items()}
        return Route(_SUBSCRIPTIONS + below, "subscriptions", methods)

    def of(handle: Callable[..., None]) -> Handle:
        def handle_id(request: Request, raw_id: bytes, *rest: bytes) -> None:
            handle(request, subscription_id_of(raw_id), *rest)

        return handle_id

    def covered(handle: Callable[..., None]) -> Handle:
        def handle_covered(request: Request, subscription_id: str, *rest: bytes) -> None:
            control.check_covered(request, subscription_id)
            handle(request, subscription_id, *rest)

        return of(handle_covered)

    jwks = _open(control.respond_jwks, "receivers of webhooks check signatures with public keys")
    yield Route(CONTROL_ROOT.decode() + "jwks.json", "subscriptions", {GET: jwks, HEAD: jwks})
    describe = Action(covered(control.describe), SUBSCRIBE)
    yield row(
        "",
        GET=describe,
        HEAD=describe,
        PUT=Action(of(control.create), SUBSCRIBE),
        DELETE=Action(covered(control.delete), SUBSCRIBE),
    )
    yield row("/streams", POST=Action(covered(control.link), SUBSCRIBE))
    yield row("/streams/{stream*}", DELETE=Action(covered(control.unlink), SUBSCRIBE))
    yield row("/claim", POST=Action(covered(wakes.claim), SUBSCRIBE))
    yield row("/callback", POST=_open(of(wakes.callback), _HAS_WAKE_TOKEN))
    yield row("/ack", POST=_open(of(wakes.ack), _HAS_WAKE_TOKEN))
    yield row("/release", POST=_open(of(wakes.release), _HAS_WAKE_TOKEN))
    yield Route(
        CONTROL_ROOT.decode() + "{rest*}",
        "subscriptions",
        {},
        otherwise=lambda: InvalidSubscriptionRequest("stream paths below __ds are reserved"),
    )


def _operator_rows(
    handlers: Handlers, metrics: Metrics, server: ServerDescriptors
) -> Iterator[Route]:
    def row(pattern: str, label: str, **actions: Handle) -> Route:
        methods = {name.encode(): Action(handle, ADMIN) for name, handle in actions.items()}
        return Route(pattern, label, methods, is_operator=True)

    retention, cold = handlers.retention, handlers.cold
    yield row("/metrics", "metrics", GET=metrics.respond, HEAD=metrics.respond)
    yield row("/__ursula/metrics", "metrics", GET=metrics.respond_json, HEAD=metrics.respond_json)
    yield row("/v1/server/_details", "operator", GET=server.details, HEAD=server.details)
    yield row("/v1/server/_mem", "operator", GET=server.memory, HEAD=server.memory)
    flush_cold = "/__ursula/flush-cold/{bucket}/{stream}"
    yield row(flush_cold, "operator", POST=handlers.flush_cold.handle)
    yield row(
        "/__millstream/retention/{bucket}",
        "operator",
        GET=retention.describe,
        HEAD=retention.describe,
        PUT=retention.set,
        DELETE=retention.clear,
    )
    keys = handlers.keys
    yield row("/__millstream/keys", "keys", GET=keys.list, POST=keys.create)
    yield row("/__millstream/keys/{id}", "keys", DELETE=keys.revoke)
    if cold is not None:
        yield from _cold_rows(cold, row)
    yield Route(
        "/__{rest*}",
        "operator",
        {},
        is_operator=True,
        otherwise=lambda: RouteNotFound("nothing is here for operators; see docs/operations.md"),
    )


def _cold_rows(cold: ColdRoutes, row: Callable[..., Route]) -> Iterator[Route]:
    def job(request: Request, _: bytes) -> None:
        cold.jobs.handle(request)

    yield row("/__millstream/flush", "flush", POST=cold.flush_all.handle)
    garbage = cold.garbage
    yield row("/__millstream/garbage", "garbage", GET=garbage.show, POST=garbage.collect)
    yield row("/__millstream/jobs/{job*}", "jobs", GET=job, PUT=job, POST=job, DELETE=job)
