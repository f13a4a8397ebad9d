"""The server's own streams: clients read them like any other, and do nothing else with them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.api import JSON, START, TEXT, Api, Call, error_code, fresh_path
from tests.conformance.conftest import speak_to
from tests.support.http import Client
from tests.support.keys import bearer, make_key, make_key_offline
from tests.support.server import ServerProcess, running_server
from tests.support.waiting import wait_until

REGISTRY, METRICS = "/v1/stream/__registry__", "/v1/stream/__stream_metrics__"
CONTROL = "/v1/stream/__ds/subscriptions"
KEYS_IN_ORDER = [
    *("apiVersion", "kind", "metric", "unit", "metricKind", "temporality", "windowStart"),
    *("windowEnd", "intervalMs", "instance", "stream", "tags", "attributes", "dimensionPairs"),
    *("dimensionKey", "seriesKey", "count", "sum", "min", "max", "avg", "p50", "p95", "p99"),
    *("buckets", "summary"),
]


def told(client: Client, path: str) -> list[dict[str, Any]]:
    """The registry's records of one stream."""
    return [each for each in client.get(REGISTRY).json() if each["stream"] == path]


def measured(client: Client) -> list[dict[str, Any]]:
    return list(client.get(METRICS).json())


# The registry


def test_the_registry_tells_what_becomes_of_a_stream(api: Api) -> None:
    path, fork = api.stream(b"x"), fresh_path("fork")
    created = api.put(fork, headers={"Stream-Forked-From": path, "Stream-TTL": "3600"})
    assert created.status == 201
    assert api.put(path, content_type=TEXT).status == 200  # it exists: nothing to tell
    assert api.delete(fork).status == 204
    first, *_ = told(api, path)
    assert (first["type"], first["content_type"], first["profile"]) == (
        "stream.created",
        TEXT,
        "generic",
    )
    assert first["at"].endswith("Z")
    forked, deleted = told(api, fork)
    assert (forked["type"], forked["source"], forked["ttl_seconds"]) == (
        "stream.forked",
        path,
        3600,
    )
    assert (deleted["type"], deleted["next_offset"]) == ("stream.deleted", created.next_offset)


def test_an_expiry_is_told(api: Api) -> None:
    path = api.stream(headers={"Stream-TTL": "1"})
    wait_until(lambda: len(told(api, path)) == 2)
    assert [each["type"] for each in told(api, path)] == ["stream.created", "stream.expired"]


def test_the_registry_is_read_live(api: Api) -> None:
    offset = api.head(REGISTRY).next_offset
    poll = api.wait(f"{REGISTRY}?live=long-poll&offset={offset}")
    path = api.stream()
    reply = poll.reply()
    assert reply.status == 200
    assert path in [each["stream"] for each in reply.json()]


# What clients may not do

REFUSED = [
    Call("PUT", "{s}", None, {"Content-Type": JSON}),
    Call("POST", "{s}", b"[{}]", {"Content-Type": JSON}),
    Call("POST", "{s}", None, {"Stream-Closed": "true"}),
    Call("DELETE", "{s}"),
    Call("PUT", "{b}", None, {"Content-Type": JSON}),
    Call("POST", "{b}", b"[{}]", {"Content-Type": JSON}),
    Call("DELETE", "{b}"),
    Call("POST", "{b}/append-batch", b"\0\0\0\2{}", {"Content-Type": JSON}),
    Call("PUT", "{b}/snapshot/" + START, b"x", {"Content-Type": TEXT}),
    Call("PUT", "/v1/stream/other", None, {"Stream-Forked-From": "{s}", "Content-Type": JSON}),
]


@pytest.mark.parametrize("name", ["__registry__", "__stream_metrics__"])
@pytest.mark.parametrize("call", REFUSED, ids=lambda call: f"{call.method} {call.path}")
def test_only_reading_is_allowed(api: Api, call: Call, name: str) -> None:
    forms = {"s": f"/v1/stream/{name}", "b": f"/_default/{name}"}
    headers = {key: value.format(**forms) for key, value in call.headers.items()}
    before = api.head(forms["s"]).next_offset
    for _ in range(3):  # a path that comes again takes a shorter way
        reply = api.call(call.method, call.path.format(**forms), call.body, headers)
        assert (reply.status, error_code(reply)) == (403, "system_stream")
        assert name in reply.json()["error"]["message"]
    if name == "__registry__":
        assert api.head(forms["s"]).next_offset == before
    assert "stream-closed" not in api.head(forms["s"]).headers


