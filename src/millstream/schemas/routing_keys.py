"""Where the routing key of an entry stands, when the schema says so."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec

from millstream.schemas.documents import parse_pointer
from millstream.state.rules import Rules


class RoutingKey(NamedTuple):
    pointer: tuple[str, ...]
    required: bool


def routing_key_of(rules: Rules) -> RoutingKey | None:
    return _decoded(rules.routing_key) if rules.routing_key else None


@lru_cache(maxsize=256)
def _decoded(document: bytes) -> RoutingKey:
    settings = msgspec.json.decode(document)
    return RoutingKey(parse_pointer(settings["jsonPointer"]), bool(settings["required"]))
