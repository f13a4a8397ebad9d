"""What every answer carries, the refusals included: shape of errors, browser headers, CORS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.conformance.api import JSON, TEXT, Api, Events, error_code, fresh_path, producer
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

STREAM_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}
REQUEST_HEADERS = [
    "content-type",
    "authorization",
    "if-none-match",
    "stream-ttl",
    "stream-expires-at",
    "stream-seq",
    "stream-closed",
    "stream-forked-from",
    "stream-fork-offset",
    "stream-fork-sub-offset",
    "producer-id",
    "producer-epoch",
    "producer-seq",
]
RESPONSE_HEADERS = [
    "stream-next-offset",
    "stream-end-offset",
    "stream-cursor",
    "stream-up-to-date",
    "stream-closed",
    "stream-ttl",
    "stream-expires-at",
    "stream-sse-data-encoding",
    "producer-epoch",
    "producer-seq",
    "producer-expected-seq",
    "producer-received-seq",
    "etag",
    "location",
    "retry-after",
]


def gone(api: Api) -> Reply:
    path = api.stream(b"one")
    api.fork(path)
    api.delete(path)
    return api.get(path)


def stale_producer(api: Api) -> Reply:
    path = api.stream()
    api.append(path, b"x", headers=producer("p", 1, 0))
    return api.append(path, b"x", headers=producer("p", 0, 0))


def append_after_close(api: Api) -> Reply:
    path = api.stream()
    api.close_stream(path)
    return api.append(path, b"x")


def not_modified(api: Api) -> Reply:
    return api.get(api.stream(b"one"), headers={"If-None-Match": "*"})


def server_sent_events(api: Api) -> Reply:
    events = api.events(f"{api.stream()}?offset=-1&live=sse")
    return Reply(events.status, events.headers)


def timed_out_poll(api: Api) -> Reply:
    return api.get(f"{api.stream()}?offset=-1&live=long-poll&timeout_ms=1")


class Page(Api):
    """What the script of a web page would send."""

    origin = "http://localhost:3000"

    def call(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Reply:
        sent = {**(headers or {}), "Origin": self.origin}
        return super().call(method, path, body, sent, content_type)

    def events(self, path: str, timeout_seconds: float = 10.0) -> Events:
        events = Events(self.host, self.port, path, timeout_seconds, {"Origin": self.origin})
        self.opened.append(events)
        return events


@pytest.fixture
def page(servers: Callable[[str], ServerProcess]) -> Iterator[Page]:
    with contextlib.closing(Page(servers("memory"))) as page:
        yield page


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    with running_server(None, "--cors-origin", "*") as server:
        yield server


@pytest.fixture
def open_api(open_server: ServerProcess) -> Iterator[Api]:
    with contextlib.closing(Api(open_server)) as api:
        yield api


ERRORS: dict[str, tuple[int, Callable[[Api], Reply]]] = {
    "bad offset": (400, lambda api: api.get(f"{api.stream()}?offset=x")),
    "bad path": (400, lambda api: api.get("/v1/stream/a//b")),
    "bad JSON": (400, lambda api: api.append(api.stream(content_type=JSON), b"{", JSON)),
    "empty append": (400, lambda api: api.post(api.stream(), content_type=TEXT)),
    "stale producer": (403, stale_producer),
    "no such stream": (404, lambda api: api.get(fresh_path())),
    "no such route": (404, lambda api: api.get("/v1/nothing-here")),
    "wrong method": (405, lambda api: api.call("PATCH", api.stream())),
    "wrong type": (409, lambda api: api.append(api.stream(), b"x", "image/png")),
    "closed": (409, append_after_close),
    "create conflict": (409, lambda api: api.put(api.stream(), content_type=JSON)),
    "gone": (410, gone),
}
SUCCESSES: dict[str, tuple[int, Callable[[Api], Reply]]] = {
    "create": (201, lambda api: api.put(fresh_path(), content_type=TEXT)),
    "append": (204, lambda api: api.append(api.stream(), b"x")),
    "read": (200, lambda api: api.get(api.stream(b"x"))),
    "head": (200, lambda api: api.head(api.stream(b"x"))),
    "delete": (204, lambda api: api.delete(api.stream())),
    "not modified": (304, not_modified),
    "long-poll": (204, timed_out_poll),
    "events": (200, server_sent_events),
    "health": (200, lambda api: api.get("/healthz")),
    "metrics": (200, lambda api: api.get("/metrics")),
}


@pytest.mark.parametrize(("status", "act"), ERRORS.values(), ids=ERRORS.keys())
def test_a_refusal_says_what_was_wrong(
    memory_api: Api, status: int, act: Callable[[Api], Reply]
) -> None:
    reply = act(memory_api)
    assert reply.status == status
    assert error_code(reply)


@pytest.mark.parametrize(
    ("status", "act"), [*ERRORS.values(), *SUCCESSES.values()], ids=[*ERRORS, *SUCCESSES]
)
def test_browsers_are_told_not_to_guess(
    memory_api: Api, status: int, act: Callable[[Api], Reply]
) -> None:
    reply = act(memory_api)
    assert reply.status == status
    assert reply.headers["x-content-type-options"] == "nosniff"
    policy = reply.headers["cross-origin-resource-policy"]
    assert policy in ("cross-origin", "same-site", "same-origin")
    assert "access-control-allow-origin" not in reply.headers  # no page asked


@pytest.mark.parametrize(
    ("status", "act"), [*ERRORS.values(), *SUCCESSES.values()], ids=[*ERRORS, *SUCCESSES]
)
def test_a_page_that_may_use_the_server_can_read_every_answer(
    page: Page, status: int, act: Callable[[Api], Reply]
) -> None:
    reply = act(page)
    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == page.origin


@pytest.mark.parametrize(
    ("status", "act"), [*ERRORS.values(), *SUCCESSES.values()], ids=[*ERRORS, *SUCCESSES]
)
def test_a_server_for_all_pages_says_so_in_every_answer(
    open_api: Api, status: int, act: Callable[[Api], Reply]
) -> None:
    reply = act(open_api)
    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["cross-origin-resource-policy"] == "cross-origin"


@pytest.mark.parametrize("act", [each[1] for each in SUCCESSES.values()], ids=SUCCESSES.keys())
def test_scripts_may_read_the_headers_of_the_protocol(
    page: Page, act: Callable[[Api], Reply]
) -> None:
    exposed = act(page).headers["access-control-expose-headers"].lower()
    names = {name.strip() for name in exposed.split(",")}
    assert set(RESPONSE_HEADERS) <= names


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/v1/stream/nothing", "/v1/stream/a//b", "/healthz"]
)
def test_a_preflight_is_answered_for_every_path(page: Page, path: str) -> None:
    asked = {
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": ",".join(REQUEST_HEADERS),
    }
    reply = page.call("OPTIONS", path, headers=asked)
    assert (reply.status in (200, 204), reply.body) == (True, b"")
    assert reply.headers["access-control-allow-origin"] == page.origin
    methods = {name.strip() for name in reply.headers["access-control-allow-methods"].split(",")}
    assert methods >= {"GET", "HEAD", "PUT", "POST", "DELETE"}
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert {name.strip() for name in allowed.split(",")} >= set(REQUEST_HEADERS)
    assert reply.headers["x-content-type-options"] == "nosniff"


def allowed_headers(api: Api, asked: str) -> set[str]:
    reply = api.call("OPTIONS", "/v1/stream/a", headers={"Access-Control-Request-Headers": asked})
    assert reply.headers["vary"].lower() == "access-control-request-headers"
    return {name.strip() for name in reply.headers["access-control-allow-headers"].split(",")}


def test_a_preflight_allows_the_headers_that_a_page_brings_along(memory_api: Api) -> None:
    ours = allowed_headers(memory_api, "")
    asked = "traceparent,X-Tenant, content-type ,x-amz-date"
    assert allowed_headers(memory_api, asked) == ours | {"traceparent", "x-tenant", "x-amz-date"}


@pytest.mark.parametrize(
    "asked", ["x-a x-b", "x-a,,x-b", "x-a: 1", "x-a;q=1", "\u00e9", '"x-a"', "x-a,", "x" * 5000]
)
def test_a_preflight_for_what_are_no_headers_allows_ours_alone(memory_api: Api, asked: str) -> None:
    assert allowed_headers(memory_api, asked) == allowed_headers(memory_api, "")


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND", "LOCK"])
def test_a_wrong_method_is_told_the_right_ones(memory_api: Api, method: str) -> None:
    for path in (memory_api.stream(), fresh_path()):
        reply = memory_api.call(method, path)
        assert reply.status == 405
        assert {name.strip() for name in reply.headers["allow"].split(",")} == STREAM_METHODS


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz", "/metrics"])
def test_operational_paths_only_answer_reads(memory_api: Api, path: str) -> None:
    reply = memory_api.post(path, b"x", content_type=TEXT)
    assert reply.status == 405
    assert "GET" in reply.headers["allow"]
    assert memory_api.head(path).status == 200


def test_an_error_does_not_cost_the_connection(memory_api: Api) -> None:
    assert memory_api.append(fresh_path(), b"x" * 1000).status == 404
    used = memory_api.connection.sock
    assert used is not None
    for _, act in ERRORS.values():
        act(memory_api)
    assert memory_api.connection.sock is used