def test_escapes_do_not_open_another_way(api: Api) -> None:
    reply = api.call("POST", "/v1/stream/%5F_registry__", b"[{}]", {"Content-Type": JSON})
    assert reply.status == 403
    in_bucket = api.call("POST", "/v1/stream/_default/__registry__", b"1", {"Content-Type": JSON})
    assert in_bucket.status == 403


def test_no_wake_is_written_there(api: Api) -> None:
    body = {"type": "pull-wake", "pattern": "x/*", "wake_stream": "__registry__"}
    reply = api.put(f"{CONTROL}/{fresh_path()[11:]}", json.dumps(body))
    assert reply.status == 403


def test_a_subscription_may_follow_the_registry_by_its_name_and_not_by_a_pattern(api: Api) -> None:
    by_name, by_pattern = f"{CONTROL}/{fresh_path()[11:]}", f"{CONTROL}/{fresh_path()[11:]}"
    wakes = api.stream(content_type=JSON).removeprefix("/v1/stream/")
    pull = {"type": "pull-wake", "wake_stream": wakes}
    assert api.put(by_name, json.dumps({**pull, "streams": ["__registry__"]})).status == 201
    assert api.put(by_pattern, json.dumps({**pull, "pattern": "**"})).status == 201
    api.stream()
    [followed] = api.get(by_name).json()["streams"]
    assert (followed["path"], followed["has_pending"]) == ("__registry__", True)
    names = [each["path"] for each in api.get(by_pattern).json()["streams"]]
    assert "__registry__" not in names
    for each in (by_name, by_pattern):
        api.delete(each)


# Where they show


@pytest.fixture(params=["memory", "disk"])
def fresh_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    data_dir = None if request.param == "memory" else tmp_path / "data"
    with running_server(data_dir, "--metrics-stream", "500ms") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.output.decode(errors="replace")


@pytest.fixture
def fresh(fresh_server: ServerProcess) -> Iterator[Api]:
    yield from speak_to(fresh_server)


def test_listings_show_them_to_those_who_ask(fresh: Api) -> None:
    wait_until(lambda: fresh.head(METRICS).status == 200)
    path = fresh.stream()
    name = path.removeprefix("/v1/stream/")

    def listed(url: str) -> list[str]:
        found = fresh.get(url).json()
        entries = found["streams"] if isinstance(found, dict) else found
        return [each.get("name") or each["stream_id"] for each in entries]

    for url in ("/v1/streams?limit=1000", "/_default/streams?limit=1000"):
        assert name in listed(url)
        assert "__registry__" not in listed(url)
        assert {name, "__registry__", "__stream_metrics__"} <= set(listed(f"{url}&system=true"))
        assert listed(f"{url}&system=false") == listed(url)


def test_a_new_server_seems_empty(fresh: Api) -> None:
    wait_until(lambda: fresh.head(METRICS).status == 200)
    assert fresh.get("/v1/streams").json() == []
    assert fresh.get("/v1/buckets").json()["buckets"] == []
    assert fresh.get("/_default/streams").status == 404
    metrics = fresh.get("/metrics").body.decode()
    assert "\nmillstream_streams 0.0\n" in metrics
    assert "\nmillstream_appends_total 0.0\n" in metrics
    assert fresh.put("/_default").status == 201
    assert fresh.delete("/_default").status == 204


# What the server measures


def test_measurements_have_the_shape_of_the_metrics_profile(fresh: Api) -> None:
    fresh.stream(b"a", b"b")
    wait_until(lambda: len(measured(fresh)) > 5)
    for record in measured(fresh):
        assert list(record) == KEYS_IN_ORDER
        assert record["apiVersion"] == "durable.streams/metrics/v1"
        assert record["windowEnd"] - record["windowStart"] == record["intervalMs"] > 0
        assert record["attributes"] == record["tags"]
        pairs = [f"{name}={value}" for name, value in sorted(record["tags"].items())]
        assert record["dimensionPairs"] == pairs
        assert record["dimensionKey"] == ("\0".join(pairs) if pairs else None)
        series = ("metricKind", "temporality", "metric", "unit")
        parts = [record[name] for name in series]
        parts += ["", record["instance"], record["dimensionKey"] or ""]
        assert record["seriesKey"] == "|".join(parts)
        assert sum(record["buckets"].values()) == record["count"] > 0
        assert record["min"] <= record["p50"] <= record["p95"] <= record["p99"] <= record["max"]
        assert record["summary"] == {
            **{name: record[name] for name in ("count", "sum", "min", "max")},
            "histogram": record["buckets"],
        }


