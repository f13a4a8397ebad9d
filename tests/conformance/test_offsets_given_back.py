"""Every offset that any answer contains can be given back as `?offset=`.

The walk asks every route, looks at all that comes back for what is an offset by its name or by its
shape, and reads the stream from there.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.api import JSON, TEXT, Api, producer
from tests.conformance.conftest import speak_to
from tests.support.http import Reply
from tests.support.server import MOSTLY_COLD, running_server
from tests.unit.api.test_routes import ROWS

TOKEN = re.compile(r"\d{16}_\d{16}")
NAMES_OF_STREAMS = ("name", "path", "stream", "stream_id")
NO_STREAM = {"healthz", "readyz", "metrics", "preflight", "keys"}  # nothing in them is a stream's

ON_DISK_ONLY = {"flush", "garbage", "jobs"}


def is_offset(name: str) -> bool:
    if name.endswith("SourceOffsets"):  # settings of touch: so many messages
        return False
    return "offset" in name.lower() or name.endswith("_through")


class Walk:
    """Calls, and gives every offset back to the stream it is of."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.given_back = list[tuple[str, str]]()

    def call(self, method: str, path: str, stream: str, **kw: Any) -> Reply:
        """`stream` is whose offsets the answer speaks of, unless it names others itself."""
        reply = self.api.call(method, path, **kw)
        assert reply.status < 500, reply
        for name, value in reply.headers.items():
            if name == "etag":  # opaque; what is in it is nobody's place to be
                continue
            found = {*TOKEN.findall(value), *([value] if is_offset(name) else ())}
            self._give_back(stream, found, f"{method} {path}: {name}")
        if reply.headers.get("content-type", "").startswith(JSON) and reply.body:
            self._look_through(reply.json(), stream, f"{method} {path}")
        return reply

    def _look_through(self, value: Any, stream: str, where: str) -> None:
        if isinstance(value, dict):
            named = next((value[n] for n in NAMES_OF_STREAMS if n in value), None)
            if isinstance(named, str):
                stream = self._url(named, "stream_id" in value, where)
            for name, inner in value.items():
                if is_offset(name):
                    assert isinstance(inner, str), f"{where}: {name} is {inner!r}"
                    self._give_back(stream, {inner}, f"{where}: {name}")
                else:
                    self._look_through(inner, stream, f"{where}: {name}")
        elif isinstance(value, list):
            for inner in value:
                self._look_through(inner, stream, where)
        elif isinstance(value, str):
            self._give_back(stream, set(TOKEN.findall(value)), where)

    @staticmethod
    def _url(named: str, is_id: bool, where: str) -> str:
        bucket = re.match(r"GET /([\w-]+)/streams", where)
        root = f"/{bucket[1]}/" if is_id and bucket else "/v1/stream/"
        return root + quote(named.removeprefix("/v1/stream/"), safe="/%")

    def _give_back(self, stream: str, offsets: set[str], where: str) -> None:
        for offset in offsets:
            reply = self.api.get(f"{stream}?offset={quote(offset)}")
            assert reply.status == 200, f"{where} says {offset}; {stream} answers {reply}"
            self.given_back.append((where, offset))


