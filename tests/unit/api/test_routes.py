"""A walk through the table of routes: nothing is open by accident, nothing documented misses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.access.scopes import Scope
from millstream.api.app import App, Part
from millstream.api.paths import (
    BELOW_STREAM,
    BUCKETED_STREAM,
    LISTING,
    V1_STREAM,
    StreamPaths,
    SubResource,
    Surface,
)
from millstream.api.routes import SUB_RESOURCES, Handlers, build_rows
from millstream.api.routing import Action, Route, RouteTable
from millstream.errors import InvalidRequest, RouteNotFound
from millstream.http.message import Request
from tests.unit.api.fake_request import FakeRequest

METHODS = (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE")
DOCS = Path(__file__).parents[3] / "docs"
STREAM_NAMES = {sub.segments[0].decode() for sub in SUB_RESOURCES}


class Anything:
    """Stands for every handler; `calls` has what reached one."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, request: Request, *arguments: Any, **named: Any) -> None:
        self.calls.append(arguments)


CALLS: list[tuple[Any, ...]] = []
ANYTHING = cast(Any, Anything(CALLS))
HANDLERS = Handlers(**dict.fromkeys(Handlers._fields, ANYTHING))
TABLE = RouteTable(build_rows(HANDLERS, ANYTHING, ANYTHING, ANYTHING), StreamPaths(SUB_RESOURCES))
ROWS = [row for row in TABLE.rows if row.pattern != "*"]
CATCH_ALLS = {"/__{rest*}", "/v1/stream/__ds/{rest*}"}


def path_of(pattern: str) -> bytes:
    """A path that fits."""
    if pattern.startswith(BELOW_STREAM):
        pattern = "/{bucket}/" + pattern
    named = pattern.replace("{bucket}", "bucket").replace("{offset}", "0_0")
    return re.sub(r"\{[^}]*\}", "x", named).encode()


def asked(method: bytes, path: bytes) -> FakeRequest:
    request = FakeRequest()
    fields = {"method": method, "path": path, "query": b"", "route": "other", "body": b""}
    vars(request).update(fields)
    return request


def ids(rows: list[Route]) -> list[str]:
    return [row.pattern for row in rows]


@pytest.mark.parametrize("row", TABLE.rows, ids=ids(list(TABLE.rows)))
def test_every_method_needs_a_scope_or_says_why_not(row: Route) -> None:
    assert row.label
    for action in row.actions.values():
        assert (action.scope is None) is bool(action.open_because)


@pytest.mark.parametrize("row", TABLE.rows, ids=ids(list(TABLE.rows)))
def test_what_is_for_operators_needs_the_scope_of_operators(row: Route) -> None:
    scopes = {action.scope for action in row.actions.values()}
    assert row.is_operator is row.pattern.startswith(("/metrics", "/__", "/v1/server/"))
    assert scopes <= {Scope.ADMIN} if row.is_operator else Scope.ADMIN not in scopes


def test_only_these_are_open() -> None:
    is_open = {
        row.pattern for row in TABLE.rows for action in row.actions.values() if not action.scope
    }
    wakes = "/v1/stream/__ds/subscriptions/{subscription}/"
    assert is_open == {
        *("*", "/health", "/healthz", "/readyz", "/v1/stream/__ds/jwks.json"),
        *(wakes + "callback", wakes + "ack", wakes + "release"),
    }


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_a_path_of_each_row_leads_to_it(row: Route) -> None:
    path = path_of(row.pattern)
    match = TABLE.resolve(b"GET", path)
    assert match.route is row
    assert match.action is row.actions.get(b"GET")


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_a_method_that_a_route_does_not_have_is_405_with_those_it_has(row: Route) -> None:
    if row.pattern in CATCH_ALLS:
        return
    app = App(TABLE)
    has = ", ".join(m.decode() for m in METHODS if m in row.actions)
    refused = [b"PATCH", b"TRACE", *(m for m in METHODS if m not in row.actions)]
    for method in refused:
        if row.pattern == LISTING and method in METHODS:
            continue  # below
        if method == b"PUT" and row.pattern in ("/health", "/healthz", "/readyz", "/metrics"):
            continue  # a bucket's id that is reserved: 400
        request = asked(method, path_of(row.pattern))
        app.handle(request.request)
        status, headers, _ = request.answer
        assert (status, headers["allow"]) == (405, f"{has}, OPTIONS")


@pytest.mark.parametrize("method", [b"HEAD", b"PUT", b"POST", b"DELETE"])
def test_no_stream_is_called_like_the_listing(method: bytes) -> None:
    with pytest.raises(InvalidRequest, match="reserved"):
        TABLE.resolve(method, b"/bucket/streams")


