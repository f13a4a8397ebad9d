"""state-protocol: records are changes of rows, and control messages between them.

They are checked and stored as they came. Changes can be waited for: see touch_settings.py.
"""

from __future__ import annotations

from typing import Any

from millstream.errors import InvalidOffset, SchemaViolation
from millstream.protocol.offsets import BEGINNING_TOKEN, decode_offset
from millstream.schemas.dates import is_rfc3339
from millstream.schemas.profiles.profile import Normalised
from millstream.schemas.shapes import object_at, unknown_key
from millstream.schemas.touch_settings import parse_touch, touch_document

_RECORD = "state-protocol record"
_HEADERS = f"{_RECORD}.headers"


def state_settings(profile: dict[str, Any]) -> dict[str, Any]:
    """The profile in its normal form; raises InvalidSchema."""
    object_at(profile, "profile", ("kind", "touch"))
    settings: dict[str, Any] = {"kind": profile["kind"]}
    if "touch" in profile:
        settings["touch"] = touch_document(parse_touch(profile["touch"], "profile.touch"))
    return settings


class StateProtocolProfile:
    rewrites = False

    def normalise(self, record: Any, now_ms: int) -> Normalised:
        _check_record(record)
        return Normalised(record, None)


def _check_record(record: Any) -> None:
    if not isinstance(record, dict):
        raise SchemaViolation("state-protocol records must be JSON objects")
    headers = record.get("headers")
    if not isinstance(headers, dict):
        raise SchemaViolation(f"{_HEADERS} must be an object")
    if "control" in headers:
        if "operation" in headers:
            raise SchemaViolation(f"{_HEADERS} cannot mix control and operation")
        _check_control(record, headers)
    elif "operation" in headers:
        _check_change(record, headers)
    else:
        raise SchemaViolation(f"{_HEADERS} must contain operation or control")


def _check_change(record: dict[str, Any], headers: dict[str, Any]) -> None:
    _refuse_unknown(record, ("type", "key", "value", "old_value", "headers"), _RECORD)
    _refuse_unknown(headers, ("operation", "txid", "timestamp"), _HEADERS)
    _check_text(record.get("type"), f"{_RECORD}.type")
    _check_text(record.get("key"), f"{_RECORD}.key")
    operation = headers["operation"]
    if operation not in ("insert", "update", "upsert", "delete"):  # StreamDB sends all four
        raise SchemaViolation(f"{_HEADERS}.operation must be insert, update, upsert, or delete")
    if operation != "delete" and "value" not in record:
        raise SchemaViolation(f"state-protocol {operation} records must include value")
    if "txid" in headers:
        _check_text(headers["txid"], f"{_HEADERS}.txid")
    if "timestamp" in headers:
        timestamp = headers["timestamp"]
        if not isinstance(timestamp, str) or not is_rfc3339(timestamp):
            raise SchemaViolation(f"{_HEADERS}.timestamp must be a valid RFC 3339 timestamp")


def _check_control(record: dict[str, Any], headers: dict[str, Any]) -> None:
    _refuse_unknown(record, ("headers",), _RECORD)
    _refuse_unknown(headers, ("control", "offset"), _HEADERS)
    if headers["control"] not in ("snapshot-start", "snapshot-end", "reset"):
        raise SchemaViolation(f"{_HEADERS}.control must be snapshot-start, snapshot-end, or reset")
    if "offset" in headers and not _is_offset(headers["offset"]):
        raise SchemaViolation(f"{_HEADERS}.offset must be a valid stream offset string")


def _is_offset(value: Any) -> bool:
    if not isinstance(value, str) or not value.isascii():
        return False
    token = value.encode()
    try:
        return token == BEGINNING_TOKEN or decode_offset(token) is not None
    except InvalidOffset:
        return False


def _refuse_unknown(value: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    refused = unknown_key(value, known)
    if refused is not None:
        raise SchemaViolation(f"{path}.{refused} is not supported")


def _check_text(value: Any, path: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise SchemaViolation(f"{path} must be a non-empty string")
