"""Documents that the tests of schemas and lenses are about, in few words."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.schemas.lenses import Lens, parse_lens
from millstream.schemas.proofs import prove
from millstream.schemas.registry import Change, plan_update
from millstream.state.rules import Rules

STREAM = "orders"
TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def record(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object schema; all properties are required unless some are named."""
    names = required.split() if required else list(properties)
    return {"type": "object", "properties": properties, "required": names}


def optional(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def lens_document(*ops: dict[str, Any], version: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "durable.lens/v1",
        "schema": STREAM,
        "from": version,
        "to": version + 1,
        "ops": list(ops),
    }


def lens(*ops: dict[str, Any]) -> Lens:
    return parse_lens(lens_document(*ops))


def promoted(document: Any, *ops: dict[str, Any]) -> Any:
    return lens(*ops).promote(document)


def proved(old: Any, new: Any, *ops: dict[str, Any]) -> list[dict[str, Any]]:
    """The operations as they would be stored."""
    stored: list[dict[str, Any]] = prove(lens(*ops), old, new)["ops"]
    return stored


def update(rules: Rules | None, is_empty: bool = True, **fields: Any) -> Change:
    return plan_update(STREAM, rules, msgspec.json.encode(fields), is_empty)


def rename(source: str, target: str) -> dict[str, Any]:
    return {"op": "rename", "from": source, "to": target}


def copy(source: str, target: str) -> dict[str, Any]:
    return {"op": "copy", "from": source, "to": target}


def add(path: str, *default: Any) -> dict[str, Any]:
    op: dict[str, Any] = {"op": "add", "path": path, "schema": {}}
    return {**op, "default": default[0]} if default else op


def remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path, "schema": {}}


def wrap(path: str) -> dict[str, Any]:
    return {"op": "wrap", "path": path, "mode": "singleton"}


def head(path: str) -> dict[str, Any]:
    return {"op": "head", "path": path}


def convert(path: str, from_type: str, to_type: str, **forward: Any) -> dict[str, Any]:
    return {
        "op": "convert",
        "path": path,
        "fromType": from_type,
        "toType": to_type,
        "forward": forward,
        "backward": {"map": {}},
    }


def inside(path: str, *ops: dict[str, Any]) -> dict[str, Any]:
    return {"op": "in", "path": path, "ops": list(ops)}


def each(path: str, *ops: dict[str, Any]) -> dict[str, Any]:
    return {"op": "map", "path": path, "ops": list(ops)}
