from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import SchemaViolation
from millstream.protocol.offsets import encode_offset
from millstream.schemas.profiles.state_protocol import StateProtocolProfile

RECORD = "state-protocol record"


def change(operation: Any = "insert", **changes: Any) -> dict[str, Any]:
    record = {"type": "t", "key": "k", "value": 1, "headers": {"operation": operation}}
    return {key: value for key, value in (record | changes).items() if value is not ...}


def headed(**headers: Any) -> dict[str, Any]:
    return change(headers={"operation": "insert"} | headers)


def control(**headers: Any) -> dict[str, Any]:
    return {"headers": {"control": "reset"} | headers}


@pytest.mark.parametrize(
    "record",
    [
        change(),
        change("update", value=None, old_value={"a": 1}),
        change("delete", value=...),
        headed(txid="7", timestamp="2026-01-01T00:00:00.123456789+01:00"),
        control(),
        control(control="snapshot-start"),
        control(control="snapshot-end", offset="-1"),
        control(offset=encode_offset(5, 70)),
        control(offset="0" * 26),
    ],
)
def test_records_are_stored_as_they_came(record: dict[str, Any]) -> None:
    profile = StateProtocolProfile()
    normal, key = profile.normalise(record, 0)
    assert normal is record
    assert key is None
    assert not profile.rewrites


OPERATIONS = "insert, update, upsert, or delete"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (5, "state-protocol records must be JSON objects"),
        ([change()], "state-protocol records must be JSON objects"),
        ({}, f"{RECORD}.headers must be an object"),
        (change(headers=[]), f"{RECORD}.headers must be an object"),
        (change(headers={}), f"{RECORD}.headers must contain operation or control"),
        (headed(control="reset"), f"{RECORD}.headers cannot mix control and operation"),
        (change(before=1), f"{RECORD}.before is not supported"),
        (headed(offset="-1"), f"{RECORD}.headers.offset is not supported"),
        (change(type=...), f"{RECORD}.type must be a non-empty string"),
        (change(type=" "), f"{RECORD}.type must be a non-empty string"),
        (change(key=5), f"{RECORD}.key must be a non-empty string"),
        (change("replace"), f"{RECORD}.headers.operation must be {OPERATIONS}"),
        (change(["insert"]), f"{RECORD}.headers.operation must be {OPERATIONS}"),
        (change(value=...), "state-protocol insert records must include value"),
        (change("update", value=...), "state-protocol update records must include value"),
        (headed(txid=""), f"{RECORD}.headers.txid must be a non-empty string"),
        (headed(txid=7), f"{RECORD}.headers.txid must be a non-empty string"),
        (
            headed(timestamp="2026-01-01"),
            f"{RECORD}.headers.timestamp must be a valid RFC 3339 timestamp",
        ),
        (
            headed(timestamp=5),
            f"{RECORD}.headers.timestamp must be a valid RFC 3339 timestamp",
        ),
        (control() | {"value": 1}, f"{RECORD}.value is not supported"),
        (control(txid="7"), f"{RECORD}.headers.txid is not supported"),
        (
            control(control="stop"),
            f"{RECORD}.headers.control must be snapshot-start, snapshot-end, or reset",
        ),
        (
            control(control={}),
            f"{RECORD}.headers.control must be snapshot-start, snapshot-end, or reset",
        ),
        (control(offset="5"), f"{RECORD}.headers.offset must be a valid stream offset string"),
        (control(offset="now"), f"{RECORD}.headers.offset must be a valid stream offset string"),
        (control(offset="é" * 26), f"{RECORD}.headers.offset must be a valid stream offset string"),
        (control(offset=-1), f"{RECORD}.headers.offset must be a valid stream offset string"),
        (change(**{"\ud800": 1}), f"{RECORD}.? is not supported"),
    ],
)
def test_what_is_no_change_and_no_control(record: Any, message: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        StateProtocolProfile().normalise(record, 0)
    assert caught.value.message == message
