"""JSON messages as values, and back: what is stored is the text that was sent."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from millstream.errors import SchemaViolation
from millstream.limits import JSON_DEPTH_MAX, RULES_ENTRY_DEPTH_MAX

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_DIGITS_MAX = 4300  # that Python takes for a whole number
_TOO_LARGE = "an entry has a number that is too large"
_TOO_DEEP = f"an entry is nested too deeply; {RULES_ENTRY_DEPTH_MAX} levels are the most"
_LEVELS_LEFT = JSON_DEPTH_MAX - RULES_ENTRY_DEPTH_MAX  # that a decoder is not to go down


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
    if text.count(b"[") + text.count(b"{") <= RULES_ENTRY_DEPTH_MAX:
        return _decode_exactly(text)
    try:  # decoders count levels anyway: this one is left about as many as are allowed
        values = _decode_exactly(b"%b%b%b" % (b"[" * _LEVELS_LEFT, text, b"]" * _LEVELS_LEFT))
    except RecursionError:
        return _decode_deep(text)
    for _ in range(_LEVELS_LEFT):
        values = values[0]
    return values


def _decode_deep(text: bytes) -> list[Any]:
    """The same, with levels counted one by one."""
    try:
        values = level = _decode_exactly(text)
    except RecursionError:
        raise SchemaViolation(_TOO_DEEP) from None
    for _ in range(RULES_ENTRY_DEPTH_MAX):
        level = [child for parent in level for child in _children(parent)]
    if any(isinstance(value, dict | list) for value in level):
        raise SchemaViolation(_TOO_DEEP)
    return values


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _decode_exactly(text: bytes) -> list[Any]:
    try:
        values: list[Any] = _decode(text)
    except msgspec.ValidationError:
        raise SchemaViolation(_TOO_LARGE) from None
    except msgspec.DecodeError:  # a lone surrogate: legal JSON
        values = _strict.decode(text.decode())
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
