"""Heads seen before: most clients send the same header block again and again.

A block that the strict parser accepted once, and that came twice in a row on one connection, is
remembered with what it means. A request with exactly these bytes is then read without the parser.
Only plain heads qualify: a body of known length, no Connection, Expect, Upgrade, Transfer-Encoding.
"""

from __future__ import annotations

from typing import NamedTuple

HEADS_MAX = 4096
HEAD_BYTES_MAX = 2048

_NOT_PLAIN = frozenset((b"connection", b"expect", b"upgrade", b"transfer-encoding"))
_METHODS = frozenset((b"POST", b"GET", b"PUT", b"HEAD", b"DELETE", b"OPTIONS"))
_URL_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/?[]@!$&'()*+,;=%"


class KnownHead(NamedTuple):
    headers: dict[bytes, bytes]  # shared by requests: read only
    body_bytes: int


class KnownHeads:
    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def find(self, block: bytes) -> KnownHead | None:
        return self._heads.get(block)

    def remember(self, block: bytes, headers: dict[bytes, bytes]) -> None:
        """`block` is everything between the request line and the blank line."""
        if len(block) > HEAD_BYTES_MAX or not _NOT_PLAIN.isdisjoint(headers):
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        body_bytes = int(headers.get(b"content-length", b"0"))
        self._heads[block] = KnownHead(headers, body_bytes)


def split_request_line(line: bytes) -> tuple[bytes, bytes] | None:
    """(method, URL) of an ordinary HTTP/1.1 request line; None: let the parser judge it."""
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] != b"HTTP/1.1" or parts[0] not in _METHODS:
        return None
    url = parts[1]
    if url[:1] != b"/" or url.translate(None, _URL_BYTES):
        return None
    return parts[0], url
