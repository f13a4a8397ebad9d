from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidSchema, StreamNotEmpty
from millstream.schemas.documents import encode_document
from millstream.schemas.profiles import plan_profile, profile_document, profile_of
from millstream.schemas.registry import Change
from millstream.schemas.search_config import parse_search, search_document, search_of
from millstream.schemas.touch_settings import TouchSettings, touch_settings_of
from millstream.state.rules import Rules

API_VERSION = "durable.streams/profile/v1"
WITH_SCHEMAS = Rules(
    revision=4,
    schemas=(b"{}", b"true"),
    lenses=(b"", b"{}"),
    routing_key=b'{"jsonPointer":"/a","required":false}',
    search=b'{"mine":1}',
    boundaries=((0, 1), (9, 2)),
)


def plan(
    profile: Any, rules: Rules | None = None, is_json: bool = True, is_empty: bool = True
) -> Change:
    return plan_profile(rules, encode_document({"profile": profile}), is_json, is_empty)


def shown(profile: Any) -> dict[str, Any]:
    document = profile_document(plan(profile).rules)
    assert document["apiVersion"] == API_VERSION
    inner: dict[str, Any] = document["profile"]
    return inner


def test_a_stream_without_rules_is_generic() -> None:
    assert profile_document(None) == {"apiVersion": API_VERSION, "profile": {"kind": "generic"}}
    generic = profile_of(Rules(revision=1))
    assert not generic.rewrites
    assert generic.normalise([1], 0) == ([1], None)


def test_generic_changes_nothing_and_leaves_the_schemas() -> None:
    assert plan({"kind": "generic"}, is_json=False).rules == Rules(revision=0)
    evlog = plan({"kind": "evlog"}).rules
    change = plan({"kind": "generic"}, evlog, is_empty=False)
    assert change == (
        msgspec.structs.replace(evlog, kind="generic", profile=b""),
        False,
        False,
        False,
    )


def test_evlog_brings_its_schema_and_search_config() -> None:
    rules, begins_version, is_fresh, needs_empty = plan({"kind": "evlog"}, WITH_SCHEMAS)
    assert (begins_version, is_fresh, needs_empty) == (False, True, True)
    assert (rules.revision, rules.kind, rules.version, rules.lenses) == (4, "evlog", 1, (b"",))
    assert rules.routing_key == b""
    search = search_of(rules)
    assert search is not None
    rollup = search.rollups["requests"]
    assert [field.name for field in rollup.dimensions] == ["service", "level", "method"]
    assert {measure.name for measure in rollup.measures} == {"count", "errors", "duration"}
    assert profile_of(rules).rewrites


def test_metrics_may_come_to_a_stream_with_entries() -> None:
    rules, begins_version, is_fresh, needs_empty = plan(
        {"kind": "metrics"}, WITH_SCHEMAS, is_empty=False
    )
    assert (begins_version, is_fresh, needs_empty) == (False, True, False)
    assert (rules.kind, rules.version) == ("metrics", 1)
    assert rules.routing_key == b'{"jsonPointer":"/seriesKey","required":true}'
    search = search_of(rules)
    assert search is not None
    assert search.profile == "metrics"
    assert list(search.rollups["metrics"].intervals_ms) == ["10s", "1m", "5m", "1h"]


@pytest.mark.parametrize("kind", ["evlog", "metrics"])
def test_canonical_search_configs_are_in_their_normal_form(kind: str) -> None:
    rules = plan({"kind": kind}).rules
    normal = search_document(parse_search(msgspec.json.decode(rules.search)))
    assert encode_document(normal) == rules.search


def test_evlog_comes_before_the_first_entry_or_not_at_all() -> None:
    with pytest.raises(StreamNotEmpty) as caught:
        plan({"kind": "evlog"}, is_empty=False)
    assert caught.value.message == "evlog profile must be installed before appending data"


def test_settings_change_while_there_are_entries_and_the_schemas_stay() -> None:
    evolved = msgspec.structs.replace(WITH_SCHEMAS, kind="evlog", profile=b'{"kind":"evlog"}')
    change = plan({"kind": "evlog", "redactKeys": ["ssn"]}, evolved, is_empty=False)
    profile = b'{"kind":"evlog","redactKeys":["ssn"]}'
    assert change == (msgspec.structs.replace(evolved, profile=profile), False, False, False)
    record = profile_of(change.rules).normalise({"ssn": "1"}, 0).record
    assert record["context"] == {"ssn": "[REDACTED]"}


def test_state_protocol_leaves_the_schemas_and_says_whether_touch_is_on() -> None:
    change = plan({"kind": "state-protocol", "touch": {"enabled": True}}, WITH_SCHEMAS)
    assert change.rules.touch
    assert change.rules.schemas == WITH_SCHEMAS.schemas
    assert change[1:] == (False, False, False)
    assert touch_settings_of(change.rules) == TouchSettings()
    for profile in (
        {"kind": "state-protocol"},
        {"kind": "state-protocol", "touch": {"enabled": False}},
        {"kind": "generic"},
        {"kind": "metrics"},
    ):
        after = plan(profile, change.rules, is_empty=False).rules
        assert not after.touch
        assert after.kind == profile["kind"]
        assert touch_settings_of(after) is None


