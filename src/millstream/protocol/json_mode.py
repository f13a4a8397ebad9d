"""JSON mode: a body becomes messages, and messages become an array again, without re-printing.

Messages are kept as the very bytes that were sent, each followed by one comma. A read of any run
of messages is then `[` + bytes without the last comma + `]`.
"""

from __future__ import annotations

import json
from array import array
from itertools import accumulate, count
from operator import add
from typing import NamedTuple, NoReturn

import msgspec

from millstream.errors import InvalidJson, TooManyMessages

_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_value_decoder = msgspec.json.Decoder(msgspec.Raw)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_lenient_decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
_WHITESPACE = b" \t\n\r"
_ARRAY_OPEN = 0x5B


class Messages(NamedTuple):
    """Wire bytes of one or more messages and, when more than one, where each ends."""

    data: bytes
    ends: bytes  # native-endian u32 per message, relative to data; empty for exactly one message
    total: int  # number of messages


EMPTY = Messages(b"", b"", 0)


def split_body(body: bytes) -> Messages:
    """Checks the body and flattens one level of array. `[]` gives no messages.

    Raises InvalidJson for anything that is not JSON in UTF-8. For bodies that are not large:
    the caller waits for all of it (see json_pieces.py for the others).
    """
    try:
        if not body.isascii():
            body.decode()
        stripped = body.lstrip(_WHITESPACE)
        if stripped[:1] == b"[":
            return _join(_array_decoder.decode(body))
        return Messages(bytes(_value_decoder.decode(body)) + b",", b"", 1)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise InvalidJson("body is nested too deeply") from None
    except msgspec.DecodeError as error:
        if b"\\u" in body:
            return _split_with_lone_surrogates(body, error)
        raise InvalidJson(f"body is not valid JSON: {error}") from None


def _join(parts: list[msgspec.Raw]) -> Messages:
    if len(parts) > 1:
        ends = array("I", map(add, accumulate(map(len, parts)), count(1)))  # with their commas
        return Messages(b",".join(parts) + b",", ends.tobytes(), len(parts))
    if parts:
        return Messages(bytes(parts[0]) + b",", b"", 1)
    return EMPTY


def check_text(text: bytes) -> str | None:
    """What is wrong with this text, which is UTF-8; None: it is JSON."""
    try:
        _value_decoder.decode(text)
    except RecursionError:
        return "body is nested too deeply"
    except msgspec.DecodeError as error:
        if b"\\u" not in text or not _is_json_with_lone_surrogates(text.decode()):
            return f"body is not valid JSON: {error}"
    return None


def too_many(sent: int, allowed: int) -> TooManyMessages:
    return TooManyMessages(
        f"the body holds {sent} messages; at most {allowed} are allowed in one append. "
        "Send several smaller ones, or raise --max-append-messages"
    )


def _is_json_with_lone_surrogates(text: str) -> bool:
    try:
        _lenient_decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _split_with_lone_surrogates(body: bytes, fast_error: msgspec.DecodeError) -> Messages:
    r"""The slow way, for `"\ud800"`: legal JSON that a strict decoder of text refuses."""
    text = body.decode()
    if not _is_json_with_lone_surrogates(text):
        raise InvalidJson(f"body is not valid JSON: {fast_error}") from None
    whitespace = _WHITESPACE.decode()
    trimmed = text.strip(whitespace)
    if not trimmed.startswith("["):
        return Messages(trimmed.encode() + b",", b"", 1)
    parts: list[bytes] = []
    position = 1
    while True:
        while trimmed[position] in whitespace or trimmed[position] == ",":
            position += 1
        if trimmed[position] == "]":
            break
        _, end = _lenient_decoder.raw_decode(trimmed, position)
        parts.append(trimmed[position:end].encode())
        position = end
    return _join([msgspec.Raw(part) for part in parts])
