"""Schemas: installed on an empty stream, evolved through lenses, kept to by every append, and
every read is of the current version."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.conformance.api import JSON, TEXT, Api, error_code, fresh_path, halves, producer
from tests.support.http import Reply

API_VERSION = "durable.streams/schema-registry/v1"
NAMED = {
    "type": "object",
    "required": ["id", "name"],
    "additionalProperties": False,
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
}
TITLED = {
    "type": "object",
    "required": ["id", "title", "done"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer"},
        "title": {"type": "string"},
        "done": {"type": "boolean"},
    },
}
NESTED = {
    "type": "object",
    "required": ["id", "title", "state"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer"},
        "title": {"type": "string"},
        "state": {
            "type": "object",
            "required": ["done"],
            "properties": {"done": {"type": "boolean"}},
        },
    },
}


def name_of(path: str) -> str:
    return path.removeprefix("/v1/stream/")


def lens(path: str, version: int, *ops: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "durable.lens/v1",
        "schema": name_of(path),
        "from": version,
        "to": version + 1,
        "ops": list(ops),
    }


def to_titled(path: str) -> dict[str, Any]:
    done = {"op": "add", "path": "/done", "schema": {"type": "boolean"}, "default": False}
    return lens(path, 1, {"op": "rename", "from": "/name", "to": "/title"}, done)


def to_nested(path: str) -> dict[str, Any]:
    return lens(path, 2, {"op": "plunge", "from": "/done", "host": "/state", "name": "done"})


def update(api: Api, path: str, **fields: Any) -> Reply:
    return api.post(f"{path}/_schema", json.dumps(fields), content_type=JSON)


def install(api: Api, path: str, **fields: Any) -> dict[str, Any]:
    reply = update(api, path, **fields)
    assert reply.status == 200, reply.body
    registry: dict[str, Any] = reply.json()
    return registry


def named_stream(api: Api, *messages: dict[str, Any]) -> str:
    path = api.stream(content_type=JSON)
    install(api, path, schema=NAMED)
    for message in messages:
        assert api.append(path, json.dumps(message), JSON).status == 204
    return path


def evolved(api: Api) -> tuple[str, list[dict[str, Any]]]:
    """Three versions with messages of each, and what a reader shall see."""
    path = named_stream(api, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    install(api, path, schema=TITLED, lens=to_titled(path))
    assert api.append(path, '{"id":3,"title":"c","done":true}', JSON).status == 204
    install(api, path, schema=NESTED, lens=to_nested(path))
    assert api.append(path, '{"id":4,"title":"d","state":{"done":true}}', JSON).status == 204
    return path, [
        {"id": 1, "title": "a", "state": {"done": False}},
        {"id": 2, "title": "b", "state": {"done": False}},
        {"id": 3, "title": "c", "state": {"done": True}},
        {"id": 4, "title": "d", "state": {"done": True}},
    ]


def test_an_untouched_stream_has_an_empty_registry(api: Api) -> None:
    path = api.stream(content_type=JSON)
    reply = api.get(f"{path}/_schema")
    assert reply.status == 200
    assert reply.json() == {
        "apiVersion": API_VERSION,
        "schema": name_of(path),
        "currentVersion": 0,
        "boundaries": [],
        "schemas": {},
        "lenses": {},
    }
    assert error_code(api.get(f"{fresh_path()}/_schema")) == "stream_not_found"
    assert error_code(update(api, fresh_path(), schema=NAMED)) == "stream_not_found"


def test_the_registry_is_there_on_both_surfaces(api: Api) -> None:
    bucketed = api.bucketed(content_type=JSON)
    assert update(api, bucketed, schema=NAMED).status == 200
    same = "/v1/stream" + bucketed
    assert api.get(f"{same}/_schema").json() == api.get(f"{bucketed}/_schema").json()
    assert error_code(api.post(same, "{}", content_type=JSON)) == "schema_violation"


def test_the_first_schema_needs_an_empty_stream_of_json(api: Api) -> None:
    path = api.stream('{"a":1}', content_type=JSON)
    refused = update(api, path, schema=NAMED)
    assert refused.status == 400
    assert "first schema requires empty stream" in refused.json()["error"]["message"]
    assert update(api, api.stream(content_type=TEXT), schema=NAMED).status == 400
    assert api.get(f"{path}/_schema").json()["currentVersion"] == 0
    assert api.append(path, '{"b":1}', JSON).status == 204


def test_appends_keep_to_the_schema_or_leave_nothing_behind(api: Api) -> None:
    path = named_stream(api, {"id": 1, "name": "a"})
    tail = api.tail(path)
    for body in ('{"id":"x","name":"a"}', "[]", '[{"id":2,"name":"b"},{"id":3}]', "17", "null"):
        reply = api.post(path, body, content_type=JSON)
        assert reply.status == 400, body
    assert error_code(api.post(path, '[{"id":2,"name":"b"},{"id":3}]', content_type=JSON)) == (
        "schema_violation"
    )
    assert api.tail(path) == tail
    refused = api.post(path, '{"id":3}', content_type=JSON, headers=producer("p", 0, 0))
    assert error_code(refused) == "schema_violation"
    accepted = api.post(path, '{"id":3,"name":"c"}', content_type=JSON, headers=producer("p", 0, 0))
    assert accepted.status == 200
    assert [each["id"] for each in api.get(path).json()] == [1, 3]


def test_a_large_batch_is_checked_whole(api: Api) -> None:
    path = named_stream(api)
    good = [{"id": number, "name": "n" * 20} for number in range(5000)]
    assert api.post(path, json.dumps([*good, {"id": 1}]), content_type=JSON).status == 400
    assert halves(api.tail(path))[0] == 0
    assert api.append(path, json.dumps(good), JSON).status == 204
    assert halves(api.tail(path))[0] == 5000
    assert api.get(path).json() == good


def test_what_is_stored_is_what_was_sent(api: Api) -> None:
    path = api.stream(content_type=JSON)
    install(api, path, schema={"type": "object"})
    body = b'{"b" : 1.0,"a":12345678901234567890, "b2":"\\u0041"}'
    assert api.append(path, body, JSON).status == 204
    assert api.get(path).body == b"[" + body + b"]"


def test_evolution_promotes_what_was_there(api: Api) -> None:
    path, expected = evolved(api)
    assert api.get(path).json() == expected
    registry = api.get(f"{path}/_schema").json()
    assert registry["currentVersion"] == 3
    assert registry["boundaries"] == [
        {"offset": 0, "version": 1},
        {"offset": 2, "version": 2},
        {"offset": 3, "version": 3},
    ]
    assert sorted(registry["schemas"]) == ["1", "2", "3"]
    assert sorted(registry["lenses"]) == ["1", "2"]
    raw = api.get(f"{path}?format=raw").body
    assert raw.startswith(b'{"id": 1, "name": "a"}{"id": 2, "name": "b"}{"id":3,"title":"c"')


def test_every_way_of_reading_promotes(api: Api) -> None:
    path, expected = evolved(api)
    second = api.get(f"{path}?max_bytes=1").next_offset
    assert api.get(f"{path}?offset={second}").json() == expected[1:]
    polled = api.get(f"{path}?offset=-1&live=long-poll")
    assert (polled.status, polled.json()) == (200, expected)
    assert polled.headers["stream-up-to-date"] == "true"
    events = api.events(f"{path}?offset=-1&live=sse")
    seen = events.until_up_to_date()
    assert [m for e in seen if e.kind == "data" for m in json.loads(e.data)] == expected
    assert api.append(path, '{"id":5,"title":"e","state":{"done":false}}', JSON).status == 204
    more = events.until_up_to_date()
    assert json.loads(more[0].data)[0]["id"] == 5


def test_pages_of_promoted_entries_join_to_the_whole(api: Api) -> None:
    path, expected = evolved(api)
    found, offset = list[Any](), "-1"
    for _ in range(len(expected)):
        reply = api.get(f"{path}?offset={offset}&max_bytes=1")
        assert len(reply.json()) == 1
        found += reply.json()
        offset = reply.next_offset
    assert found == expected
    assert reply.headers["stream-up-to-date"] == "true"
    assert api.get(f"{path}?offset={offset}").json() == []


def test_a_tag_changes_with_the_schema(api: Api) -> None:
    path = named_stream(api, {"id": 1, "name": "a"})
    before = api.get(path)
    install(api, path, schema=TITLED, lens=to_titled(path))
    after = api.get(path, headers={"If-None-Match": before.headers["etag"]})
    assert after.status == 200
    assert after.json() == [{"id": 1, "title": "a", "done": False}]
    again = api.get(path, headers={"If-None-Match": after.headers["etag"]})
    assert again.status == 304


def test_the_next_version_needs_its_lens(api: Api) -> None:
    path = named_stream(api, {"id": 1, "name": "a"})
    assert "lens required" in update(api, path, schema=TITLED).json()["error"]["message"]
    wrong = {**to_titled(path), "from": 2, "to": 3}
    assert update(api, path, schema=TITLED, lens=wrong).status == 409
    other = {**to_titled(path), "schema": "other"}
    assert (
        "lens schema mismatch"
        in (update(api, path, schema=TITLED, lens=other).json()["error"]["message"])
    )
    assert api.get(f"{path}/_schema").json()["currentVersion"] == 1


def test_a_schema_that_requires_what_no_lens_creates_is_refused(api: Api) -> None:
    path = named_stream(api, {"id": 1, "name": "a"})
    only_renamed = lens(path, 1, {"op": "rename", "from": "/name", "to": "/title"})
    reply = update(api, path, schema=TITLED, lens=only_renamed)
    assert reply.status == 400
    assert "done" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"{",
        b'{"schema":1}',
        b'{"schema":{"type":"object"},"extra":1}',
        b'{"apiVersion":"other","schema":{"type":"object"}}',
        b'{"lens":{}}',
        b'{"search":{"fields":{}}}',
        b'{"schema":{"$ref":"http://localhost:1/x"}}',
        b'{"schema":{"properties":{"a":{"$ref":"#/definitions/a"}},"definitions":{"a":{}}}}',
        b'{"schema":{"type":"nonsense"}}',
        b'{"schema":' + b'{"not":' * 2000 + b"{}" + b"}" * 2000 + b"}",
        b'{"schema":{"anyOf":[' + b",".join([b'{"const":%d}' % n for n in range(90_000)]) + b"]}}",
        b'{"routingKey":{"jsonPointer":"no-slash","required":true}}',
    ],
    ids=range(15),
)
def test_updates_that_are_none_are_refused(api: Api, body: bytes) -> None:
    path = api.stream(content_type=JSON)
    reply = api.post(f"{path}/_schema", body, content_type=JSON)
    assert reply.status in (400, 413), reply.body[:300]
    error_code(reply)
    assert api.get(f"{path}/_schema").json()["currentVersion"] == 0


def test_a_routing_key_of_the_schema(api: Api) -> None:
    path = api.stream(content_type=JSON)
    install(api, path, schema=NAMED, routingKey={"jsonPointer": "/name", "required": True})
    assert api.append(path, '[{"id":1,"name":"a"},{"id":2,"name":"b"}]', JSON).status == 204
    assert api.append(path, '{"id":3,"name":"a"}', JSON).status == 204
    refused = api.post(path, '{"id":4,"name":"a"}', content_type=JSON, headers={"Stream-Key": "x"})
    assert refused.status == 400
    assert "Stream-Key not allowed" in refused.json()["error"]["message"]
    assert [each["id"] for each in api.get(f"{path}?key=a").json()] == [1, 3]
    assert [each["id"] for each in api.get(f"{path}/pk/b").json()] == [2]
    cleared = install(api, path, routingKey=None)
    assert "routingKey" not in cleared


def test_a_missing_routing_key(api: Api) -> None:
    path = api.stream(content_type=JSON)
    install(api, path, routingKey={"jsonPointer": "/k", "required": True})
    assert (
        "routing key missing"
        in (api.post(path, '{"a":1}', content_type=JSON).json()["error"]["message"])
    )
    assert (
        "routing key must be string"
        in (api.post(path, '{"k":1}', content_type=JSON).json()["error"]["message"])
    )
    install(api, path, routingKey={"jsonPointer": "/k", "required": False})
    assert api.append(path, '[{"a":1},{"k":"x"}]', JSON).status == 204
    assert api.get(f"{path}?key=x").json() == [{"k": "x"}]


def test_a_fork_takes_the_registry_as_it_was_at_its_cut_and_goes_its_own_way(api: Api) -> None:
    path, expected = evolved(api)
    third = api.get(f"{path}?max_bytes=1").next_offset
    forked, reply = api.fork(path, third)
    assert reply.status == 201
    registry = api.get(f"{forked}/_schema").json()
    assert registry["currentVersion"] == 1
    assert api.get(forked).json() == [{"id": 1, "name": "a"}]
    assert api.append(forked, '{"id":9,"name":"z"}', JSON).status == 204
    assert api.post(forked, '{"id":9,"title":"z"}', content_type=JSON).status == 400
    whole, reply = api.fork(path, body='{"id":5,"title":"e","state":{"done":false}}')
    assert reply.status == 201
    assert [each["id"] for each in api.get(whole).json()] == [1, 2, 3, 4, 5]
    assert api.get(path).json() == expected
    _, refused = api.fork(path, body='{"id":5}')
    assert error_code(refused) == "schema_violation"


def test_bootstrap_and_append_batch_know_the_schema(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    install(api, path, schema=NAMED)
    frame = b'{"id":1,"name":"a"}'
    batch = len(frame).to_bytes(4, "big") + frame
    assert api.post(f"{path}/append-batch", batch * 2, content_type=JSON).status == 200
    bad = b'{"id":1}'
    refused = api.post(
        f"{path}/append-batch", batch + len(bad).to_bytes(4, "big") + bad, content_type=JSON
    )
    assert refused.status == 400
    assert halves(api.tail(path))[0] == 2
    done = {"op": "add", "path": "/done", "schema": {"type": "boolean"}, "default": False}
    ops: list[dict[str, Any]] = [{"op": "rename", "from": "/name", "to": "/title"}, done]
    registry = api.get(f"{path}/_schema").json()
    document = {**lens(path, 1, *ops), "schema": registry["schema"]}
    install(api, path, schema=TITLED, lens=document)
    body = api.get(f"{path}/bootstrap").body
    assert body.count(b'"title":"a"') == 2
    assert b'"name"' not in body


def test_appends_that_race_an_update_are_of_one_version_or_the_other(api: Api) -> None:
    """An append is never stored behind a boundary whose schema it does not keep to."""
    path = named_stream(api)
    stop = threading.Event()
    outcomes = list[int]()

    def write(number: int) -> None:
        client = Api(api.server)
        while not stop.is_set():
            outcomes.append(
                client.post(
                    path, json.dumps([{"id": number, "name": "x"}] * 20), content_type=JSON
                ).status
            )
        client.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        while len(outcomes) < 30:
            pass
        install(api, path, schema=TITLED, lens=to_titled(path))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert set(outcomes) <= {204, 400, 503}
    boundary = api.get(f"{path}/_schema").json()["boundaries"][1]["offset"]
    assert halves(api.tail(path))[0] == boundary
    offset, seen = "-1", 0
    while True:
        reply = api.get(f"{path}?offset={offset}")
        for entry in reply.json():
            assert set(entry) == {"id", "title", "done"}
        seen += len(reply.json())
        offset = reply.next_offset
        if reply.headers.get("stream-up-to-date"):
            break
    assert seen == boundary


def test_the_deepest_entries_are_shown_through_lenses_that_make_them_deeper(api: Api) -> None:
    path = api.stream(content_type=JSON)
    install(api, path, schema={"type": "array"})
    deepest = "[" * 512 + "]" * 512
    assert api.append(path, f"[{deepest}]", JSON).status == 204
    assert api.append(path, f"[[{deepest}]]", JSON).status == 400
    for version in range(1, 9):
        wrap = {"op": "wrap", "path": "", "mode": "singleton"}
        install(api, path, schema={"type": "array"}, lens=lens(path, version, wrap))
    reply = api.get(f"{path}?offset=-1")
    assert reply.status == 200, reply.body
    assert reply.body == b"[" + b"[" * 8 + deepest.encode() + b"]" * 8 + b"]"
