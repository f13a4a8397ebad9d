"""Profiles: what a stream does to its entries before it keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.api import JSON, TEXT, Api, error_code, fresh_path
from tests.support.http import Reply

API_VERSION = "durable.streams/profile/v1"


def set_profile(api: Api, path: str, **profile: Any) -> Reply:
    return api.post(f"{path}/_profile", json.dumps({"profile": profile}), content_type=JSON)


def profiled(api: Api, **profile: Any) -> str:
    path = api.stream(content_type=JSON)
    reply = set_profile(api, path, **profile)
    assert reply.status == 200, reply.body
    return path


def test_a_stream_is_generic_until_it_is_told(api: Api) -> None:
    path = api.stream(content_type=JSON)
    generic = {"apiVersion": API_VERSION, "profile": {"kind": "generic"}}
    assert api.get(f"{path}/_profile").json() == generic
    assert set_profile(api, path, kind="generic").json() == generic
    assert error_code(api.get(f"{fresh_path()}/_profile")) == "stream_not_found"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"profile":{}}',
        b'{"profile":{"kind":"other"}}',
        b'{"profile":{"kind":"generic","x":1}}',
        b'{"profile":{"kind":"generic"},"x":1}',
        b'{"apiVersion":"v2","profile":{"kind":"generic"}}',
        b'{"profile":{"kind":"metrics","x":1}}',
        b'{"profile":{"kind":"evlog","redactKeys":"x"}}',
        b'{"profile":{"kind":"state-protocol","touch":{"enabled":"yes"}}}',
        b'{"profile":{"kind":"state-protocol","touch":{"enabled":true,"x":1}}}',
    ],
)
def test_profiles_that_are_none_are_refused(api: Api, document: bytes) -> None:
    path = api.stream(content_type=JSON)
    reply = api.post(f"{path}/_profile", document, content_type=JSON)
    assert reply.status == 400, reply.body
    error_code(reply)
    assert api.get(f"{path}/_profile").json()["profile"] == {"kind": "generic"}


def test_other_profiles_need_json(api: Api) -> None:
    path = api.stream(content_type=TEXT)
    for kind in ("evlog", "metrics", "state-protocol"):
        assert set_profile(api, path, kind=kind).status == 400
    assert set_profile(api, path, kind="generic").status == 200
    assert api.append(path, b"still", TEXT).status == 204


def test_evlog_puts_records_in_shape_and_finds_their_key(api: Api) -> None:
    path = profiled(api, kind="evlog")
    record = {
        "service": "checkout",
        "status": "503",
        "duration": "12.5",
        "requestId": " req_1 ",
        "message": "card declined",
        "token": "t0",
        "user": {"id": 1, "password": "p", "nested": [{"cookie": "c"}]},
    }
    assert api.append(path, json.dumps(record), JSON).status == 204
    [stored] = api.get(path).json()
    assert (stored["level"], stored["status"], stored["duration"]) == ("error", 503, 12.5)
    assert stored["requestId"] == "req_1"
    assert stored["context"]["token"] == "[REDACTED]"
    assert stored["context"]["user"]["nested"] == [{"cookie": "[REDACTED]"}]
    assert stored["redaction"]["keys"] == ["token", "user.password", "user.nested.0.cookie"]
    assert api.get(f"{path}?key=req_1").json() == [stored]
    assert api.get(f"{path}?filter=status:>=500%20service:checkout").json() == [stored]
    assert error_code(api.post(path, "1", content_type=JSON)) == "schema_violation"
    registry = api.get(f"{path}/_schema").json()
    assert registry["currentVersion"] == 1
    assert registry["search"]["primaryTimestampField"] == "timestamp"
    assert "requests" in registry["search"]["rollups"]


def test_evlog_comes_before_data(api: Api) -> None:
    path = api.stream('{"a":1}', content_type=JSON)
    reply = set_profile(api, path, kind="evlog")
    assert reply.status == 400
    assert "before appending data" in reply.json()["error"]["message"]


def test_metrics_intervals(api: Api) -> None:
    path = profiled(api, kind="metrics")
    record = {
        "metric": "http.latency",
        "unit": "ms",
        "windowStart": 1000,
        "windowEnd": 2000,
        "count": 2,
        "sum": 30,
        "min": 10,
        "max": 20,
        "tags": {"route": "/a", "code": 200},
    }
    assert api.append(path, json.dumps(record), JSON).status == 204
    [stored] = api.get(path).json()
    assert stored["seriesKey"] == "summary|delta|http.latency|ms|||code=200\u0000route=/a"
    assert stored["dimensionPairs"] == ["code=200", "route=/a"]
    assert stored["intervalMs"] == 1000
    reply = api.post(path, json.dumps({**record, "count": None}), content_type=JSON)
    assert error_code(reply) == "schema_violation"
    registry = api.get(f"{path}/_schema").json()
    assert registry["routingKey"] == {"jsonPointer": "/seriesKey", "required": True}
    assert "metrics" in registry["search"]["rollups"]


def test_state_protocol_checks_and_keeps_records_as_they_are(api: Api) -> None:
    path = profiled(api, kind="state-protocol", touch={"enabled": True})
    touch = api.get(f"{path}/_profile").json()["profile"]["touch"]
    assert (touch["coarseIntervalMs"], touch["memory"]["k"]) == (100, 4)
    change = b'{"type":"todo" ,"key":"1","value":{"a":1.0},"headers":{"operation":"insert"}}'
    assert api.append(path, change, JSON).status == 204
    control = b'{"headers":{"control":"snapshot-start"}}'
    assert api.append(path, control, JSON).status == 204
    assert api.get(path).body == b"[" + change + b"," + control + b"]"
    for bad in (
        b"1",
        b"{}",
        b'{"type":"t","key":"1","headers":{"operation":"insert"}}',
        b'{"type":"t","key":"1","value":1,"headers":{"operation":"replace"}}',
        b'{"type":"","key":"1","value":1,"headers":{"operation":"insert"}}',
        b'{"type":"t","key":"1","value":1,"headers":{"operation":"insert"},"x":1}',
        b'{"headers":{"operation":"insert","control":"reset"}}',
    ):
        assert error_code(api.post(path, bad, content_type=JSON)) == "schema_violation", bad


def test_back_to_generic_leaves_the_schema(api: Api) -> None:
    path = profiled(api, kind="evlog")
    assert set_profile(api, path, kind="generic").status == 200
    assert api.get(f"{path}/_schema").json()["currentVersion"] == 1
    assert error_code(api.post(path, "{}", content_type=JSON)) == "schema_violation"
