"""The schema registry of a stream as a document."""

from __future__ import annotations

from typing import Any

from millstream.state.rules import Rules


def registry_document(name: str, rules: Rules | None) -> dict[str, Any]:
    """That of a stream for which no schema was installed."""
    return {
        "apiVersion": "durable.streams/schema-registry/v1",
        "schema": name,
        "currentVersion": 0,
        "boundaries": [],
        "schemas": {},
        "lenses": {},
    }