def test_what_is_measured_adds_up(fresh: Api) -> None:
    path = fresh.stream()
    for _ in range(20):
        fresh.append(path, b"x")

    def appends() -> int:
        series = [each for each in measured(fresh) if each["metric"] == "millstream.appends"]
        return sum(each["sum"] for each in series)

    wait_until(lambda: appends() == 20)
    tags = {"route": "append", "status": "2xx"}
    requests = [each for each in measured(fresh) if each["tags"] == tags]
    assert sum(each["sum"] for each in requests) == 20


def test_a_server_without_clients_writes_nothing(fresh_server: ServerProcess) -> None:
    def written() -> bytes:
        """Probes and scrapes come around the clock, and are no clients."""
        client.get("/healthz")
        lines = client.get("/metrics").body.splitlines()
        return next(line for line in lines if line.startswith(b"millstream_commands_total "))

    with closing(fresh_server.client()) as client:
        client.put("/v1/stream/a", content_type=TEXT)
        wait_until(lambda: measured(client))
        time.sleep(2.0)  # the windows in which that was asked
        before = written()
        time.sleep(3.0)
        assert written() == before


# Settings


def test_without_them_the_names_are_reserved_all_the_same(tmp_path: Path) -> None:
    off = ("--registry-stream", "off", "--metrics-stream", "0")
    with running_server(tmp_path / "data", *off) as server, closing(server.client()) as client:
        client.put("/v1/stream/a", content_type=TEXT)
        assert client.get(REGISTRY).status == 404
        assert client.get(METRICS).status == 404
        assert client.put(REGISTRY, content_type=JSON).status == 403
        assert [each["name"] for each in client.get("/v1/streams?system=true").json()] == ["a"]


def test_a_registry_that_is_turned_off_keeps_what_it_has_and_goes_on_later(tmp_path: Path) -> None:
    for setting, path in (("on", "a"), ("off", "b"), ("on", "c"), ("on", "d")):
        flags = ("--registry-stream", setting)
        with running_server(tmp_path / "data", *flags) as server:
            with closing(server.client()) as client:
                client.put(f"/v1/stream/{path}", content_type=TEXT)
            if path != "c":  # once by a crash
                assert server.stop() == 0
    with running_server(tmp_path / "data") as server, closing(server.client()) as client:
        streams = [each["stream"] for each in client.get(REGISTRY).json()]
    assert streams == ["/v1/stream/a", "/v1/stream/c", "/v1/stream/d"]


def test_with_keys_they_are_for_those_who_may_read_everything(tmp_path: Path) -> None:
    admin = make_key_offline(tmp_path / "data", "admin")
    with running_server(tmp_path / "data") as server, closing(server.client()) as client:
        narrow = make_key(client, admin, "read:*", "read:__registry__", "read:team/**", "manage:**")
        wide = make_key(client, admin, "read:**")
        client.put("/v1/stream/team/a", content_type=TEXT, headers=bearer(narrow))
        assert client.get(REGISTRY).status == 401
        assert client.get(REGISTRY, headers=bearer(narrow)).status == 403
        fork = {"Stream-Forked-From": REGISTRY, **bearer(narrow)}
        assert client.put("/v1/stream/f", headers=fork, content_type=JSON).status == 403
        for key in (wide, admin):
            assert client.get(REGISTRY, headers=bearer(key)).status == 200
            assert client.post(REGISTRY, "1", headers=bearer(key)).status == 403
        url = "/v1/streams?system=true"
        names = [each["name"] for each in client.get(url, headers=bearer(wide)).json()]
        assert names == ["__registry__", "__stream_metrics__", "team/a"]
        assert [each["name"] for each in client.get(url, headers=bearer(narrow)).json()] == [
            "team/a"
        ]
