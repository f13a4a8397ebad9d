"""The records of `__stream_metrics__` have the shape of the metrics profile."""

from __future__ import annotations

import msgspec

from millstream.schemas.profiles import profile_of
from millstream.schemas.profiles.metrics import metrics_rules
from millstream.schemas.validation import validator_of
from millstream.system.interval_records import (
    Measured,
    Series,
    Window,
    bucket_of,
    encode_record,
    single,
)

WINDOW = Window(1_794_772_424_705, 1_794_772_434_725, "23949-c487cd")


def test_a_record_is_the_one_that_the_reference_writes() -> None:
    tags = (("artifact", "schema_registry"), ("outcome", "ok"))
    series = Series("tieredstore.objectstore.put.latency", "ns", tags)
    key, record = encode_record(WINDOW, series, single(6_937_847))
    pairs = "artifact=schema_registry\0outcome=ok"
    expected_key = f"summary|delta|tieredstore.objectstore.put.latency|ns||23949-c487cd|{pairs}"
    assert key.decode() == expected_key
    assert list(msgspec.json.decode(record).items()) == [
        ("apiVersion", "durable.streams/metrics/v1"),
        ("kind", "interval"),
        ("metric", "tieredstore.objectstore.put.latency"),
        ("unit", "ns"),
        ("metricKind", "summary"),
        ("temporality", "delta"),
        ("windowStart", 1_794_772_424_705),
        ("windowEnd", 1_794_772_434_725),
        ("intervalMs", 10_020),
        ("instance", "23949-c487cd"),
        ("stream", None),
        ("tags", dict(tags)),
        ("attributes", dict(tags)),
        ("dimensionPairs", ["artifact=schema_registry", "outcome=ok"]),
        ("dimensionKey", pairs),
        ("seriesKey", expected_key),
        *((name, 1 if name == "count" else 6_937_847) for name in ("count", "sum", "min", "max")),
        *((name, 6_937_847) for name in ("avg", "p50", "p95", "p99")),
        ("buckets", {"4194304": 1}),
        (
            "summary",
            {
                "count": 1,
                "sum": 6_937_847,
                "min": 6_937_847,
                "max": 6_937_847,
                "histogram": {"4194304": 1},
            },
        ),
    ]


def test_of_many_values_the_percentiles_are_those_of_the_sample() -> None:
    sample = list(range(1, 101))
    _, encoded = encode_record(WINDOW, Series("m", "ns"), Measured(200, 300, sample, {64: 200}))
    record = msgspec.json.decode(encoded)
    assert [record[name] for name in ("count", "sum", "min", "max", "avg")] == [
        200,
        300,
        1,
        100,
        1.5,
    ]
    assert [record[name] for name in ("p50", "p95", "p99")] == [51, 96, 100]
    assert (record["dimensionPairs"], record["dimensionKey"]) == ([], None)
    assert record["seriesKey"] == "summary|delta|m|ns||23949-c487cd|"


def test_buckets_are_the_powers_of_two_that_values_reach() -> None:
    assert [bucket_of(value) for value in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 4, 512, 1024]


def test_the_metrics_profile_takes_its_records_as_they_are() -> None:
    rules = metrics_rules(lean=True)
    sample = [1, 5, 9]
    measured = Measured(3, 15, sample, {1: 1, 4: 1, 8: 1})
    key, encoded = encode_record(WINDOW, Series("m", "ns", (("a", "b"),)), measured)
    record = msgspec.json.decode(encoded)
    assert validator_of(rules.schemas[0]).problem(record) is None
    normal = profile_of(rules).normalise(record, WINDOW.end_ms)
    assert normal.record == record
    assert normal.key == key.decode()
