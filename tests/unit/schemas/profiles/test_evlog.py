from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import SchemaViolation
from millstream.limits import EVLOG_DEPTH_MAX, EVLOG_REDACTED_CHARACTERS_MAX
from millstream.schemas.profiles.evlog import EvlogProfile, evlog_settings
from millstream.schemas.profiles.profile import Normalised

NOW_MS = 1_767_225_600_123
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def normalise(record: Any, **settings: Any) -> Normalised:
    profile = EvlogProfile(evlog_settings({"kind": "evlog", **settings}))
    return profile.normalise(record, NOW_MS)


def record_of(record: Any, **settings: Any) -> dict[str, Any]:
    normal: dict[str, Any] = normalise(record, **settings).record
    return normal


def test_a_record_in_its_envelope() -> None:
    sent = (
        b'{"service":"checkout","status":"503","duration":"12.5","requestId":" req_1 ",'
        b'"message":"card declined","token":"t0","user":{"id":1,"password":"p",'
        b'"nested":[{"cookie":"c"}]},'
        b'"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    )
    record, key = normalise(msgspec.json.decode(sent))
    assert key == "req_1"
    assert msgspec.json.encode(record) == (
        b'{"timestamp":"2026-01-01T00:00:00.123Z","level":"error","service":"checkout",'
        b'"environment":null,"version":null,"region":null,"requestId":"req_1",'
        b'"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7",'
        b'"method":null,"path":null,"status":503,"duration":12.5,"message":"card declined",'
        b'"why":null,"fix":null,"link":null,"sampling":null,'
        b'"redaction":{"keys":["token","user.password","user.nested.0.cookie"]},'
        b'"context":{"token":"[REDACTED]","user":{"id":1,"password":"[REDACTED]",'
        b'"nested":[{"cookie":"[REDACTED]"}]},'
        b'"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}'
    )


@pytest.mark.parametrize("record", [None, 5, "x", [], [{}]])
def test_only_objects_are_taken(record: Any) -> None:
    with pytest.raises(SchemaViolation) as caught:
        normalise(record)
    assert caught.value.message == "evlog record must be an object"


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("service", "  a b ", "a b"),
        ("service", " ", None),
        ("region", 5, None),
        ("status", 404, 404),
        ("status", 404.0, 404),
        ("status", " 404 ", 404),
        ("status", "404.0", 404),
        ("status", 404.5, None),
        ("status", "ok", None),
        ("status", True, None),
        ("duration", 12, 12),
        ("duration", "1e3", 1000.0),
        ("duration", "fast", None),
        ("duration", False, None),
        ("duration", float("inf"), None),
        ("timestamp", " yesterday ", "yesterday"),
        ("timestamp", "", "2026-01-01T00:00:00.123Z"),
        ("timestamp", 5, "2026-01-01T00:00:00.123Z"),
        ("sampling", {"rate": 0.5}, {"rate": 0.5}),
        ("sampling", None, None),
        ("redaction", {"keys": ["mine"]}, {"keys": []}),
    ],
)
def test_fields(field: str, given: Any, expected: Any) -> None:
    value = record_of({field: given})[field]
    assert value == expected
    assert type(value) is type(expected)


def test_a_sampling_that_the_schema_would_refuse_is_refused() -> None:
    with pytest.raises(SchemaViolation, match="sampling must be an object or null"):
        normalise({"sampling": 5})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"level": " WARN ", "status": 500, "why": "x"}, "warn"),
        ({"level": "fatal"}, "info"),
        ({"level": "fatal", "status": 400}, "warn"),
        ({"why": "x", "status": 200}, "error"),
        ({"fix": "x"}, "error"),
        ({"link": "x"}, "error"),
        ({"why": " "}, "info"),
        ({"status": 499}, "warn"),
        ({"status": "500"}, "error"),
        ({"status": 399}, "info"),
        ({}, "info"),
    ],
)
def test_levels(record: dict[str, Any], expected: str) -> None:
    assert record_of(record)["level"] == expected


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"context": {"a": 1}, "b": 2}, {"a": 1, "b": 2}),
        ({"context": {"a": 1}, "a": 2}, {"a": 2}),
        ({"context": "text"}, {"context": "text"}),
        ({"context": None, "b": 2}, {"b": 2, "context": None}),
        ({"context": {"context": 1}}, {"context": 1}),
        ({"traceContext": {"x": 1}, "headers": {}}, {"traceContext": {"x": 1}, "headers": {}}),
    ],
)
def test_the_context_has_what_has_no_place_of_its_own(
    record: dict[str, Any], expected: Any
) -> None:
    assert record_of(record)["context"] == expected


