"""JSON messages as values, and back: what is stored is the text that was sent."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from millstream.errors import SchemaViolation

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_DIGITS_MAX = 4300  # that Python takes for a whole number
_TOO_LARGE = "an entry has a number that is too large"


def decode_messages(wire: bytes) -> list[Any]:
    """The values of some messages, each with the comma that is behind it on the wire.

    What a stream held before it had rules may be legal JSON that no value stands for: a number that
    is too large is infinite then.
    """
    text = b"[%b]" % wire[:-1]
    try:
        values: list[Any] = _decode(text)
    except msgspec.DecodeError:  # of a lone surrogate, too
        values = _lenient.decode(text.decode())
    return values


def decode_sent(wire: bytes) -> list[Any]:
    """The same of messages that are new. Raises SchemaViolation for those that could not be shown
    in another form later without being changed."""
    text = b"[%b]" % wire[:-1]
    try:
        try:
            values: list[Any] = _decode(text)
        except msgspec.ValidationError:
            raise SchemaViolation(_TOO_LARGE) from None
        except msgspec.DecodeError:  # a lone surrogate: legal JSON
            values = _strict.decode(text.decode())
    except RecursionError:
        raise SchemaViolation("an entry is nested too deeply") from None
    return values


def _large_integer(digits: str) -> int | float:
    return int(digits) if len(digits) < _DIGITS_MAX else float(digits)


def _exact_integer(digits: str) -> int:
    if len(digits) >= _DIGITS_MAX:
        raise SchemaViolation(_TOO_LARGE)
    return int(digits)


def _exact_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise SchemaViolation(_TOO_LARGE)
    return value


_lenient = json.JSONDecoder(parse_int=_large_integer)
_strict = json.JSONDecoder(parse_int=_exact_integer, parse_float=_exact_float)


def encode_message(value: Any) -> bytes:
    """Without a comma. Keys keep their order; text stays text."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
