"""What installing metrics gives a stream: schema version 1, its search config and a rollup."""

from __future__ import annotations

from typing import Any

from millstream.schemas.profiles.canonical import (
    CanonicalRegistry,
    closed_object,
    field,
    nullable,
)

API_VERSION = "durable.streams/metrics/v1"
INTERVAL = "interval"

_TYPED = "exact column exists sortable"
_WORDS = "exact prefix exists"


def metrics_registry() -> CanonicalRegistry:
    routing_key = {"jsonPointer": "/seriesKey", "required": True}
    return CanonicalRegistry(_schema(), _search(), routing_key)


def lean_metrics_registry() -> CanonicalRegistry:
    """For a stream that is only read from end to end: nothing is indexed."""
    return CanonicalRegistry(_schema(), None, None)


def _schema() -> dict[str, Any]:
    text, number = {"type": "string"}, {"type": "number"}
    texts = {"type": "object", "additionalProperties": text}
    numbers = {"type": "object", "additionalProperties": number}
    parts = {
        "count": number,
        "sum": number,
        "min": nullable("number"),
        "max": nullable("number"),
    }
    return closed_object(
        {
            "apiVersion": {"type": "string", "const": API_VERSION},
            "kind": {"type": "string", "const": INTERVAL},
            "metric": text,
            "unit": text,
            "metricKind": text,
            "temporality": text,
            "windowStart": {"type": "integer"},
            "windowEnd": {"type": "integer"},
            "intervalMs": {"type": "integer"},
            "instance": nullable("string"),
            "stream": nullable("string"),
            "tags": texts,
            "attributes": texts,
            "dimensionPairs": {"type": "array", "items": text},
            "dimensionKey": nullable("string"),
            "seriesKey": text,
            **parts,
            "avg": number,
            "p50": number,
            "p95": number,
            "p99": number,
            "buckets": numbers,
            "summary": closed_object({**parts, "histogram": numbers}),
        }
    )


def _search() -> dict[str, Any]:
    return {
        "profile": "metrics",
        "primaryTimestampField": "windowStart",
        "aliases": {
            "ts": "windowStart",
            "time": "windowStart",
            "name": "metric",
            "dims": "dimensionKey",
            "series": "seriesKey",
        },
        "defaultFields": [
            {"field": "metric", "boost": 2},
            {"field": "stream", "boost": 1.25},
            {"field": "dimensionPairs", "boost": 1},
        ],
        "fields": _fields(),
        "rollups": {"metrics": _metrics_rollup()},
    }


def _fields() -> dict[str, Any]:
    named = {"normalizer": "lowercase_v1"}
    summed = f"{_TYPED} aggregatable"
    grouped = f"{_WORDS} aggregatable"
    sorted_groups = f"{_WORDS} sortable aggregatable"
    return {
        "windowStart": field("date", "/windowStart", summed),
        "windowEnd": field("date", "/windowEnd", _TYPED),
        "intervalMs": field("integer", "/intervalMs", summed),
        "metric": field("keyword", "/metric", sorted_groups, **named),
        "unit": field("keyword", "/unit", grouped, **named),
        "metricKind": field("keyword", "/metricKind", grouped, **named),
        "temporality": field("keyword", "/temporality", grouped, **named),
        "stream": field("keyword", "/stream", sorted_groups, **named),
        "instance": field("keyword", "/instance", sorted_groups),
        "seriesKey": field("keyword", "/seriesKey", "exact exists sortable"),
        "dimensionKey": field("keyword", "/dimensionKey", sorted_groups),
        "dimensionPairs": field("keyword", "/dimensionPairs", _WORDS),
        "count": field("integer", "/count", summed),
        "sum": field("float", "/sum", summed),
        "min": field("float", "/min", _TYPED),
        "max": field("float", "/max", _TYPED),
        "avg": field("float", "/avg", _TYPED),
        "p95": field("float", "/p95", _TYPED),
        "p99": field("float", "/p99", _TYPED),
    }


def _metrics_rollup() -> dict[str, Any]:
    return {
        "timestampField": "windowStart",
        "dimensions": [
            "metric",
            "unit",
            "stream",
            "instance",
            "dimensionKey",
            "metricKind",
            "temporality",
        ],
        "intervals": ["10s", "1m", "5m", "1h"],
        "measures": {
            "value": {
                "kind": "summary_parts",
                "countJsonPointer": "/count",
                "sumJsonPointer": "/sum",
                "minJsonPointer": "/min",
                "maxJsonPointer": "/max",
                "histogramJsonPointer": "/buckets",
            }
        },
    }
