"""metrics: one record per series and interval, with its summary and its histogram."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from millstream.errors import SchemaViolation
from millstream.schemas.documents import encode_document
from millstream.schemas.profiles.metrics_registry import (
    API_VERSION,
    INTERVAL,
    lean_metrics_registry,
    metrics_registry,
)
from millstream.schemas.profiles.profile import Normalised
from millstream.schemas.profiles.record_fields import text_of
from millstream.schemas.values import canonical_text, parse_number
from millstream.state.rules import Rules

Number: TypeAlias = int | float


def metrics_rules(lean: bool) -> Rules:
    """Of a new stream of metrics; a lean one has the schema, but no search and no routing key."""
    registry = lean_metrics_registry() if lean else metrics_registry()
    profile = encode_document({"kind": "metrics"})
    return registry.replace_in(Rules(revision=0, kind="metrics", profile=profile))


class MetricsProfile:
    rewrites = True

    def normalise(self, record: Any, now_ms: int) -> Normalised:
        if not isinstance(record, dict):
            raise SchemaViolation("metrics record must be an object")
        if record.get("kind") is not None and text_of(record["kind"]) != INTERVAL:
            raise SchemaViolation("metrics record.kind must be interval")
        series = _series(record)
        normal: dict[str, Any] = {"apiVersion": API_VERSION, "kind": INTERVAL}
        normal |= {key: series[key] for key in ("metric", "unit", "metricKind", "temporality")}
        normal |= _window(record)
        normal |= {key: series[key] for key in ("instance", "stream")}
        normal |= _dimensions(record)
        series_key = _series_key(series, normal["dimensionKey"])
        normal["seriesKey"] = series_key
        normal |= _summary(record)
        return Normalised(normal, series_key)


def _series(record: dict[str, Any]) -> dict[str, str | None]:
    for key in ("metric", "unit"):
        if text_of(record.get(key)) is None:
            raise SchemaViolation(f"metrics record.{key} must be a non-empty string")
    return {
        "metric": text_of(record["metric"]),
        "unit": text_of(record["unit"]),
        "metricKind": text_of(record.get("metricKind")) or "summary",
        "temporality": text_of(record.get("temporality")) or "delta",
        "stream": text_of(record.get("stream")),
        "instance": text_of(record.get("instance")),
    }


def _series_key(series: dict[str, str | None], dimension_key: str | None) -> str:
    keys = ("metricKind", "temporality", "metric", "unit", "stream", "instance")
    return "|".join([*(series[key] or "" for key in keys), dimension_key or ""])


def _window(record: dict[str, Any]) -> dict[str, int]:
    start, end = _integer(record.get("windowStart")), _integer(record.get("windowEnd"))
    if start is None or end is None:
        raise SchemaViolation("metrics record.windowStart and windowEnd must be integers")
    if end < start:
        raise SchemaViolation("metrics record.windowEnd must be >= windowStart")
    interval_ms = _integer(record.get("intervalMs"))
    if interval_ms is None:
        interval_ms = end - start
    if interval_ms < 0:
        raise SchemaViolation("metrics record.intervalMs must be >= 0")
    return {"windowStart": start, "windowEnd": end, "intervalMs": interval_ms}


def _integer(value: Any) -> int | None:
    number = parse_number(value)
    return None if number is None else int(number)


def _dimensions(record: dict[str, Any]) -> dict[str, Any]:
    given = record.get("attributes")
    attributes = _attributes(record.get("tags") if given is None else given)
    pairs = sorted(f"{key}={value}" for key, value in attributes.items())
    return {
        "tags": attributes,
        "attributes": attributes,
        "dimensionPairs": pairs,
        "dimensionKey": "\0".join(pairs) if pairs else None,
    }


def _attributes(value: Any) -> dict[str, str]:
    """As text, by key; what is no text, number or bool is left out."""
    if not isinstance(value, dict):
        return {}
    return {
        key: canonical_text(item)
        for key, item in sorted(value.items())
        if isinstance(item, str | bool) or parse_number(item) is not None
    }


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    """Of the interval. Its numbers may stand in the record itself or in its `summary`."""
    given = record.get("summary")
    summary = given if isinstance(given, dict) else {}
    totals = _totals(record, summary)
    histogram = _histogram(record.get("buckets")) or _histogram(summary.get("histogram"))
    derived = {"avg": _average(totals)}
    derived |= {f"p{p}": _percentile(histogram, p / 100) for p in (50, 95, 99)}
    stated = {key: parse_number(record.get(key)) for key in derived}
    derived |= {key: value for key, value in stated.items() if value is not None}
    summed_up = {**totals, "histogram": histogram}
    return {**totals, **derived, "buckets": histogram, "summary": summed_up}


def _totals(record: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for key in ("count", "sum", "min", "max"):
        stated = parse_number(record.get(key))
        totals[key] = parse_number(summary.get(key)) if stated is None else stated
    if totals["count"] is None or totals["count"] < 0:
        raise SchemaViolation("metrics interval requires count")
    if totals["sum"] is None:
        raise SchemaViolation("metrics interval requires sum")
    for key in ("min", "max"):
        totals[key] = None if totals["count"] == 0 else totals[key] or 0
    return totals


def _average(totals: dict[str, Any]) -> Number:
    """A whole number where it is one, as the client would have written it."""
    average = float(totals["sum"] / totals["count"]) if totals["count"] > 0 else 0.0
    if not math.isfinite(average):
        return 0
    return int(average) if average.is_integer() else average


def _histogram(value: Any) -> dict[str, Number]:
    """The buckets that count something."""
    if not isinstance(value, dict):
        return {}
    counts = ((bucket, parse_number(count)) for bucket, count in value.items())
    return {bucket: count for bucket, count in counts if count is not None and count > 0}


def _percentile(histogram: dict[str, Number], share: float) -> Number:
    """The lower bound of the bucket in which it lies; 0 when there is none."""
    bounds = ((parse_number(bucket), float(count)) for bucket, count in histogram.items())
    buckets = sorted((bound, count) for bound, count in bounds if bound is not None)
    threshold = sum(count for _, count in buckets) * share
    seen = 0.0
    for bound, count in buckets:
        seen += count
        if seen >= threshold:
            return bound
    return buckets[-1][0] if buckets else 0