def frames(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


@pytest.fixture(params=["memory", "wal", "cold"])
def own_api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    flags = ("--long-poll-timeout", "0.2", *(MOSTLY_COLD if request.param == "cold" else ()))
    with running_server(None if request.param == "memory" else tmp_path, *flags) as server:
        yield from speak_to(server)


def test_every_offset_of_every_answer_can_be_given_back(own_api: Api) -> None:
    walk = Walk(own_api)
    plain, bucketed = "/v1/stream/plain", "/walk/notes"
    write_plain(walk, plain)
    write_bucketed(walk, bucketed)
    fork(walk, plain)
    for path in (plain, bucketed, "/v1/stream/fork"):
        read(walk, path)
    snapshots(walk, bucketed)
    subscriptions(walk, "/v1/stream/plain")
    for path in ("/v1/streams", "/v1/buckets", "/walk/streams", "/walk"):
        walk.call("GET", path, plain)
    rules(walk, plain)
    operators(walk, bucketed)
    listings_after_trimming(walk, bucketed)
    for path in (plain, bucketed):  # and closed
        walk.call("POST", path, path, headers={"Stream-Closed": "true"})
        assert walk.call("POST", path, path, body=b"[1]", content_type=JSON).status == 409
        read(walk, path)
    walk.call("POST", f"{bucketed}/append-batch", bucketed, body=frames(b"1"), content_type=JSON)
    walk.call("DELETE", plain, bucketed)
    assert len(walk.given_back) > 80
    assert_every_route_was_asked(own_api)


def write_plain(walk: Walk, path: str) -> None:
    walk.call("PUT", path, path, body=b"[1,22,333]", content_type=JSON)
    walk.call("PUT", path, path, body=b"[1,22,333]", content_type=JSON)
    walk.call("POST", path, path, body=b'{"a":"b"}', content_type=JSON)
    for _ in range(2):  # once new, once a duplicate
        headers = producer("p", 0, 0)
        walk.call("POST", path, path, body=b"[4,5]", content_type=JSON, headers=headers)
    refused = walk.call(
        "POST", path, path, body=b"6", content_type=JSON, headers=producer("p", 0, 7)
    )
    assert refused.status == 409
    assert walk.call("POST", path, path, body=b"6", content_type=TEXT).status == 409
    for seq in ("2", "1"):
        walk.call("POST", path, path, body=b"7", content_type=JSON, headers={"Stream-Seq": seq})


def write_bucketed(walk: Walk, path: str) -> None:
    assert walk.call("PUT", "/walk", path).status == 201
    walk.call("PUT", path, path, body=b"[1,22]", content_type=JSON)
    batch = f"{path}/append-batch"
    body = frames(b"[1,2]", b"3", b"", b'"four"')
    acks = walk.call("POST", batch, path, body=body, content_type=JSON)
    assert [ack["status"] for ack in acks.json()] == [204, 204, 400, 204]
    for _ in range(2):
        headers = producer("batch", 0, 0)
        body = frames(b"5", b"6")
        walk.call("POST", batch, path, body=body, content_type=JSON, headers=headers)


def fork(walk: Walk, source: str) -> None:
    tail = walk.api.tail(source)
    headers = {"Stream-Forked-From": source, "Stream-Fork-Offset": tail}
    path = "/v1/stream/fork"
    assert walk.call("PUT", path, path, body=b"[8]", headers=headers).status == 201


def read(walk: Walk, path: str) -> None:
    walk.call("HEAD", path, path)
    for descriptor in ("_details", "_index_status"):
        assert walk.call("GET", f"{path}/{descriptor}", path).status == 200
    offset = "-1"
    if "stream-earliest-offset" in walk.call("GET", f"{path}?offset=-1", path).headers:
        offset = walk.call("GET", f"{path}?offset=-1", path).headers["stream-earliest-offset"]
    for _ in range(3):
        offset = walk.call("GET", f"{path}?offset={offset}&max_bytes=3", path).next_offset
    walk.call("GET", f"{path}?offset=now", path)
    walk.call("GET", f"{path}?offset={offset}&live=long-poll", path)
    walk.call("GET", f"{path}?offset=now&live=long-poll", path)
    for start in (offset, "now"):
        events = walk.api.events(f"{path}?offset={start}&live=sse")
        for event in events.until_up_to_date():
            if event.kind == "control":
                walk._look_through(json.loads(event.data), path, f"SSE of {path}")
        events.close()


def rules(walk: Walk, path: str) -> None:
    update = json.dumps({"routingKey": {"jsonPointer": "/k", "required": False}}).encode()
    walk.call("POST", f"{path}/_schema", path, body=update, content_type=JSON)
    walk.call("POST", path, path, body=b'[{"k":"a"},{"k":"b"}]', content_type=JSON)
    for below in ("/_schema", "/_profile", "/pk/a", "?key=b", "?since=0"):
        assert walk.call("GET", path + below, path).status == 200
    profile = {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}
    post, touch = walk.api.post, f"{path}/touch"  # what these answer counts, and names no offsets
    assert post(f"{path}/_profile", json.dumps(profile), content_type=JSON).status == 200
    cursor = walk.api.get(f"{touch}/meta").json()["cursor"]
    wait = {"cursor": cursor, "keys": ["0" * 16], "timeoutMs": 0}
    assert post(f"{touch}/wait", json.dumps(wait), content_type=JSON).status == 200
    template = {"entity": "t", "fields": [{"name": "a", "encoding": "string"}]}
    body = json.dumps({"templates": [template]})
    assert post(f"{touch}/templates/activate", body, content_type=JSON).status == 200


def snapshots(walk: Walk, path: str) -> None:
    offset = walk.api.get(f"{path}?offset=-1&max_bytes=3").next_offset
    walk.call("GET", f"{path}/bootstrap", path)
    assert walk.call("PUT", f"{path}/snapshot/{offset}", path, body=b"state").status == 204
    assert walk.call("GET", f"{path}/snapshot", path).status == 307
    walk.call("GET", f"{path}/snapshot/{offset}", path)
    bootstrap = walk.call("GET", f"{path}/bootstrap", path)
    assert bootstrap.headers["stream-snapshot-offset"] == offset
    assert walk.call("GET", f"{path}?offset=-1", path).status == 410
    older = walk.call("PUT", f"{path}/snapshot/{'0' * 16}_{'0' * 16}", path, body=b"late")
    assert older.status == 410
    read(walk, path)


def subscriptions(walk: Walk, path: str) -> None:
    root = "/v1/stream/__ds/subscriptions/walk"
    walk.api.stream(path="/v1/stream/wakes", content_type=JSON)
    body: Any = {"type": "pull-wake", "pattern": "*", "wake_stream": "wakes"}

    def control(method: str, url: str, value: Any = None, token: str = "") -> Reply:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        payload = None if value is None else json.dumps(value).encode()
        return walk.call(method, url, path, body=payload, content_type=JSON, headers=headers)

    assert control("PUT", root, body).status == 201
    walk.call("POST", path, path, body=b"9", content_type=JSON)
    control("GET", root)
    wake = control("POST", f"{root}/claim", {"worker": "me"}).json()
    stream = next(s for s in wake["streams"] if s["path"] == "plain")
    ack = {"stream": "plain", "offset": stream["tail_offset"]}
    done = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": [ack]}
    assert control("POST", f"{root}/ack", {**done, "done": True}, wake["token"]).status == 200
    control("GET", root)
    walk.call("GET", "/v1/stream/wakes", "/v1/stream/wakes")


def operators(walk: Walk, path: str) -> None:
    walk.call("POST", f"/__ursula/flush-cold{path}", path)
    walk.call("GET", "/__ursula/metrics", path)
    walk.call("GET", "/__millstream/retention/walk", path)
    walk.call("POST", "/__millstream/jobs/compact", path)
    walk.call("GET", "/__millstream/jobs", path)
    walk.call("GET", "/__millstream/garbage", path)
    walk.call("POST", "/__millstream/flush", path)


def listings_after_trimming(walk: Walk, path: str) -> None:
    for listing in ("/v1/streams", "/walk/streams"):
        walk.call("GET", listing, path)


def assert_every_route_was_asked(api: Api) -> None:
    """A route that comes into being is walked too: its label has to be counted by now."""
    labels = {"sse", "long_poll"}  # which handlers say when they know
    labels |= {action.label or row.label for row in ROWS for action in row.actions.values()}
    asked = set(
        re.findall(r'http_requests_total\{route="(\w+)"', api.get("/metrics").body.decode())
    )
    assert len(labels) > 12, labels
    assert labels - asked - NO_STREAM <= (ON_DISK_ONLY if api.server.data_dir is None else set())
