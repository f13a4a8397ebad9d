"""What streams and the server tell of themselves: `_details`, `_index_status`, the server's two."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.api import (
    JSON,
    START,
    TEXT,
    Api,
    Call,
    WaitingCall,
    error_code,
    fresh_path,
    producer,
    token,
)
from tests.support.http import Reply
from tests.support.server import running_server

KINDS = ("_details", "_index_status")
each_kind = pytest.mark.parametrize("kind", KINDS)


def describe(api: Api, path: str, kind: str = "_details", tag: str | None = None) -> Reply:
    return api.get(f"{path}/{kind}", headers={} if tag is None else {"If-None-Match": tag})


def details(api: Api, path: str) -> dict[str, Any]:
    reply = describe(api, path)
    assert reply.status == 200, reply
    document: dict[str, Any] = reply.json()
    return document


def wait(api: Api, path: str, kind: str = "_details", query: str = "live=true") -> WaitingCall:
    """A client that has the newest descriptor and waits for the next one."""
    tag = describe(api, path, kind).headers["etag"]
    call = Call("GET", f"{path}/{kind}?{query}", headers={"If-None-Match": tag})
    waiting = api.hold(call)
    waiting.send()
    api.settle()
    return waiting


# What is told


def test_a_stream_tells_of_itself_on_both_surfaces(api: Api) -> None:
    path = api.bucketed(b"one", b"three")
    bucket, stream = path.strip("/").split("/")
    found = details(api, path)
    summary = found["stream"]
    assert (summary["name"], summary["content_type"]) == (f"{bucket}/{stream}", TEXT)
    assert (summary["next_offset"], summary["message_count"]) == (token(2, 8), "2")
    assert (summary["total_size_bytes"], summary["pending_bytes"]) == ("8", "8")
    assert (summary["sealed_through"], summary["segment_count"]) == ("-1", 0)
    assert found["index_status"] == describe(api, path, "_index_status").json()
    assert found["index_status"]["search_families"] == []
    assert details(api, f"/v1/stream{path}") == found
    assert found["schema"]["currentVersion"] == 0
    assert found["profile"]["profile"] == {"kind": "generic"}
    assert set(found["storage"]) == {"object_storage", "local_storage", "companion_families"}


def test_what_is_kept_where_depends_on_the_journal(api: Api) -> None:
    found = details(api, api.stream(b"1", b"22", content_type=JSON))
    summary, local = found["stream"], found["storage"]["local_storage"]
    has_log = api.server.data_dir is not None
    assert summary["total_size_bytes"] == summary["pending_bytes"] == "3"
    assert (summary["pending_rows"], summary["wal_rows"]) == ("2", "2" if has_log else "0")
    assert local["wal_retained_bytes"] == ("3" if has_log else "0")
    assert (int(local["sqlite_shared_total_bytes"]) > 0) is has_log


def test_configuration_and_closure_are_told(api: Api) -> None:
    path = api.stream(headers={"Stream-TTL": "3600"})
    headers = {"Stream-Seq": "seq-7", "Stream-Closed": "true"}
    assert api.append(path, b"x", headers=headers).status == 204
    summary = details(api, path)["stream"]
    assert (summary["ttl_seconds"], summary["stream_seq"]) == (3600, "seq-7")
    assert summary["closed"] is True
    assert summary["created_at"] <= summary["last_append_at"] < summary["expires_at"]


def test_a_snapshot_is_told(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.publish(path, token(1, 3), b"123456").status == 204
    found = details(api, path)
    snapshot, earliest = found["stream"]["snapshot"], found["stream"]["earliest_offset"]
    assert (snapshot["offset"], snapshot["size_bytes"]) == (token(1, 3), "6")
    assert earliest == token(1, 3)
    assert found["storage"]["object_storage"]["snapshot_bytes"] == "6"
    assert found["stream"]["total_size_bytes"] == "3"


def test_a_fork_tells_of_its_own(api: Api) -> None:
    source = api.stream(b"one", b"two")
    fork, created = api.fork(source, token(1, 3))
    assert created.status == 201
    summary = details(api, fork)["stream"]
    assert (summary["next_offset"], summary["sealed_through"]) == (token(1, 3), "-1")
    assert (summary["pending_rows"], summary["total_size_bytes"]) == ("0", "3")


@each_kind
def test_a_stream_that_is_not_there_has_no_descriptor(api: Api, kind: str) -> None:
    assert error_code(describe(api, fresh_path(), kind)) == "stream_not_found"
    path = api.stream(b"one")
    assert api.fork(path)[1].status == 201
    assert api.delete(path).status == 204
    assert describe(api, path, kind).status == 410


@each_kind
def test_only_reads_are_answered_below_a_stream(memory_api: Api, kind: str) -> None:
    path = memory_api.stream()
    for method in ("PUT", "POST", "DELETE"):
        assert memory_api.call(method, f"{path}/{kind}").status == 405
    head = memory_api.head(f"{path}/{kind}")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == describe(memory_api, path, kind).headers["etag"]


def test_a_stream_may_still_be_called_like_a_descriptor(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    for path in (f"/v1/stream{bucket}/%5Fdetails", "/v1/stream/_details"):
        memory_api.stream(b"mine", path=path)
        assert memory_api.get(path).body == b"mine"
        assert details(memory_api, path)["stream"]["total_size_bytes"] == "4"


def test_looking_at_a_stream_does_not_keep_it_alive(memory_api: Api) -> None:
    path = memory_api.stream(b"one", headers={"Stream-TTL": "1"})
    deadline = time.monotonic() + 10
    while describe(memory_api, path).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert describe(memory_api, path).status == 404


def test_a_descriptor_is_compressed_for_those_who_ask(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    plain = describe(memory_api, path)
    packed = memory_api.get(f"{path}/_details", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["etag"] == plain.headers["etag"]
    assert "accept-encoding" in packed.headers["vary"]


# Tags


@each_kind
def test_a_descriptor_that_the_client_has_is_not_sent_again(api: Api, kind: str) -> None:
    path = api.stream(b"one")
    first = describe(api, path, kind)
    tag = first.headers["etag"]
    assert tag.startswith(f'W/"{kind[1:]}:')
    assert first.headers["cache-control"] == "no-store"
    for sent in (tag, f'"other", {tag}', "*", tag.removeprefix("W/")):
        again = describe(api, path, kind, sent)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert describe(api, path, kind, '"other"').status == 200


def test_a_tag_changes_with_the_stream(api: Api) -> None:
    path = api.bucketed()
    changes: list[Callable[[], Reply]] = [
        lambda: api.append(path, b"one"),
        lambda: api.append(path, b"two", headers=producer("p", 0, 0)),
        lambda: api.publish(path, token(1, 3)),
        lambda: api.close_stream(path),
    ]
    tags = [describe(api, path).headers["etag"]]
    for change in changes:
        assert change().status in (200, 204)
        tags.append(describe(api, path).headers["etag"])
    assert len(set(tags)) == len(tags)


def test_a_tag_does_not_change_with_anything_else(api: Api) -> None:
    path = api.stream(b"one", headers={"Stream-TTL": "3600"})
    tag = describe(api, path).headers["etag"]
    for number in range(1, 20):
        other = api.stream(b"x" * 1000 * number)
        api.get(path)
        api.get(other)
        describe(api, other)
        assert describe(api, path, tag=tag).status == 304


def test_the_next_stream_of_a_name_has_another_tag(api: Api) -> None:
    path = api.stream()
    tag = describe(api, path).headers["etag"]
    assert api.delete(path).status == 204
    api.stream(path=path)
    assert describe(api, path, tag=tag).status == 200


# Waiting


CHANGES: dict[str, Callable[[Api, str], Reply]] = {
    "append": lambda api, path: api.append(path, b"two"),
    "close": lambda api, path: api.close_stream(path),
    "snapshot": lambda api, path: api.publish(path, token(1, 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_ends_the_wait(api: Api, change: str) -> None:
    path = api.bucketed(b"one")
    waiting = wait(api, path, query="live=true&timeout=30s")
    began = time.monotonic()
    assert CHANGES[change](api, path).status == 204
    reply = waiting.reply()
    assert time.monotonic() - began < 5
    assert reply.status == 200
    assert reply.headers["etag"] == describe(api, path).headers["etag"]
    assert reply.json()["stream"] == details(api, path)["stream"]


@pytest.mark.parametrize("live", ["true", "1", "long-poll"])
@each_kind
def test_a_change_of_another_stream_does_not_end_the_wait(api: Api, kind: str, live: str) -> None:
    path, other = api.stream(b"one"), api.stream()
    waiting = wait(api, path, kind, f"live={live}&timeout_ms=400")
    began = time.monotonic()
    for _ in range(3):
        assert api.append(other, b"x").status == 204
    reply = waiting.reply()
    assert (reply.status, reply.body) == (304, b"")
    assert time.monotonic() - began > 0.2


def test_a_wait_that_does_not_say_lasts_three_seconds(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    began = time.monotonic()
    assert wait(memory_api, path).reply().status == 304
    assert 2.5 < time.monotonic() - began < 8


def test_a_client_with_nothing_or_something_old_does_not_wait(api: Api) -> None:
    path = api.stream(b"one")
    old = describe(api, path).headers["etag"]
    assert api.append(path, b"two").status == 204
    began = time.monotonic()
    for tag in (None, old, '"nonsense"'):
        headers = {} if tag is None else {"If-None-Match": tag}
        reply = api.get(f"{path}/_details?live=true&timeout=30s", headers=headers)
        assert reply.status == 200
    assert time.monotonic() - began < 10


def test_the_end_of_a_stream_ends_the_waits(api: Api) -> None:
    path = api.stream(b"one")
    waiting = [wait(api, path, kind, "live=true&timeout=30s") for kind in KINDS]
    assert api.delete(path).status == 204
    assert [each.reply().status for each in waiting] == [404, 404]


def test_a_client_that_leaves_does_not_disturb_the_others(api: Api) -> None:
    path = api.stream(b"one")
    leaver, stayer = (wait(api, path, query="live=true&timeout=30s") for _ in range(2))
    leaver.close()
    api.settle()
    assert api.append(path, b"two").status == 204
    assert stayer.reply().status == 200


@pytest.mark.parametrize("query", ["live=sse", "live=", "live=true&timeout=soon", "live=1&live=1"])
def test_a_wait_that_makes_no_sense_is_refused(memory_api: Api, query: str) -> None:
    reply = memory_api.get(f"{memory_api.stream()}/_details?{query}")
    assert (reply.status, error_code(reply)) == (400, "invalid_request")


@pytest.mark.parametrize("journal", ["memory", "wal"])
def test_a_stop_answers_those_who_wait(journal: str, tmp_path: Path) -> None:
    with running_server(tmp_path if journal == "wal" else None) as server:
        with closing(Api(server)) as api:
            waiting = wait(api, api.stream(b"one"), query="live=true&timeout=50s")
            began = time.monotonic()
            assert server.stop() == 0
            assert waiting.reply().status == 304
            assert time.monotonic() - began < 8
        assert "Traceback" not in server.finish_output()


def test_a_descriptor_survives_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, closing(Api(server)) as api:
        path = api.stream(b"one", b"two")
        before = describe(api, path)
        server.kill()
    with running_server(tmp_path) as server, closing(Api(server)) as api:
        assert describe(api, path).headers["etag"] == before.headers["etag"]


# The list of all streams


def test_a_place_that_is_far_off_is_refused_and_told_the_other_way(memory_api: Api) -> None:
    assert memory_api.get("/v1/streams?offset=10000").status == 200
    refused = memory_api.get("/v1/streams?offset=10001")
    assert (refused.status, error_code(refused)) == (400, "invalid_request")
    assert "after=" in refused.json()["error"]["message"]


# The server


def test_the_server_tells_what_it_may_take_and_takes(api: Api) -> None:
    api.stream(b"x" * 1000)
    reply = api.get("/v1/server/_details")
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    found = reply.json()
    assert set(found) == {"auto_tune", "configured_limits", "runtime"}
    assert found["configured_limits"]["ingest"]["max_body_bytes"] == 64 * 1024 * 1024
    runtime = found["runtime"]
    assert runtime["memory"]["process"]["rss_bytes"] > 10_000_000
    assert runtime["local_backpressure"]["current_bytes"] >= 1000
    assert runtime["local_backpressure"]["enabled"] is (api.server.data_dir is not None)
    assert set(runtime["concurrency"]) == {"ingest", "read", "search", "async_index"}
    assert 0 < len(runtime["top_streams"]["local_storage_bytes"]) <= 5


def test_the_server_tells_of_its_memory(api: Api) -> None:
    waiting = wait(api, api.stream(b"one"), query="live=true&timeout=30s")
    found = api.get("/v1/server/_mem").json()
    assert found["ts"].endswith("Z")
    assert found["process"]["rss_bytes"] <= found["high_water"]["process"]["rss_bytes"]["value"]
    assert len(found["counters"]) == 27
    assert found["counters"]["tieredstore.mem.leak_candidate.notifier.details_version_streams"] > 0
    assert any(each["details_waiters"] for each in found["top_streams"]["notifier_waiters"])
    waiting.close()


@pytest.mark.parametrize("path", ["/v1/server/_details", "/v1/server/_mem", "/health"])
def test_what_the_server_tells_is_only_read(memory_api: Api, path: str) -> None:
    assert memory_api.head(path).status == 200
    assert memory_api.post(path, b"x", content_type=TEXT).status == 405


def test_what_else_could_be_below_server_is_not_there(memory_api: Api) -> None:
    for path in ("/v1/server", "/v1/server/", "/v1/server/_nothing"):
        assert memory_api.get(path).status == 404


def test_health_is_told_as_json_too(memory_api: Api) -> None:
    reply = memory_api.get("/health")
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    assert json.loads(reply.body) == {"ok": True}
    assert memory_api.put("/health").status == 400  # no bucket can be called so
    assert memory_api.get(f"/health/x?offset={START}").status == 404
