"""What a stream's content type means for matching, JSON mode and SSE."""

from __future__ import annotations

DEFAULT_CONTENT_TYPE = b"application/octet-stream"
JSON_CONTENT_TYPE = b"application/json"


def essence(content_type: bytes) -> bytes:
    """The type without parameters, in lower case: what has to match."""
    cut = content_type.find(b";")
    if cut >= 0:
        content_type = content_type[:cut]
    return content_type.strip().lower()


def is_json(type_essence: bytes) -> bool:
    return type_essence == JSON_CONTENT_TYPE


def is_text(type_essence: bytes) -> bool:
    """Whether SSE carries the data as it is; anything else goes as base64."""
    return type_essence == JSON_CONTENT_TYPE or type_essence.startswith(b"text/")


def is_valid(content_type: bytes) -> bool:
    """A type and subtype of visible ASCII: enough to be echoed in a header safely."""
    kind, slash, subtype = essence(content_type).partition(b"/")
    return bool(
        kind and slash and subtype and content_type.isascii() and b" " not in kind + subtype
    )
