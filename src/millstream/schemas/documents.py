"""JSON documents that people install, and places inside them."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from millstream.errors import InvalidSchema


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
_INDEX = re.compile("0|[1-9][0-9]{0,9}")
_BAD_ESCAPE = re.compile("~(?![01])")


def decode_document(body: bytes, what: str) -> Any:
    """Raises InvalidSchema for anything but JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidSchema(f"{what} must be valid JSON") from None


def encode_document(value: Any) -> bytes:
    """Compact, with its keys in their order."""
    return msgspec.json.encode(value)


def parse_pointer(text: str) -> tuple[str, ...]:
    """Of RFC 6901; raises InvalidSchema."""
    if not text:
        return ()
    if not text.startswith("/") or _BAD_ESCAPE.search(text):
        raise InvalidSchema(f"{text[:100]!r} is not a JSON pointer")
    parts = text[1:].split("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def find(document: Any, pointer: tuple[str, ...]) -> Any:
    """What stands there, or MISSING."""
    for part in pointer:
        if isinstance(document, dict):
            if part not in document:
                return MISSING
            document = document[part]
        elif isinstance(document, list):
            if not _INDEX.fullmatch(part) or int(part) >= len(document):
                return MISSING
            document = document[int(part)]
        else:
            return MISSING
    return document
