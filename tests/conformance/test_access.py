"""With keys: every route asks for one, refuses the rest, and never tells what exists."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cold.backup_world import run_command
from tests.conformance.api import START, TEXT, Call, WaitingCall
from tests.support.http import EventStream, Reply
from tests.support.keys import KEYS, bearer, key_id, make_key, make_key_offline, revoke_key
from tests.support.server import ServerProcess, running_server

SCOPES = ("read", "append", "manage", "subscribe")
WRONG = "ms_0123456789ab_" + "5" * 64
CONTROL = "/v1/stream/__ds/subscriptions"
PULL = json.dumps({"type": "pull-wake", "pattern": "{s}", "wake_stream": "wakes/{n}"})
LINK = json.dumps({"streams": ["{s}"]})
CLAIM = json.dumps({"worker": "w"})
BATCH = struct.pack(">I", 2) + b"ab"


class Route(NamedTuple):
    """`{b}/{n}` is a stream that is there, `{s}` another way to write it."""

    method: str
    path: str
    scope: str
    over: str = "{s}"
    body: str | bytes = ""
    content_type: str = TEXT


ON_STREAMS = [
    Route(method, path + query, scope, body=body)
    for path in ("/v1/stream/{s}", "/{b}/{n}")
    for method, query, scope, body in [
        ("POST", "", "append", "x"),
        ("GET", "", "read", ""),
        ("GET", f"?offset={START}", "read", ""),
        ("GET", "?offset=now&live=long-poll&timeout_ms=50", "read", ""),
        ("GET", "?offset=now&live=sse", "read", ""),
        ("HEAD", "", "read", ""),
        ("PUT", "", "manage", ""),
        ("DELETE", "", "manage", ""),
    ]
]
BELOW_STREAMS = [
    Route("GET", "/{b}/{n}/snapshot", "read"),
    Route("HEAD", "/{b}/{n}/snapshot", "read"),
    Route("GET", "/{b}/{n}/snapshot/" + START, "read"),
    Route("HEAD", "/{b}/{n}/snapshot/" + START, "read"),
    Route("PUT", "/{b}/{n}/snapshot/" + START, "manage", body="snap"),
    Route("DELETE", "/{b}/{n}/snapshot/" + START, "manage"),
    Route("GET", "/{b}/{n}/bootstrap", "read"),
    Route("POST", "/{b}/{n}/append-batch", "append", body=BATCH),
    *(
        Route(method, f"{path}/{name}{query}", "read")
        for path in ("/v1/stream/{s}", "/{b}/{n}")
        for name in ("_details", "_index_status")
        for method, query in (("GET", ""), ("HEAD", ""), ("GET", "?live=true&timeout_ms=50"))
    ),
    Route("GET", "/{b}/{n}/touch/meta", "read"),
    Route("POST", "/{b}/{n}/touch/wait", "read", body="{}"),
    Route("POST", "/{b}/{n}/touch/templates/activate", "read", body="{}"),
    Route("GET", "/{b}/{n}/_schema", "read"),
    Route("POST", "/{b}/{n}/_schema", "manage", body="{}"),
    Route("GET", "/{b}/{n}/_profile", "read"),
    Route("POST", "/{b}/{n}/_profile", "manage", body="{}"),
    Route("GET", "/{b}/{n}/pk/k", "read"),
]
ON_BUCKETS = [
    Route("GET", "/{b}", "read", "{b}/**"),
    Route("HEAD", "/{b}", "read", "{b}/**"),
    Route("PUT", "/{b}", "manage", "{b}/**"),
    Route("DELETE", "/{b}", "manage", "{b}/**"),
    Route("GET", "/{b}/streams", "read"),
]
ON_SUBSCRIPTIONS = [
    Route("PUT", CONTROL + "/{n}", "subscribe", body=PULL),
    Route("POST", CONTROL + "/{n}/streams", "subscribe", body=LINK),
    Route("GET", CONTROL + "/{n}", "subscribe"),
    Route("HEAD", CONTROL + "/{n}", "subscribe"),
    Route("DELETE", CONTROL + "/{n}", "subscribe"),
    Route("DELETE", CONTROL + "/{n}/streams/x", "subscribe"),
    Route("POST", CONTROL + "/{n}/claim", "subscribe", body=CLAIM),
]
OF_ALL = [Route("GET", "/v1/streams", "read"), Route("GET", "/v1/buckets", "read")]
OF_OPERATORS = [
    Route(method, path, "admin", body=body)
    for method, path, body in [
        ("GET", "/metrics", ""),
        ("HEAD", "/metrics", ""),
        ("GET", "/__millstream/retention/{b}", ""),
        ("HEAD", "/__millstream/retention/{b}", ""),
        ("PUT", "/__millstream/retention/{b}", "{}"),
        ("DELETE", "/__millstream/retention/{b}", ""),
        ("GET", "/__ursula/metrics", ""),
        ("GET", "/v1/server/_details", ""),
        ("HEAD", "/v1/server/_details", ""),
        ("GET", "/v1/server/_mem", ""),
        ("HEAD", "/v1/server/_mem", ""),
        ("POST", "/__ursula/flush-cold/{b}/{n}", ""),
        ("POST", "/__millstream/jobs/compact", ""),
        ("GET", "/__millstream/jobs/nine/tasks/0", ""),
        ("DELETE", "/__millstream/jobs/nine", ""),
        ("GET", "/__millstream/garbage", ""),
        ("POST", "/__millstream/garbage", ""),
        ("POST", "/__millstream/flush", ""),
        ("GET", KEYS, ""),
        ("POST", KEYS, '{"scopes": ["read:**"]}'),
        ("DELETE", KEYS + "/abc", ""),
    ]
]
EVERY_ROUTE = [
    *ON_STREAMS,
    *BELOW_STREAMS,
    *ON_BUCKETS,
    *ON_SUBSCRIPTIONS,
    *OF_ALL,
    *OF_OPERATORS,
]
each_route = pytest.mark.parametrize("route", EVERY_ROUTE, ids=lambda r: f"{r.method} {r.path}")
numbers = count()


class Place(NamedTuple):
    bucket: str
    name: str

    def fill(self, text: str) -> str:
        stream = f"{self.bucket}/{self.name}"
        for mark, value in (("{s}", stream), ("{b}", self.bucket), ("{n}", self.name)):
            text = text.replace(mark, value)
        return text


class World:
    def __init__(self, server: ServerProcess, admin: str) -> None:
        self.server = server
        self.admin = admin
        self.client = server.client()

    def send(self, route: Route, place: Place, key: str | None) -> Reply:
        body = place.fill(route.body) if isinstance(route.body, str) else route.body
        headers = {**bearer(key), "Content-Type": route.content_type}
        path = place.fill(route.path)
        if "live=sse" not in path:
            return self.client.call(route.method, path, body or None, headers)
        events = EventStream("127.0.0.1", self.server.port, path, headers=headers)
        with closing(events):
            body = b"" if events.status == 200 else events.response.read()
            return Reply(events.status, events.headers, body)

    def make(self, *scopes: str, expires_seconds: int | None = None) -> str:
        return make_key(self.client, self.admin, *scopes, expires_seconds=expires_seconds)

    def new_place(self) -> Place:
        """A bucket with a stream and a subscription to it."""
        number = next(numbers)
        place = Place(f"bucket-{number}", f"run-{number}")
        for method, path, body in [
            ("PUT", "/{b}", ""),
            ("PUT", "/{b}/{n}", ""),
            ("PUT", CONTROL + "/{n}", PULL),
        ]:
            reply = self.send(Route(method, path, "", body=body), place, self.admin)
            assert reply.status == 201, reply
        return place

    def absent_place(self) -> Place:
        number = next(numbers)
        return Place(f"bucket-{number}", f"run-{number}")


@pytest.fixture(scope="module")
def disk_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("keys") / "data"
    admin = make_key_offline(folder, "admin")
    with running_server(folder) as server:
        yield from living(World(server, admin))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Quick, because nothing waits for a disk."""
    with running_server() as server:
        with closing(server.client()) as client:
            admin = make_key(client, None, "admin")
        yield from living(World(server, admin))


