"""The schema, search config and routing key that a profile brings with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from millstream.schemas.documents import encode_document
from millstream.state.rules import Rules


class CanonicalRegistry(NamedTuple):
    schema: dict[str, Any]
    search: dict[str, Any] | None
    routing_key: dict[str, Any] | None

    def replace_in(self, rules: Rules) -> Rules:
        """The rules with this as version 1 and nothing of what was there."""
        return msgspec.structs.replace(
            rules,
            schemas=(encode_document(self.schema),),
            lenses=(b"",),
            routing_key=_encoded(self.routing_key),
            search=_encoded(self.search),
            boundaries=(),
        )


def _encoded(document: dict[str, Any] | None) -> bytes:
    return b"" if document is None else encode_document(document)


def field(kind: str, pointer: str, flags: str, **settings: str) -> dict[str, Any]:
    """A search field that stands at one place in version 1; its flags separated by spaces."""
    bindings = [{"version": 1, "jsonPointer": pointer}]
    return {"kind": kind, "bindings": bindings} | settings | dict.fromkeys(flags.split(), True)


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}
