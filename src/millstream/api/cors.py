"""What browsers are told, so that pages of other origins may use the server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.limits import ASKED_HEADERS_BYTES_MAX

_EXPOSED = ", ".join(
    (
        "Stream-Next-Offset, Stream-End-Offset, Stream-Up-To-Date, Stream-Closed, Stream-Cursor",
        "Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Earliest-Offset",
        "Stream-Snapshot-Offset, Producer-Epoch, Producer-Seq, Producer-Expected-Seq",
        "Producer-Received-Seq, ETag, Location, Retry-After",
    )
)
_ALLOWED = ", ".join(
    (
        "Authorization, Content-Type, If-None-Match, Accept, Cache-Control, Last-Event-ID, Prefer",
        "Stream-TTL, Stream-Expires-At, Stream-Seq, Stream-Closed, Stream-Forked-From",
        "Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq",
    )
).encode()
_ALLOWED_NAMES = frozenset(name.strip() for name in _ALLOWED.lower().split(b","))
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_PREFLIGHT = (
    b"access-control-allow-methods: GET, HEAD, PUT, POST, DELETE, OPTIONS\r\n"
    b"access-control-allow-headers: %b\r\n"
    b"access-control-max-age: 86400\r\n"
    b"vary: Access-Control-Request-Headers\r\n"
)


def fixed_headers(cors_origin: str) -> bytes:
    """On every answer, errors and refusals included."""
    lines = [
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: cross-origin",
    ]
    if cors_origin:
        lines += [
            f"access-control-allow-origin: {cors_origin}",
            f"access-control-expose-headers: {_EXPOSED}",
        ]
    return "".join(line + "\r\n" for line in lines).encode()


def preflight_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Every header of the protocol is allowed, and whatever else the page asks for: tracing,
    gateways and client libraries add their own, and none of them means anything here."""
    asked = _asked_for(headers.get(b"access-control-request-headers", b""))
    return _PREFLIGHT % b", ".join((_ALLOWED, *asked))


def _asked_for(value: bytes) -> list[bytes]:
    """The names beyond our own; none when the value is not a list of names."""
    if not value or len(value) > ASKED_HEADERS_BYTES_MAX:
        return []
    names = {name.strip().lower() for name in value.split(b",")}
    if not all(map(_NAME.fullmatch, names)):
        return []
    return sorted(names - _ALLOWED_NAMES)