def living(world: World) -> Iterator[World]:
    yield world
    world.client.close()
    assert world.server.stop() == 0
    assert "Traceback" not in world.server.finish_output()


@pytest.fixture
def route_world(route: Route, request: pytest.FixtureRequest) -> World:
    """Some of what operators do needs a disk."""
    found = request.getfixturevalue("disk_world" if route in OF_OPERATORS else "world")
    assert isinstance(found, World)
    return found


def plain(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    return reply.status, {k: v for k, v in reply.headers.items() if k != "date"}, reply.body


def scopes_without(scope: str, pattern: str = "**") -> list[str]:
    return [f"{other}:{pattern}" for other in SCOPES if other != scope]


@each_route
def test_without_a_key_and_with_a_wrong_one_a_request_gets_401(
    route_world: World, route: Route
) -> None:
    place = route_world.new_place()
    for key in (None, WRONG, "nonsense", route_world.admin[:-1]):
        reply = route_world.send(route, place, key)
        assert reply.status == 401, (key, reply)
        assert reply.headers["www-authenticate"] == "Bearer"
        if route.method != "HEAD":
            assert reply.json()["error"]["code"] == "unauthorized"


@each_route
def test_a_key_that_lacks_the_scope_gets_403(route_world: World, route: Route) -> None:
    place = route_world.new_place()
    reply = route_world.send(route, place, route_world.make(*scopes_without(route.scope)))
    assert reply.status == 403, reply
    if route.method != "HEAD":
        assert reply.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "route", [*ON_STREAMS, *BELOW_STREAMS, *ON_BUCKETS], ids=lambda r: f"{r.method} {r.path}"
)
def test_the_right_scope_over_other_streams_gets_403(world: World, route: Route) -> None:
    place = world.new_place()
    elsewhere = [f"{scope}:other-bucket/**" for scope in SCOPES]
    nearly = [f"{scope}:{place.bucket}/{place.name}-x" for scope in SCOPES]
    in_bucket = route.path.endswith("/streams")  # a listing shows what may be read, if anything
    for scopes in (elsewhere, elsewhere if in_bucket else nearly):
        assert world.send(route, place, world.make(*scopes)).status == 403


