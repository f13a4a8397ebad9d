"""Heads seen before: most clients send the same request line and header block again and again.

Bytes that the strict parser accepted once are remembered with what they mean: a header block when
it came twice in a row on one connection, a request line when it came with such a block. A request
of exactly these bytes is then read without the parser. Only plain heads qualify: HTTP/1.1, a body
of known length, no Connection, Expect, Upgrade, Transfer-Encoding. What comes from a web page
(Origin) qualifies only where every page may do everything: otherwise the answer to it depends on
the method, and carries headers of its own. So a head that is known is one that was let in.
"""

from __future__ import annotations

from typing import NamedTuple

HEADS_MAX = 4096
LINES_MAX = 16_384
BYTES_MAX = 2048

_NOT_PLAIN = frozenset((b"connection", b"expect", b"upgrade", b"transfer-encoding"))


class KnownHead(NamedTuple):
    headers: dict[bytes, bytes]  # shared by requests: read only
    body_bytes: int


class KnownLine(NamedTuple):
    method: bytes
    path: bytes
    query: bytes


class KnownHeads:
    """`blocks`: what stands between request line and blank line; `lines`: request lines.

    One for each listening address, because not every address lets in the same hosts.
    """

    def __init__(self, *, with_origins: bool = False) -> None:
        self._not_plain = _NOT_PLAIN if with_origins else _NOT_PLAIN | {b"origin"}
        self.blocks: dict[bytes, KnownHead] = {}
        self.lines: dict[bytes, KnownLine] = {}

    def remember(
        self, line: bytes, known: KnownLine, block: bytes, headers: dict[bytes, bytes]
    ) -> None:
        if len(block) + len(line) > BYTES_MAX or not self._not_plain.isdisjoint(headers):
            return
        if not line.endswith(b" HTTP/1.1"):
            return
        if len(self.blocks) >= HEADS_MAX:
            self.blocks.clear()
        if len(self.lines) >= LINES_MAX:
            self.lines.clear()
        self.blocks[block] = KnownHead(headers, int(headers.get(b"content-length", b"0")))
        self.lines[line] = known