def test_where_a_request_id_is_looked_for() -> None:
    assert record_of({"context": {"requestId": "c"}})["requestId"] == "c"
    assert record_of({"requestId": 5, "context": {"requestId": "c"}})["requestId"] == "c"
    settings = {"correlation": {"requestIdFields": ["a.b", "req"]}}
    assert record_of({"a": {"b": " "}, "req": "r"}, **settings)["requestId"] == "r"
    assert record_of({"requestId": "r"}, **settings)["requestId"] is None


def test_where_trace_and_span_are_looked_for() -> None:
    parent = f"00-{TRACE.upper()}-{SPAN}-01"
    both = record_of({"traceId": "t", "headers": {"traceparent": parent}})
    assert (both["traceId"], both["spanId"]) == ("t", SPAN)
    inner = record_of({"traceContext": {"traceId": "t", "spanId": "s"}})
    assert (inner["traceId"], inner["spanId"]) == ("t", "s")
    settings = {"correlation": {"traceContextFields": ["otel.traceId", "otel.xspanId"]}}
    configured = record_of({"otel": {"traceId": "t", "xspanId": "s"}, "traceId": "u"}, **settings)
    assert (configured["traceId"], configured["spanId"]) == ("t", None)
    assert record_of({"context": {"traceparent": parent}})["traceId"] == TRACE
    off = {"correlation": {"parseTraceparent": False}}
    assert record_of({"traceparent": parent}, **off)["traceId"] is None


@pytest.mark.parametrize(
    "parent",
    [
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}x-{SPAN}-01",
        5,
    ],
)
def test_a_traceparent_that_is_none_is_passed_over(parent: Any) -> None:
    good = f"00-{TRACE}-{SPAN}-01-extra"
    assert record_of({"traceparent": parent})["traceId"] is None
    assert record_of({"traceparent": parent, "headers": {"traceparent": good}})["traceId"] == TRACE


def test_the_routing_key_is_the_request_else_the_trace() -> None:
    assert normalise({"requestId": "r", "traceId": "t"}).key == "r"
    assert normalise({"traceId": "t"}).key == "t"
    assert normalise({}).key is None


def test_secrets_are_found_whatever_their_case_and_only_in_the_context() -> None:
    record = record_of(
        {"message": "m", "PassWord": {"deep": [1]}, "list": [[{"Session": 1}]], "link": "l"},
        redactKeys=["SESSION", "message", "link"],
    )
    assert record["context"] == {"PassWord": "[REDACTED]", "list": [[{"Session": "[REDACTED]"}]]}
    assert record["redaction"]["keys"] == ["PassWord", "list.0.0.Session"]
    assert (record["message"], record["link"]) == ("m", "l")


def test_a_record_may_be_deep_but_not_too_deep() -> None:
    def nested(levels: int) -> dict[str, Any]:
        deep: Any = {"token": 1}
        for _ in range(levels):
            deep = {"a": deep}
        return {"deep": deep}

    record = record_of(nested(EVLOG_DEPTH_MAX - 2))
    assert len(record["redaction"]["keys"]) == 1
    with pytest.raises(SchemaViolation, match="nested too deeply"):
        normalise(nested(EVLOG_DEPTH_MAX - 1))


def test_every_secret_goes_but_the_list_of_their_places_is_bounded() -> None:
    name = "k" * 1000
    record = record_of({name: [{"token": 1} for _ in range(1000)], "secret": 1})
    assert record["context"][name] == [{"token": "[REDACTED]"}] * 1000
    assert record["context"]["secret"] == "[REDACTED]"
    keys = record["redaction"]["keys"]
    assert keys[0] == f"{name}.0.token"
    assert 50 < len(keys) < 1000
    assert sum(map(len, keys)) <= EVLOG_REDACTED_CHARACTERS_MAX