@each_route
def test_the_right_scope_passes_and_so_does_admin(route_world: World, route: Route) -> None:
    for is_admin in (False, True):
        place = route_world.new_place()
        scopes = ["admin"]
        if route.scope != "admin" and not is_admin:
            scopes = [f"{route.scope}:{place.fill(route.over)}", f"append:wakes/{place.name}"]
        reply = route_world.send(route, place, route_world.make(*scopes))
        assert reply.status not in (401, 403), reply
        assert reply.status < 500, reply


@each_route
def test_a_refusal_is_the_same_for_what_exists_and_what_does_not(
    route_world: World, route: Route
) -> None:
    there, absent = route_world.new_place(), route_world.absent_place()
    lacking = route_world.make(*scopes_without(route.scope))
    elsewhere = route_world.make(*(f"{scope}:other-bucket/**" for scope in SCOPES))
    for key in (None, WRONG, lacking, elsewhere):
        found, not_found = (plain(route_world.send(route, place, key)) for place in (there, absent))
        if route in OF_ALL and key == elsewhere:
            assert found[0] == 200
        else:
            assert found[0] in (401, 403, 404)
        assert found == not_found


def test_health_preflights_and_public_keys_need_no_key(world: World) -> None:
    assert world.client.get("/healthz").status == 200
    assert world.client.get("/health").status == 200
    assert world.client.get("/readyz").status == 200
    assert world.client.call("OPTIONS", "/v1/stream/docs/a").status == 204
    assert world.client.get("/v1/stream/__ds/jwks.json").status == 200


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
def test_what_has_a_token_of_its_own_asks_for_that(world: World, action: str) -> None:
    place = world.new_place()
    path = f"{CONTROL}/{place.name}/{action}"
    for key in (None, world.admin):
        reply = world.client.post(path, '{"wake_id": "w", "generation": 1}', headers=bearer(key))
        assert (reply.status, reply.json()["error"]["code"]) in [
            (401, "TOKEN_INVALID"),
            (400, "INVALID_REQUEST"),
        ]


