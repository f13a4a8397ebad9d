"""evlog: one record per request, in an envelope of twenty fields; the rest goes to its context."""

from __future__ import annotations

import re
from typing import Any

from millstream.errors import InvalidSchema, SchemaViolation
from millstream.limits import PROFILE_LIST_MAX
from millstream.protocol.durations import encode_timestamp
from millstream.schemas.profiles.evlog_registry import LEVELS, evlog_registry
from millstream.schemas.profiles.profile import Normalised
from millstream.schemas.profiles.record_fields import text_at, text_of, whole_number_of
from millstream.schemas.profiles.redaction import redact
from millstream.schemas.shapes import object_at, texts_at
from millstream.schemas.shapes import text_at as setting_at
from millstream.schemas.values import parse_number

_SECRET_KEYS = frozenset({"password", "token", "secret", "authorization", "cookie", "apikey"})
_REQUEST_ID_FIELDS = ("requestId", "context.requestId")
_TRACEPARENT_FIELDS = (
    ("traceparent",),
    ("traceContext", "traceparent"),
    ("context", "traceparent"),
    ("headers", "traceparent"),
)
_TRACEPARENT = re.compile(
    "[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?",
    re.IGNORECASE | re.DOTALL,
)
_ENVELOPE = frozenset(evlog_registry().schema["properties"])


def evlog_settings(profile: dict[str, Any]) -> dict[str, Any]:
    """The profile in its normal form; raises InvalidSchema."""
    object_at(profile, "profile", ("kind", "redactKeys", "correlation", "observability"))
    settings: dict[str, Any] = {"kind": profile["kind"]}
    if "redactKeys" in profile:
        keys = texts_at(profile["redactKeys"], "profile.redactKeys", PROFILE_LIST_MAX)
        settings["redactKeys"] = list(dict.fromkeys(key.lower() for key in keys))
    correlation = _correlation_settings(profile.get("correlation", {}))
    if correlation:
        settings["correlation"] = correlation
    observability = _observability_settings(profile.get("observability", {}))
    if observability:
        settings["observability"] = observability
    return settings


def _correlation_settings(value: Any) -> dict[str, Any]:
    path = "profile.correlation"
    lists = ("requestIdFields", "traceContextFields")
    object_at(value, path, (*lists, "parseTraceparent"))
    settings: dict[str, Any] = {
        key: texts_at(value[key], f"{path}.{key}", PROFILE_LIST_MAX)
        for key in lists
        if key in value
    }
    if "parseTraceparent" in value:
        if not isinstance(value["parseTraceparent"], bool):
            raise InvalidSchema(f"{path}.parseTraceparent must be boolean")
        settings["parseTraceparent"] = value["parseTraceparent"]
    return settings


def _observability_settings(value: Any) -> dict[str, Any]:
    path = "profile.observability"
    request = object_at(value, path, ("request",)).get("request", {})
    if "tracesStream" not in object_at(request, f"{path}.request", ("tracesStream",)):
        return {}
    stream = setting_at(request["tracesStream"], f"{path}.request.tracesStream")
    return {"request": {"tracesStream": stream}}


class EvlogProfile:
    rewrites = True

    def __init__(self, settings: dict[str, Any]) -> None:
        """With settings in their normal form."""
        self._secret_keys = _SECRET_KEYS.union(settings.get("redactKeys", ()))
        correlation = settings.get("correlation", {})
        request_fields = correlation.get("requestIdFields", _REQUEST_ID_FIELDS)
        self._request_paths = [tuple(field.split(".")) for field in request_fields]
        trace_fields = correlation.get("traceContextFields", ())
        self._trace_paths = [tuple(field.split(".")) for field in trace_fields]
        self._reads_traceparent = correlation.get("parseTraceparent", True)

    def normalise(self, record: Any, now_ms: int) -> Normalised:
        if not isinstance(record, dict):
            raise SchemaViolation("evlog record must be an object")
        sampling = record.get("sampling")
        if not isinstance(sampling, dict | None):
            raise SchemaViolation("evlog record.sampling must be an object or null")
        status = whole_number_of(record.get("status"))
        request_id = self._request_id(record)
        trace_id, span_id = self._trace(record)
        context = _context(record)
        redacted = redact(context, self._secret_keys)
        envelope = {
            "timestamp": text_of(record.get("timestamp")) or encode_timestamp(now_ms),
            "level": _level(record, status),
            "service": text_of(record.get("service")),
            "environment": text_of(record.get("environment")),
            "version": text_of(record.get("version")),
            "region": text_of(record.get("region")),
            "requestId": request_id,
            "traceId": trace_id,
            "spanId": span_id,
            "method": text_of(record.get("method")),
            "path": text_of(record.get("path")),
            "status": status,
            "duration": parse_number(record.get("duration")),
            "message": text_of(record.get("message")),
            "why": text_of(record.get("why")),
            "fix": text_of(record.get("fix")),
            "link": text_of(record.get("link")),
            "sampling": sampling,
            "redaction": {"keys": redacted},
            "context": context,
        }
        return Normalised(envelope, request_id or trace_id)

    def _request_id(self, record: dict[str, Any]) -> str | None:
        found = (text_at(record, path) for path in self._request_paths)
        return next(filter(None, found), None)

    def _trace(self, record: dict[str, Any]) -> tuple[str | None, str | None]:
        """The ids of trace and span, each from the first place that has it."""
        trace_id = self._trace_field(record, "traceId")
        span_id = self._trace_field(record, "spanId")
        if self._reads_traceparent and not (trace_id and span_id):
            parent = _traceparent(record)
            return trace_id or parent[0], span_id or parent[1]
        return trace_id, span_id

    def _trace_field(self, record: dict[str, Any], name: str) -> str | None:
        configured = [path for path in self._trace_paths if path[-1] == name]
        places = (*configured, (name,), ("traceContext", name))
        return next(filter(None, (text_at(record, path) for path in places)), None)


def _traceparent(record: dict[str, Any]) -> tuple[str | None, str | None]:
    for path in _TRACEPARENT_FIELDS:
        match = _TRACEPARENT.fullmatch(text_at(record, path) or "")
        if match is not None:
            return match[1].lower(), match[2].lower()
    return None, None


def _level(record: dict[str, Any], status: int | None) -> str:
    level = (text_of(record.get("level")) or "").lower()
    if level in LEVELS:
        return level
    if any(text_of(record.get(key)) for key in ("why", "fix", "link")):
        return "error"
    if status is None or status < 400:
        return "info"
    return "error" if status >= 500 else "warn"


def _context(record: dict[str, Any]) -> dict[str, Any]:
    """A new object with what has no place of its own in the envelope."""
    given = record.get("context")
    context: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    context.update((key, value) for key, value in record.items() if key not in _ENVELOPE)
    if "context" in record and not isinstance(given, dict):
        context["context"] = given
    return context
