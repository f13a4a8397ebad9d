"""Profiles: what kind of entries a stream holds."""

from __future__ import annotations

from typing import Any

from millstream.state.rules import GENERIC, Rules


def profile_document(rules: Rules | None) -> dict[str, Any]:
    """That of a stream for which no profile was installed."""
    return {"apiVersion": "durable.streams/profile/v1", "profile": {"kind": GENERIC}}