def test_a_worker_claims_with_its_key_and_acknowledges_with_its_token(world: World) -> None:
    place = world.new_place()
    key = world.make(f"subscribe:{place.bucket}/*")
    append = Route("POST", "/{b}/{n}", "append", body="work")
    assert world.send(append, place, world.admin).status == 204
    claim = f"{CONTROL}/{place.name}/claim"
    reply = world.client.post(claim, CLAIM, headers=bearer(key))
    assert reply.status == 200, reply
    wake = reply.json()
    body = json.dumps({"wake_id": wake["wake_id"], "generation": wake["generation"]})
    path = f"{CONTROL}/{place.name}/release"
    assert world.client.post(path, body, headers=bearer(wake["token"])).status == 204


def test_a_fork_needs_manage_on_the_new_name_and_read_on_the_source(world: World) -> None:
    place = world.new_place()
    new, source = f"/v1/stream/{place.bucket}/fork", f"/v1/stream/{place.bucket}/{place.name}"
    headers = {"Stream-Forked-From": source, "Content-Type": TEXT}

    def fork(*scopes: str) -> Reply:
        return world.client.put(new, headers={**headers, **bearer(world.make(*scopes))})

    manage, read = f"manage:{place.bucket}/fork", f"read:{place.bucket}/{place.name}"
    refused = fork(manage)
    assert refused.status == 403
    headers["Stream-Forked-From"] = f"/v1/stream/{place.bucket}/no-such-stream"
    assert plain(fork(manage)) == plain(refused)
    headers["Stream-Forked-From"] = source
    assert fork(read).status == 403
    assert fork(manage, read).status == 201


def test_closing_is_appending_and_creating_is_not(world: World) -> None:
    place = world.new_place()
    headers = bearer(world.make(f"append:{place.bucket}/*"))
    path = f"/v1/stream/{place.bucket}/{place.name}"
    assert world.client.put(f"/v1/stream/{place.bucket}/new", headers=headers).status == 403
    reply = world.client.post(path, headers={**headers, "Stream-Closed": "true"})
    assert reply.status == 204
    assert reply.headers["stream-closed"] == "true"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"pattern": "{b}/*"}, 201),
        ({"pattern": "{b}/run"}, 201),
        ({"pattern": "{b}/**"}, 403),
        ({"pattern": "**"}, 403),
        ({"pattern": "*/run"}, 403),
        ({"streams": ["{b}/a", "{b}/b"]}, 201),
        ({"streams": ["{b}/a", "other/b"]}, 403),
        ({"pattern": "{b}/*", "streams": ["other/b"]}, 403),
        ({"pattern": "{b}/*", "wake_stream": "{b}/wake"}, 403),
    ],
)
def test_a_subscription_is_within_what_its_maker_may_subscribe_to(
    world: World, fields: dict[str, object], status: int
) -> None:
    place = world.new_place()
    key = world.make(f"subscribe:{place.bucket}/*", "append:wakes/*")
    body = {"type": "pull-wake", "wake_stream": "wakes/w", **fields}
    path = f"{CONTROL}/sub-{place.name}"
    reply = world.client.put(path, place.fill(json.dumps(body)), headers=bearer(key))
    assert reply.status == status, reply
    links = json.dumps({"streams": ["elsewhere/x"]})
    if status == 201:
        assert world.client.post(f"{path}/streams", links, headers=bearer(key)).status == 403


