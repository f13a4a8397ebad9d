"""What a stream's content type means for matching, JSON mode and SSE."""

from __future__ import annotations

DEFAULT_CONTENT_TYPE = b"application/octet-stream"
JSON_CONTENT_TYPE = b"application/json"
_COMPRESSIBLE = frozenset(
    b"application/" + name
    for name in (
        *(b"json", b"x-ndjson", b"ndjson", b"jsonl", b"json-seq", b"xml", b"yaml", b"x-yaml"),
        *(b"javascript", b"graphql", b"sql", b"toml", b"wasm", b"openmetrics-text"),
    )
)


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


def is_compressible(content_type: bytes) -> bool:
    """Known to be text of some kind. What is not, most often is compressed or encrypted already."""
    name = essence(content_type)
    return (
        name.startswith((b"text/", b"multipart/"))
        or name.endswith((b"+json", b"+xml", b"+text", b"+yaml"))
        or name in _COMPRESSIBLE
    )


def is_valid(content_type: bytes) -> bool:
    """A type and subtype of visible ASCII: enough to be echoed in a header safely."""
    kind, slash, subtype = essence(content_type).partition(b"/")
    return bool(
        kind and slash and subtype and content_type.isascii() and b" " not in kind + subtype
    )
