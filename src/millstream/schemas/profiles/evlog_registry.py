"""What installing evlog gives a stream: schema version 1, its search config and a rollup."""

from __future__ import annotations

from typing import Any

from millstream.schemas.profiles.canonical import (
    CanonicalRegistry,
    closed_object,
    field,
    nullable,
)

LEVELS = ("debug", "info", "warn", "error")

_TYPED = "exact column exists sortable aggregatable"
_WORDS = "exact prefix exists sortable"
_TEXT = "exists positions"


def evlog_registry() -> CanonicalRegistry:
    return CanonicalRegistry(_schema(), _search(), None)


def _schema() -> dict[str, Any]:
    text = nullable("string")
    return closed_object(
        {
            "timestamp": {"type": "string"},
            "level": {"type": "string", "enum": list(LEVELS)},
            "service": text,
            "environment": text,
            "version": text,
            "region": text,
            "requestId": text,
            "traceId": text,
            "spanId": text,
            "method": text,
            "path": text,
            "status": nullable("integer"),
            "duration": nullable("number"),
            "message": text,
            "why": text,
            "fix": text,
            "link": text,
            "sampling": nullable("object"),
            "redaction": closed_object({"keys": {"type": "array", "items": {"type": "string"}}}),
            "context": {"type": "object"},
        }
    )


def _search() -> dict[str, Any]:
    return {
        "primaryTimestampField": "timestamp",
        "aliases": {
            "env": "environment",
            "msg": "message",
            "req": "requestId",
            "span": "spanId",
            "time": "timestamp",
            "trace": "traceId",
            "ts": "timestamp",
        },
        "defaultFields": [
            {"field": "message", "boost": 2},
            {"field": "why", "boost": 1.5},
            {"field": "fix", "boost": 1.25},
            {"field": "error.message", "boost": 2},
        ],
        "fields": _fields(),
        "rollups": {"requests": _requests_rollup()},
    }


def _fields() -> dict[str, Any]:
    named = {"normalizer": "lowercase_v1"}
    worded = {"analyzer": "unicode_word_v1"}
    grouped = f"{_WORDS} aggregatable"
    return {
        "timestamp": field("date", "/timestamp", _TYPED),
        "level": field("keyword", "/level", grouped, **named),
        "service": field("keyword", "/service", grouped, **named),
        "environment": field("keyword", "/environment", grouped, **named),
        "requestId": field("keyword", "/requestId", _WORDS),
        "traceId": field("keyword", "/traceId", _WORDS),
        "spanId": field("keyword", "/spanId", _WORDS),
        "path": field("keyword", "/path", grouped),
        "method": field("keyword", "/method", grouped, **named),
        "status": field("integer", "/status", _TYPED),
        "duration": field("float", "/duration", _TYPED),
        "message": field("text", "/message", _TEXT, **worded),
        "why": field("text", "/why", _TEXT, **worded),
        "fix": field("text", "/fix", _TEXT, **worded),
        "error.message": field("text", "/context/error/message", _TEXT, **worded),
    }


def _requests_rollup() -> dict[str, Any]:
    return {
        "timestampField": "timestamp",
        "dimensions": ["service", "level", "method"],
        "intervals": ["1m", "5m", "1h", "1d"],
        "measures": {
            "count": {"kind": "count"},
            "errors": {"kind": "count", "include": "status:>=500"},
            "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
        },
    }