def test_a_subscription_of_others_is_not_there_for_a_key(world: World) -> None:
    place, absent = world.new_place(), world.absent_place()
    headers = bearer(world.make("subscribe:elsewhere/**"))
    for method, below, body in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/claim", CLAIM),
        ("POST", "/claim", "nonsense"),
        ("POST", "/streams", '{"streams": ["elsewhere/a"]}'),
        ("DELETE", "/streams/x", None),
    ]:
        replies = [
            world.client.call(method, f"{CONTROL}/{each.name}{below}", body, headers)
            for each in (place, absent)
        ]
        assert plain(replies[0]) == plain(replies[1])
        assert replies[0].status == 404
    kept = world.client.get(f"{CONTROL}/{place.name}", headers=bearer(world.admin))
    assert kept.status == 200


def test_listings_show_what_may_be_read(world: World) -> None:
    mine, other = world.new_place(), world.new_place()
    for name in ("run-a", "run-b", "walk-a"):
        world.client.put(f"/{mine.bucket}/{name}", headers=bearer(world.admin))
    headers = bearer(world.make(f"read:{mine.bucket}/run-?".replace("?", "*")))
    listed = world.client.get(f"/{mine.bucket}/streams", headers=headers).json()
    names = [each["stream_id"] for each in listed["streams"]]
    assert names == sorted({"run-a", "run-b", mine.name})
    pages, after = list[str](), ""
    while True:
        page = world.client.get(f"/v1/streams?limit=1&after={after}", headers=headers).json()
        if not page:
            break
        after = page[0]["name"]
        pages.append(after)
    assert pages == [f"{mine.bucket}/{name}" for name in names]
    assert world.client.get("/v1/streams?offset=2", headers=headers).json()[0]["name"] == pages[2]
    assert world.client.get("/v1/buckets", headers=headers).json()["buckets"] == []
    headers = bearer(world.make(f"read:{other.bucket}/**"))
    buckets = world.client.get("/v1/buckets", headers=headers).json()["buckets"]
    assert [each["bucket_id"] for each in buckets] == [other.bucket]


def test_answers_are_for_the_caches_of_one_reader_only(world: World) -> None:
    place = world.new_place()
    reply = world.send(Route("GET", f"/{{b}}/{{n}}?offset={START}", "read"), place, world.admin)
    assert reply.headers["cache-control"].startswith("private, ")


def test_an_expired_key_is_refused_and_its_reads_end(world: World) -> None:
    place = world.new_place()
    key = world.make(f"read:{place.bucket}/*", expires_seconds=2)
    path = f"/v1/stream/{place.bucket}/{place.name}"
    poll = Call("GET", f"{path}?offset=now&live=long-poll&timeout_ms=30000", None, bearer(key))
    waiting = WaitingCall("127.0.0.1", world.server.port, poll)
    waiting.send()
    events = open_events(world, place, key)
    began = time.monotonic()
    assert list(events) is not None  # it ends
    assert waiting.connection.getresponse().status == 204
    assert time.monotonic() - began < 8
    assert world.client.head(path, headers=bearer(key)).status == 401
    events.close()
    waiting.connection.close()


def open_events(world: World, place: Place, key: str) -> EventStream:
    path = f"/{place.bucket}/{place.name}?offset=-1&live=sse"
    events = EventStream("127.0.0.1", world.server.port, path, 15.0, bearer(key))
    assert events.status == 200
    return events


def test_a_revoked_key_ends_with_all_that_it_had_open(world: World) -> None:
    place = world.new_place()
    key, other = world.make(f"read:{place.bucket}/*"), world.make(f"read:{place.bucket}/*")
    path = f"/v1/stream/{place.bucket}/{place.name}"
    poll = Call("GET", f"{path}?offset=now&live=long-poll&timeout_ms=30000", None, bearer(key))
    waiting = WaitingCall("127.0.0.1", world.server.port, poll)
    waiting.send()
    events, others = open_events(world, place, key), open_events(world, place, other)
    time.sleep(0.3)  # the long-poll has to be there; nothing tells when it is
    began = time.monotonic()
    assert revoke_key(world.client, world.admin, key) == 204
    assert [event.kind for event in events] == ["control"]
    assert waiting.connection.getresponse().status == 401
    assert time.monotonic() - began < 5
    assert world.client.head(path, headers=bearer(key)).status == 401
    assert revoke_key(world.client, world.admin, key) == 404
    world.client.post(path, "still told", headers=bearer(world.admin), content_type=TEXT)
    told = iter(others)
    assert [next(told).kind, next(told).data] == ["control", "still told"]
    for each in (events, others):
        each.close()
    waiting.connection.close()


