"""Profiles take any JSON: they refuse it, or make a record that their schema takes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema, SchemaViolation
from millstream.schemas.documents import encode_document
from millstream.schemas.profiles import metrics_rules, plan_profile, profile_of
from tests.unit.effort import brief
from tests.unit.schemas.test_values import JSON

EVLOG = plan_profile(None, b'{"profile":{"kind":"evlog","redactKeys":["pin"]}}', True, True).rules
METRICS = metrics_rules(lean=False)
GENERIC = st.just({"kind": "generic"})
STATE = plan_profile(None, b'{"profile":{"kind":"state-protocol"}}', True, True).rules


def records_with(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=3), JSON, max_size=12)


numbers = st.integers() | st.floats() | st.from_regex(r"-?[0-9]{1,5}(\.[0-9]+)?", fullmatch=True)
contexts = st.recursive(
    JSON,
    lambda inner: records_with("token", "PIN", "traceparent", "requestId") | st.lists(inner),
    max_leaves=10,
)
evlogs = st.fixed_dictionaries(
    {},
    optional={
        "status": numbers | JSON,
        "duration": numbers | JSON,
        "level": st.sampled_from(["WARN", "x"]) | JSON,
        "sampling": st.none() | st.dictionaries(st.text(max_size=2), JSON),
        "timestamp": st.text(),
        "why": st.text(),
        "requestId": st.text(),
        "traceContext": records_with("traceId", "spanId", "traceparent"),
        "context": contexts,
        "token": JSON,
        "other": contexts,
    },
)
intervals = st.fixed_dictionaries(
    {
        "metric": st.sampled_from(["m", " m é"]),
        "unit": st.just("ns"),
        "windowStart": st.integers(max_value=0) | st.just("-7.5"),
        "windowEnd": st.integers(min_value=0) | st.just("7e3") | numbers,
        "count": st.integers(min_value=0) | st.floats(min_value=0) | numbers,
        "sum": numbers,
    },
    optional={
        "kind": st.none() | st.just("interval"),
        "min": numbers | JSON,
        "max": numbers | JSON,
        "avg": numbers,
        "p50": JSON,
        "intervalMs": numbers,
        "tags": records_with("a", "b"),
        "attributes": st.dictionaries(st.text(max_size=3), numbers | st.text()) | JSON,
        "buckets": st.dictionaries(numbers.map(str), numbers) | JSON,
        "summary": records_with("count", "sum", "min", "max", "histogram"),
    },
)
changes = st.fixed_dictionaries(
    {"headers": records_with("operation", "control", "txid", "timestamp", "offset") | JSON},
    optional={"type": JSON, "key": JSON, "value": JSON, "old_value": JSON, "x": JSON},
)


def copied(record: Any) -> Any:
    """As it would come from the wire: without the numbers that JSON does not have."""
    return msgspec.json.decode(msgspec.json.encode(record))


@pytest.mark.parametrize("rules", [EVLOG, METRICS], ids=["evlog", "metrics"])
@brief
@given(data=st.data())
def test_what_is_normalised_is_taken_by_the_schema_and_stays_as_it_is(
    rules: Any, data: st.DataObject
) -> None:
    record = data.draw(evlogs | JSON if rules is EVLOG else intervals | JSON)
    profile = profile_of(rules)
    with suppress(SchemaViolation):
        first, key = profile.normalise(record, 1_767_225_600_000)
        stored = copied(first)
        schema = msgspec.json.decode(rules.schemas[-1])
        assert jsonschema_rs.validator_for(schema).is_valid(stored)
        again = profile.normalise(stored, 0)
        assert encode_document(again.record) == encode_document(first)
        assert again.key == key


@brief
@given(changes | JSON)
def test_a_change_is_kept_as_it_is_or_refused(record: Any) -> None:
    with suppress(SchemaViolation):
        normal, key = profile_of(STATE).normalise(record, 0)
        assert normal is record
        assert key is None


@brief
@given(
    st.binary() | (JSON | GENERIC).map(lambda profile: msgspec.json.encode({"profile": profile}))
)
def test_any_body_is_an_update_or_refused(body: bytes) -> None:
    with suppress(InvalidSchema):
        assert plan_profile(None, body, True, True).rules.kind == "generic"
