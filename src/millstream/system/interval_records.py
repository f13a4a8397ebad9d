"""The shape of a record of `__stream_metrics__`: what one series did in one window of time.

The same as what the profile `metrics` makes of the records of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

API_VERSION = "durable.streams/metrics/v1"
KIND, TEMPORALITY = "summary", "delta"


class Window(NamedTuple):
    start_ms: int
    end_ms: int
    instance: str  # which process measured


class Series(NamedTuple):
    """What is measured. `tags` are in the order of their names."""

    metric: str
    unit: str  # ns, bytes or count
    tags: tuple[tuple[str, str], ...] = ()


class Measured(NamedTuple):
    """What was measured in one window. Of many values, `sample` is the newest of them."""

    values: int  # how many
    total: int
    sample: Sequence[int]
    buckets: Mapping[int, int]  # by the power of two that a value reaches


def single(value: int) -> Measured:
    """A window in which there is one thing to tell: how much more there is, or how much."""
    return Measured(1, value, (value,), {bucket_of(value): 1})


def bucket_of(value: int) -> int:
    return 1 << (value.bit_length() - 1) if value > 0 else 0


def encode_record(window: Window, series: Series, measured: Measured) -> tuple[bytes, bytes]:
    """Its routing key and its JSON."""
    tags, pairs = dict(series.tags), [f"{name}={value}" for name, value in series.tags]
    dimension_key = "\0".join(pairs) if pairs else None
    key = "|".join(
        (KIND, TEMPORALITY, series.metric, series.unit, "", window.instance, dimension_key or "")
    )
    ordered = sorted(measured.sample)
    totals: dict[str, object] = {
        "count": measured.values,
        "sum": measured.total,
        "min": ordered[0],
        "max": ordered[-1],
    }
    buckets = {str(bound): count for bound, count in sorted(measured.buckets.items())}
    record = {
        "apiVersion": API_VERSION,
        "kind": "interval",
        "metric": series.metric,
        "unit": series.unit,
        "metricKind": KIND,
        "temporality": TEMPORALITY,
        "windowStart": window.start_ms,
        "windowEnd": window.end_ms,
        "intervalMs": window.end_ms - window.start_ms,
        "instance": window.instance,
        "stream": None,
        "tags": tags,
        "attributes": tags,
        "dimensionPairs": pairs,
        "dimensionKey": dimension_key,
        "seriesKey": key,
        **totals,
        "avg": _average(measured),
        "p50": _percentile(ordered, 50),
        "p95": _percentile(ordered, 95),
        "p99": _percentile(ordered, 99),
        "buckets": buckets,
        "summary": {**totals, "histogram": buckets},
    }
    return key.encode(), msgspec.json.encode(record)


def _average(measured: Measured) -> int | float:
    whole, rest = divmod(measured.total, measured.values)
    return measured.total / measured.values if rest else whole


def _percentile(ordered: Sequence[int], percent: int) -> int:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]