def test_no_log_line_holds_a_key(tmp_path: Path) -> None:
    admin = make_key_offline(tmp_path / "data", "admin")
    with running_server(tmp_path / "data", "--access-log", "--log-level", "debug") as server:
        with closing(server.client()) as client:
            made = make_key(client, admin, "read:**")
            client.get(f"/v1/stream/a?key={made}", headers=bearer(made))
            client.get("/v1/stream/a", headers=bearer(WRONG))
            client.get("/v1/stream/a", headers={**bearer(admin), "Bad Header": "x"})
        server.stop()
        output = server.finish_output()
    assert output.count("status=") >= 4
    for key in (admin, made, WRONG):
        assert key.rpartition("_")[2] not in output


def test_keys_are_listed_without_their_secrets(world: World) -> None:
    key = world.make("read:docs/**", "append:docs/a", expires_seconds=86_400)
    reply = world.client.get(KEYS, headers=bearer(world.admin))
    [listed] = [each for each in reply.json()["keys"] if each["id"] == key_id(key)]
    assert listed["scopes"] == ["read:docs/**", "append:docs/a"]
    assert listed["expires_at"] is not None
    assert key.rpartition("_")[2].encode() not in reply.body
    metrics = world.client.get("/metrics", headers=bearer(world.admin)).body
    assert key.rpartition("_")[2].encode() not in metrics


@pytest.mark.parametrize(
    "body",
    [
        *("", "[]", "{}", '{"scopes": []}', '{"scopes": ["fly:**"]}', '{"scopes": "admin"}'),
        '{"scopes": ["admin"], "expires_seconds": 0}',
        '{"scopes": ["admin"], "name": "a\\nb"}',
        json.dumps({"scopes": [f"read:a{number}" for number in range(33)]}),
    ],
)
def test_what_is_no_key_is_not_made(world: World, body: str) -> None:
    reply = world.client.post(KEYS, body, headers=bearer(world.admin))
    assert reply.status == 400, reply


# Beginnings and ends


def test_the_first_key_turns_access_on_and_must_be_able_to_make_others() -> None:
    with running_server() as server, closing(server.client()) as client:
        assert client.put("/v1/stream/a").status == 201
        reply = client.post(KEYS, '{"scopes": ["read:**"]}')
        assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_request")
        assert (
            client.get(f"/v1/stream/a?offset={START}").headers["cache-control"].startswith("public")
        )
        admin = make_key(client, None, "admin")
        assert client.get("/v1/stream/a").status == 401
        assert client.get("/v1/stream/a", headers=bearer(admin)).status == 200
        assert revoke_key(client, admin, admin) == 204
        assert client.get("/v1/stream/a").status == 401
        assert client.get("/v1/stream/a", headers=bearer(admin)).status == 401


def test_keys_and_their_ends_survive_a_crash_a_clean_stop_and_a_restore(tmp_path: Path) -> None:
    folder, cold = tmp_path / "data", f"fs:{tmp_path / 'cold'}"
    admin = make_key_offline(folder, "admin")

    def check(server: ServerProcess) -> None:
        with closing(server.client()) as client:
            assert client.get("/v1/streams").status == 401
            for key, status in [(admin, 200), (kept, 200), (revoked, 401)]:
                assert client.get("/v1/streams", headers=bearer(key)).status == status

    with running_server(folder, "--cold", cold) as server:
        with closing(server.client()) as client:
            kept, revoked = make_key(client, admin, "read:**"), make_key(client, admin, "read:**")
            assert revoke_key(client, admin, revoked) == 204
        server.kill()
    with running_server(folder, "--cold", cold) as server:
        check(server)
        server.stop()
    with running_server(folder, "--cold", cold) as server:  # from the checkpoint now
        check(server)
        server.stop()
    assert run_command("verify", "--data-dir", str(folder), "--cold", cold)[0] == 0
    new = tmp_path / "new"
    code, output = run_command("restore", "--data-dir", str(new), "--cold", cold)
    assert code == 0, output
    assert "2 access keys as of then" in output
    with running_server(new, "--cold", cold) as server:
        check(server)