def test_what_is_shown_is_the_normal_form() -> None:
    assert shown({"kind": "evlog", "redactKeys": [" SSN", "ssn", "Pin"]}) == {
        "kind": "evlog",
        "redactKeys": ["ssn", "pin"],
    }
    evlog = {
        "kind": "evlog",
        "correlation": {"requestIdFields": [" a.b ", "a.b"], "parseTraceparent": False},
        "observability": {"request": {"tracesStream": " traces "}},
    }
    assert shown(evlog) == {
        "kind": "evlog",
        "correlation": {"requestIdFields": ["a.b"], "parseTraceparent": False},
        "observability": {"request": {"tracesStream": "traces"}},
    }
    assert shown({"kind": "evlog", "correlation": {}, "observability": {}}) == {"kind": "evlog"}
    assert shown({"kind": "state-protocol"}) == {"kind": "state-protocol"}
    touched = shown({"kind": "state-protocol", "touch": {"enabled": True, "memory": {"k": 2}}})
    assert touched["touch"]["memory"]["k"] == 2
    assert touched["touch"]["fineBurstTokens"] == 400_000
    off = shown({"kind": "state-protocol", "touch": {}})
    assert off == {"kind": "state-protocol", "touch": {"enabled": False}}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (5, "profile must be an object"),
        ({}, "profile.kind must be evlog|generic|metrics|state-protocol"),
        ({"kind": "logs"}, "profile.kind must be evlog|generic|metrics|state-protocol"),
        ({"kind": ["evlog"]}, "profile.kind must be evlog|generic|metrics|state-protocol"),
        ({"kind": "generic", "touch": {}}, "profile.touch is not supported"),
        ({"kind": "metrics", "interval": 5}, "profile.interval is not supported"),
        ({"kind": "evlog", "touch": {}}, "profile.touch is not supported"),
        ({"kind": "evlog", "redactKeys": "x"}, "profile.redactKeys must be an array of strings"),
        ({"kind": "evlog", "redactKeys": [5]}, "profile.redactKeys must be an array of strings"),
        (
            {"kind": "evlog", "redactKeys": [" "]},
            "profile.redactKeys must not contain empty strings",
        ),
        ({"kind": "evlog", "redactKeys": ["x"] * 65}, "profile.redactKeys too large (max 64)"),
        (
            {"kind": "evlog", "redactKeys": ["x" * 257]},
            "profile.redactKeys[0] must not exceed 256 characters",
        ),
        ({"kind": "evlog", "correlation": 5}, "profile.correlation must be an object"),
        (
            {"kind": "evlog", "correlation": {"x": 1}},
            "profile.correlation.x is not supported",
        ),
        (
            {"kind": "evlog", "correlation": {"traceContextFields": [""]}},
            "profile.correlation.traceContextFields must not contain empty strings",
        ),
        (
            {"kind": "evlog", "correlation": {"parseTraceparent": "no"}},
            "profile.correlation.parseTraceparent must be boolean",
        ),
        (
            {"kind": "evlog", "observability": {"request": {"x": 1}}},
            "profile.observability.request.x is not supported",
        ),
        (
            {"kind": "evlog", "observability": {"request": {"tracesStream": ""}}},
            "profile.observability.request.tracesStream must be a non-empty string",
        ),
        (
            {"kind": "state-protocol", "touch": {"enabled": "yes"}},
            "profile.touch.enabled must be boolean",
        ),
        ({"kind": "state-protocol", "x": 1}, "profile.x is not supported"),
    ],
)
def test_what_is_no_profile(profile: Any, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        plan(profile)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "profileUpdate must be an object"),
        (b"{}", "profile must be an object"),
        (b'{"profile":{"kind":"generic"},"schema":{}}', "profileUpdate.schema is not supported"),
        (b'{"profile":{"kind":"generic"},"apiVersion":"v2"}', "invalid profile apiVersion"),
    ],
)
def test_what_is_no_update(body: bytes, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        plan_profile(None, body, True, True)
    assert caught.value.message == message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 2000])
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(InvalidSchema, match="profile update "):
        plan_profile(None, body, True, True)


@pytest.mark.parametrize("kind", ["evlog", "metrics", "state-protocol"])
def test_only_streams_of_json_have_profiles(kind: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        plan({"kind": kind}, is_json=False)
    message = f"{kind} profile requires application/json stream content-type"
    assert caught.value.message == message


def test_the_api_version_may_be_named() -> None:
    body = encode_document({"apiVersion": API_VERSION, "profile": {"kind": "generic"}})
    assert plan_profile(None, body, True, True).rules == Rules(revision=0)
