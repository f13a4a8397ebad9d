"""What browsers are told, so that pages of other origins may use the server.

Which pages may is decided in web_pages.py.
"""

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
).encode()
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


def fixed_headers(*, is_open: bool) -> bytes:
    """On every answer, errors and refusals included. Open: to the pages of all origins."""
    if is_open:
        shared = b"cross-origin-resource-policy: cross-origin\r\n" + page_headers(b"*")
    else:
        # Whatever keeps an answer must not give it to a page of another origin, or of none.
        shared = b"cross-origin-resource-policy: same-site\r\nvary: Origin\r\n"
    return b"x-content-type-options: nosniff\r\n" + shared


def page_headers(origin: bytes) -> bytes:
    """For a page of this origin that may read the answer."""
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n" % (
        origin,
        _EXPOSED,
    )


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