@pytest.mark.parametrize(
    "path", [b"*", b"x", b"//", b"/v1", b"/v1/nothing", b"/console", b"/a/b/c/d/e"]
)
def test_what_is_no_route_is_not_found(path: bytes) -> None:
    with pytest.raises(RouteNotFound):
        TABLE.resolve(b"GET", path)


@pytest.mark.parametrize("path", [b"/", b"*", b"/v1/stream/a//b", b"/healthz", b"/%zz/x"])
def test_a_preflight_is_for_every_path(path: bytes) -> None:
    assert TABLE.resolve(b"OPTIONS", path).route.pattern == "*"


# The documentation


def documented(page: str) -> set[tuple[bytes, bytes]]:
    text = (DOCS / page).read_text()
    found = set()
    for code in re.findall(r"`([^`\n]+)`", text):
        match = re.match(r"(GET|PUT|POST|DELETE)(?: and (?:GET|PUT|POST|DELETE))? (/[^\s?]*)", code)
        if match:
            path = match[2]
            if path.split("/")[1] in STREAM_NAMES:
                path = "/{bucket}/{stream}" + path
            found.add((match[1].encode(), path_of(path)))
    return found


@pytest.mark.parametrize(
    ("page", "least"),
    [("protocol.md", 12), ("operations.md", 5), ("pipeline.md", 6), ("inspection.md", 8)],
)
def test_every_documented_route_is_in_the_table(page: str, least: int) -> None:
    found = documented(page)
    assert len(found) >= least
    for method, path in found:
        match = TABLE.resolve(method, path)
        assert match.action is not None, (method, path)


# Parts and gates


def test_a_gate_hears_of_every_request_with_its_scope_and_its_stream() -> None:
    heard: list[tuple[Scope, bytes | None]] = []

    class Hearing:
        def check(self, request: Request, scope: Scope, key: bytes | None, /) -> None:
            heard.append((scope, key))

    app = App(TABLE)
    app.gate = Hearing()
    post = asked(b"POST", b"/v1/stream/a/b")
    for request in (
        asked(b"GET", b"/v1/stream/a/b"),
        post,
        post,  # the short way
        asked(b"PUT", b"/bucket/s"),
        asked(b"GET", b"/bucket/s/snapshot/1_1"),
        asked(b"GET", b"/bucket/streams"),
        asked(b"GET", b"/metrics"),
        asked(b"GET", b"/healthz"),
        asked(b"OPTIONS", b"/metrics"),
    ):
        app.handle(request.request)
    assert heard == [
        (Scope.READ, b"a/b"),
        (Scope.APPEND, b"a/b"),
        (Scope.APPEND, b"a/b"),
        (Scope.MANAGE, b"bucket/s"),
        (Scope.READ, b"bucket/s"),
        (Scope.READ, None),  # the listing shows what the key may read
        (Scope.ADMIN, None),
    ]


@pytest.mark.parametrize("is_known", [False, True])
def test_what_a_gate_refuses_is_not_done(is_known: bool) -> None:
    class Refusing:
        def check(self, request: Request, scope: Scope, key: bytes | None, /) -> None:
            raise RouteNotFound("not for you")

    path = b"/v1/stream/gated"
    if is_known:
        TABLE.paths.any_key(path)
    else:
        TABLE.paths.keys.clear()
    CALLS.clear()
    request = asked(b"POST", path)
    app = App(TABLE)
    app.gate = Refusing()
    app.handle(request.request)
    assert request.answer[0] == 404
    assert CALLS == []


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_each_address_has_its_part_and_tells_where_the_rest_is(row: Route) -> None:
    method = next(iter(row.actions), b"GET")
    for part, is_here in (
        (Part.CLIENTS, not row.is_operator),
        (Part.OPERATORS, row.is_operator or row.is_everywhere),
    ):
        request = asked(method, path_of(row.pattern))
        App(TABLE, part, "it is elsewhere").handle(request.request)
        told = request.is_answered and b"it is elsewhere" in request.answer[2]
        assert told is not is_here


def test_the_short_way_does_not_lead_to_streams_on_the_address_for_operators() -> None:
    TABLE.paths.any_key(b"/v1/stream/short")
    CALLS.clear()
    request = asked(b"POST", b"/v1/stream/short")
    App(TABLE, Part.OPERATORS, "elsewhere").handle(request.request)
    assert (request.answer[0], CALLS) == (404, [])


# Below a stream


V1, BUCKETED = frozenset((Surface.V1,)), frozenset((Surface.BUCKETED,))
TOYS = (
    SubResource("{stream}/_toy", V1 | BUCKETED),
    SubResource("{stream}/_toy/{part}", V1),
    SubResource("{stream}/toys/box", BUCKETED),
)


