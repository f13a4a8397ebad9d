"""JSON messages as values, and back: what is stored is the text that was sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode_messages(wire: bytes) -> list[Any]:
    """The values of some messages, each with the comma that is behind it on the wire."""
    try:
        values: list[Any] = _decode(b"[%b]" % wire[:-1])
    except msgspec.DecodeError:  # a lone surrogate, or a number that no float holds: legal JSON
        values = json.loads(b"[%b]" % wire[:-1])
    return values


def encode_message(value: Any) -> bytes:
    """Without a comma. Keys keep their order; text stays text."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
