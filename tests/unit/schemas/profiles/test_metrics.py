from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import SchemaViolation
from millstream.schemas.profiles.metrics import MetricsProfile, metrics_rules
from millstream.schemas.search_config import search_of

SMALL: dict[str, Any] = {
    "metric": "m",
    "unit": "ns",
    "windowStart": 1000,
    "windowEnd": 2000,
    "count": 2,
    "sum": 3,
}


def normalise(**changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = MetricsProfile().normalise(SMALL | changes, 0).record
    return record


def test_a_record_that_only_has_the_necessary() -> None:
    record, key = MetricsProfile().normalise(SMALL | {"tags": {"b": 1, "a": True}}, 0)
    assert key == "summary|delta|m|ns|||a=true\0b=1"
    assert msgspec.json.encode(record) == (
        b'{"apiVersion":"durable.streams/metrics/v1","kind":"interval","metric":"m","unit":"ns",'
        b'"metricKind":"summary","temporality":"delta","windowStart":1000,"windowEnd":2000,'
        b'"intervalMs":1000,"instance":null,"stream":null,"tags":{"a":"true","b":"1"},'
        b'"attributes":{"a":"true","b":"1"},"dimensionPairs":["a=true","b=1"],'
        b'"dimensionKey":"a=true\\u0000b=1",'
        b'"seriesKey":"summary|delta|m|ns|||a=true\\u0000b=1",'
        b'"count":2,"sum":3,"min":0,"max":0,"avg":1.5,"p50":0,"p95":0,"p99":0,"buckets":{},'
        b'"summary":{"count":2,"sum":3,"min":0,"max":0,"histogram":{}}}'
    )


def test_a_record_of_the_published_server_stays_as_it_is() -> None:
    sent = (
        b'{"apiVersion":"durable.streams/metrics/v1","kind":"interval",'
        b'"metric":"tieredstore.objectstore.put.latency","unit":"ns","metricKind":"summary",'
        b'"temporality":"delta","windowStart":1794772424705,"windowEnd":1794772434725,'
        b'"intervalMs":10020,"instance":"23949-c487cd","stream":null,'
        b'"tags":{"artifact":"schema_registry","outcome":"ok"},'
        b'"attributes":{"artifact":"schema_registry","outcome":"ok"},'
        b'"dimensionPairs":["artifact=schema_registry","outcome=ok"],'
        b'"dimensionKey":"artifact=schema_registry\\u0000outcome=ok",'
        b'"seriesKey":"summary|delta|tieredstore.objectstore.put.latency|ns||23949-c487cd|'
        b'artifact=schema_registry\\u0000outcome=ok",'
        b'"count":1,"sum":6937847,"min":6937847,"max":6937847,"avg":6937847,"p50":6937847,'
        b'"p95":6937847,"p99":6937847,"buckets":{"4194304":1},'
        b'"summary":{"count":1,"sum":6937847,"min":6937847,"max":6937847,'
        b'"histogram":{"4194304":1}}}'
    )
    record, key = MetricsProfile().normalise(msgspec.json.decode(sent), 0)
    assert msgspec.json.encode(record) == sent
    assert key == record["seriesKey"]


def test_numbers_may_be_text_and_stand_in_the_summary() -> None:
    record = normalise(
        windowStart="1000.9",
        windowEnd=2000.9,
        intervalMs="7",
        count=None,
        sum="no number",
        summary={"count": "4", "sum": 8, "min": -1, "max": 5, "histogram": {"1": 3, "4": "1"}},
    )
    assert [record[key] for key in ("windowStart", "windowEnd", "intervalMs")] == [1000, 2000, 7]
    assert [record[key] for key in ("count", "sum", "min", "max", "avg")] == [4, 8, -1, 5, 2]
    assert [record[key] for key in ("p50", "p95", "p99")] == [1, 4, 4]
    assert record["buckets"] == record["summary"]["histogram"] == {"1": 3, "4": 1}


def test_an_interval_without_values_has_no_least_and_no_greatest() -> None:
    record = normalise(count=0, sum=0, min=5, max=6)
    assert (record["min"], record["max"], record["avg"]) == (None, None, 0)
    assert record["summary"]["min"] is None


def test_buckets_that_count_nothing_are_left_out_and_strange_ones_are_kept() -> None:
    record = normalise(buckets={"1": 0, "2": -1, "8": 1, "4": 2, "x": 9, "16": None})
    assert record["buckets"] == {"8": 1, "4": 2, "x": 9}
    assert (record["p50"], record["p99"]) == (4, 8)


def test_a_percentile_is_the_first_bucket_that_reaches_its_share() -> None:
    record = normalise(buckets={"2": 1, "1": 1})
    assert (record["p50"], record["p95"]) == (1, 2)
    record = normalise(buckets={"1": 95, "64": 4, "1024": 1})
    assert (record["p50"], record["p95"], record["p99"]) == (1, 1, 64)


def test_attributes_win_over_tags_and_become_text() -> None:
    attributes = {"z": 1.0, "a": "x", "n": None, "l": [1], "f": 1e21, "i": 2**70, "o": False}
    record = normalise(attributes=attributes, tags={"other": "1"})
    assert list(record["attributes"].items()) == [
        ("a", "x"),
        ("f", "1e+21"),
        ("i", "1180591620717411303424"),
        ("o", "false"),
        ("z", "1"),
    ]
    assert record["tags"] == record["attributes"]
    assert normalise(attributes={}, tags={"a": "b"})["dimensionKey"] is None
    assert normalise(attributes=None, tags={"a": "b"})["dimensionKey"] == "a=b"


def test_pairs_are_sorted_by_code_point() -> None:
    record = normalise(attributes={"a": "x", "a!": "x", "B": "x"})
    assert record["dimensionPairs"] == ["B=x", "a!=x", "a=x"]


def test_series_are_told_apart_by_all_their_parts() -> None:
    record = normalise(metricKind=" gauge ", temporality="cumulative", stream=" s ", instance="i")
    assert record["seriesKey"] == "gauge|cumulative|m|ns|s|i|"


def test_numbers_too_large_to_divide_leave_no_infinity() -> None:
    record = normalise(count=1e-320, sum=1e308, buckets={"1": 1e308, "2": 1.5e308, "3": 10**400})
    assert record["avg"] == 0
    assert record["buckets"] == {"1": 1e308, "2": 1.5e308}
    assert record["p50"] in (1, 2)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (5, "metrics record must be an object"),
        ([SMALL], "metrics record must be an object"),
        (SMALL | {"kind": "point"}, "metrics record.kind must be interval"),
        (SMALL | {"kind": 5}, "metrics record.kind must be interval"),
        (SMALL | {"metric": " "}, "metrics record.metric must be a non-empty string"),
        (SMALL | {"unit": None}, "metrics record.unit must be a non-empty string"),
        (
            SMALL | {"windowStart": "soon"},
            "metrics record.windowStart and windowEnd must be integers",
        ),
        (SMALL | {"windowEnd": 999}, "metrics record.windowEnd must be >= windowStart"),
        (SMALL | {"intervalMs": -1}, "metrics record.intervalMs must be >= 0"),
        (SMALL | {"count": None}, "metrics interval requires count"),
        (SMALL | {"count": -1}, "metrics interval requires count"),
        (SMALL | {"count": True}, "metrics interval requires count"),
        (SMALL | {"sum": None}, "metrics interval requires sum"),
    ],
)
def test_what_is_no_interval(record: Any, message: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        MetricsProfile().normalise(record, 0)
    assert caught.value.message == message


def test_rules_of_metrics_streams() -> None:
    full, lean = metrics_rules(lean=False), metrics_rules(lean=True)
    assert full.kind == lean.kind == "metrics"
    assert full.profile == lean.profile == b'{"kind":"metrics"}'
    assert full.schemas == lean.schemas
    assert full.version == 1
    assert full.routing_key == b'{"jsonPointer":"/seriesKey","required":true}'
    assert search_of(full) is not None
    assert (lean.routing_key, lean.search) == (b"", b"")