@pytest.mark.parametrize(
    ("path", "pattern", "arguments"),
    [
        (b"/v1/stream/a/_toy", "{stream}/_toy", (b"_default/a",)),
        (b"/v1/stream/a/b/_toy", "{stream}/_toy", (b"a/b",)),
        (b"/v1/stream/a/b/_toy/x%20y", "{stream}/_toy/{part}", (b"a/b", b"x y")),
        (b"/v1/stream/a/_toy/_toy", "{stream}/_toy/{part}", (b"_default/a", b"_toy")),
        (b"/bucket/s/_toy", "{stream}/_toy", (b"bucket/s",)),
        (b"/bucket/s/toys/box", "{stream}/toys/box", (b"bucket/s",)),
        # names of streams, all of them
        (b"/v1/stream/_toy", V1_STREAM, (b"_default/_toy",)),
        (b"/v1/stream/a/%5Ftoy", V1_STREAM, (b"a/_toy",)),
        (b"/v1/stream/a/_toy/b/c", V1_STREAM, (b"a/_toy/b/c",)),
        (b"/v1/stream/a/toys/box", V1_STREAM, (b"a/toys/box",)),
        (b"/v1/stream/a/_toys", V1_STREAM, (b"a/_toys",)),
        (b"/bucket/_toy", BUCKETED_STREAM, (b"bucket/_toy",)),
    ],
)
def test_what_is_declared_below_a_stream_is_found_on_its_surfaces(
    path: bytes, pattern: str, arguments: tuple[bytes, ...]
) -> None:
    paths = StreamPaths(TOYS)
    for _ in range(2):
        place = paths.resolve(path)
        assert (place.pattern, place.arguments) == (pattern, arguments)
        assert place.key == arguments[0]
    assert (path in paths.keys) is (pattern in (V1_STREAM, BUCKETED_STREAM))


@pytest.mark.parametrize("path", [b"/bucket/s/_toy/x", b"/bucket/s/toys", b"/bucket/s/box"])
def test_the_strict_surface_has_nothing_but_what_is_declared(path: bytes) -> None:
    with pytest.raises(RouteNotFound, match="_toy, toys"):
        StreamPaths(TOYS).resolve(path)


def test_what_hangs_below_a_stream_is_no_stream_to_fork() -> None:
    paths = StreamPaths(TOYS)
    for path in (b"/v1/stream/a/_toy", b"/bucket/s/_toy", b"/bucket", b"/bucket/streams"):
        with pytest.raises(InvalidRequest):
            paths.any_key(path)
    assert not paths.keys


@pytest.mark.parametrize(
    "below", [b"snapshot", b"snapshot/1_1", b"bootstrap", b"append-batch", b"_other"]
)
def test_paths_of_the_lenient_surface_are_names_to_their_end(below: bytes) -> None:
    match = TABLE.resolve(b"POST", b"/v1/stream/a/b/" + below)
    assert (match.route.pattern, match.key) == (V1_STREAM, b"a/b/" + below)


def test_what_would_take_names_of_streams_cannot_be_declared() -> None:
    with pytest.raises(AssertionError):
        StreamPaths((SubResource("{stream}/toy", V1),))


def test_a_toy_is_answered_on_both_surfaces() -> None:
    heard: list[bytes] = []

    def play(request: Request, key: bytes) -> None:
        heard.append(key)

    rows = [*TABLE.rows, Route("{stream}/_toy", "toy", {b"GET": Action(play, Scope.READ)})]
    toy = SubResource("{stream}/_toy", V1 | BUCKETED)
    app = App(RouteTable(rows, StreamPaths((*SUB_RESOURCES, toy))))
    for path in (b"/v1/stream/a/b/_toy", b"/bucket/b/_toy"):
        request = asked(b"GET", path)
        app.handle(request.request)
        refused = asked(b"POST", path)
        app.handle(refused.request)
        assert vars(request)["route"] == "toy"
        assert refused.answer[1]["allow"] == "GET, OPTIONS"
    assert heard == [b"a/b", b"bucket/b"]


def test_every_row_below_a_stream_must_be_declared() -> None:
    undeclared = Route("{stream}/_toy", "toy", {})
    with pytest.raises(AssertionError):
        RouteTable([*TABLE.rows, undeclared], StreamPaths(SUB_RESOURCES))


def test_an_error_of_a_path_is_an_answer() -> None:
    request = asked(b"GET", b"/v1/stream/a//b")
    App(TABLE).handle(request.request)
    assert request.answer[0] == 400