def test_access_off_and_keys_say_it_whatever_the_store_holds(tmp_path: Path) -> None:
    make_key_offline(tmp_path / "one", "admin")
    with running_server(tmp_path / "one", "--access", "off") as server:
        with closing(server.client()) as client:
            assert client.get("/v1/streams").status == 200
        server.kill()
        assert "requests need none of them" in server.finish_output()
    with running_server(tmp_path / "two", "--access", "keys") as server:
        with closing(server.client()) as client:
            assert client.get("/v1/streams").status == 401
        server.kill()
        assert "every request gets 401" in server.finish_output()


def test_a_server_for_other_machines_does_not_start_open_by_mistake(tmp_path: Path) -> None:
    everywhere = ("--listen", "0.0.0.0:0", "--data-dir", str(tmp_path / "data"))
    code, output = run_command("serve", *everywhere)
    assert code == 2
    for way_out in ("millstream key create", "127.0.0.1", "--insecure-open"):
        assert way_out in output


def test_a_server_that_is_open_on_purpose_says_so(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--listen", "0.0.0.0:0", "--insecure-open", wait=False)
    assert server.process.stdout is not None
    lines = iter(server.process.stdout.readline, b"")
    said = next(line for line in lines if b"insecure-open" in line or b"listening" in line)
    server.kill()
    assert b"may read, write and delete everything" in said


def test_commands_show_a_key_that_they_are_given(disk_world: World, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(disk_world.admin + "\n")
    given = ("--server", disk_world.server.url, "--key-file", str(key_file))
    code, output = run_command("key", "create", "--scope", "read:a/**", "--name", "mine", *given)
    assert code == 0, output
    made = output.strip()
    assert status_of(disk_world, made) == 200
    listed = run_command("key", "list", *given)[1]
    assert f"{key_id(made)}  read:a/**  expires never  mine" in listed
    assert run_command("key", "revoke", key_id(made), *given) == (0, f"revoked {key_id(made)}\n")
    assert status_of(disk_world, made) == 401
    assert run_command("gc", "--dry-run", *given)[0] == 0
    code, output = run_command("gc", "--server", disk_world.server.url)
    assert code == 2
    assert "401" in output
    key_file.write_text("secret nonsense\n")
    code, output = run_command("gc", *given)
    assert code == 2
    assert "nonsense" not in output


def status_of(world: World, key: str) -> int:
    """On a connection of its own: commands take their time, and idle ones are closed."""
    with closing(world.server.client()) as client:
        return client.get("/v1/streams", headers=bearer(key)).status


def test_no_key_is_made_behind_the_back_of_a_server(
    disk_world: World,
) -> None:
    folder = str(disk_world.server.data_dir)
    code, output = run_command("key", "create", "--data-dir", folder, "--scope", "admin")
    assert code == 2
    assert "in use" in output or "uses" in output


def test_a_key_made_in_a_cold_folder_is_printed_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    code, output = run_command("key", "create", "--data-dir", folder, "--scope", "admin")
    assert code == 0, output
    assert re.fullmatch(r"ms_[0-9a-f]{12}_[0-9a-f]{64}\n", output)
    key = output.strip()
    secret = key.rpartition("_")[2]
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        assert secret.encode() not in content
        assert bytes.fromhex(secret) not in content
    assert any(key_id(key).encode() in path.read_bytes() for path in files)
