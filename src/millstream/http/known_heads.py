"""Heads seen before: most clients send the same request line and header block again and again.

Bytes that the strict parser accepted once are remembered with what they mean: a header block when
it came twice in a row on one connection, a request line when it came with such a block. A request
of exactly these bytes is then read without the parser. Only plain heads qualify: HTTP/1.1, a body
of known length, no Connection, Expect, Upgrade, Transfer-Encoding. What comes from a web page
(Origin) qualifies only where every page may do everything: otherwise the answer to it depends on
the method, and carries headers of its own. So a head that is known is one that was let in.

Bodies of many lengths make blocks that differ in one number. So a connection whose last two heads
differed in nothing else also keeps the block's shape: the bytes on both sides of that number. The
length of what came says which number has to stand there; any other spelling is the parser's.
"""

from __future__ import annotations

from typing import NamedTuple

HEADS_MAX = 4096
LINES_MAX = 16_384
BYTES_MAX = 2048

_LENGTH = b"content-length"
_NOT_PLAIN = frozenset((b"connection", b"expect", b"upgrade", b"transfer-encoding"))


class KnownHead(NamedTuple):
    headers: dict[bytes, bytes]  # shared by requests: read only
    body_bytes: int


class HeadShape(NamedTuple):
    """A header block for bodies of any length up to `body_bytes_max`."""

    lead: bytes  # up to the digits of Content-Length
    rest: bytes  # behind them
    body_bytes_max: int
    head: KnownHead  # without Content-Length; its `body_bytes` mean nothing


class KnownLine(NamedTuple):
    method: bytes
    path: bytes
    query: bytes


class KnownHeads:
    """`blocks`: what stands between request line and blank line; `lines`: request lines;
    `shapes`: by lead and rest, so that connections share them.

    One for each listening address, because not every address lets in the same hosts.
    """

    def __init__(self, *, with_origins: bool = False) -> None:
        self._not_plain = _NOT_PLAIN if with_origins else _NOT_PLAIN | {b"origin"}
        self.blocks: dict[bytes, KnownHead] = {}
        self.lines: dict[bytes, KnownLine] = {}
        self.shapes: dict[tuple[bytes, bytes], HeadShape] = {}

    def remember(
        self, line: bytes, known: KnownLine, block: bytes, headers: dict[bytes, bytes]
    ) -> None:
        if not self._is_plain(line, block, headers):
            return
        if len(self.blocks) >= HEADS_MAX:
            self.blocks.clear()
        self.blocks[block] = KnownHead(headers, int(headers.get(b"content-length", b"0")))
        self._remember_line(line, known)

    def remember_shape(
        self,
        line: bytes,
        known: KnownLine,
        block: bytes,
        headers: dict[bytes, bytes],
        body_bytes_max: int,
    ) -> HeadShape | None:
        """The shape of `block`, if it is plain and spells its length in the usual way."""
        parts = _split_at_length(block, headers)
        if parts is None or not self._is_plain(line, block, headers):
            return None
        self._remember_line(line, known)
        shape = self.shapes.get(parts)
        if shape is None:
            if len(self.shapes) >= HEADS_MAX:
                self.shapes.clear()
            others = {name: value for name, value in headers.items() if name != _LENGTH}
            shape = HeadShape(*parts, body_bytes_max, KnownHead(others, 0))
            self.shapes[parts] = shape
        return shape

    def _is_plain(self, line: bytes, block: bytes, headers: dict[bytes, bytes]) -> bool:
        if len(block) + len(line) > BYTES_MAX or not line.endswith(b" HTTP/1.1"):
            return False
        return self._not_plain.isdisjoint(headers)

    def _remember_line(self, line: bytes, known: KnownLine) -> None:
        if len(self.lines) >= LINES_MAX:
            self.lines.clear()
        self.lines[line] = known


def _split_at_length(block: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, bytes] | None:
    """What stands before and behind the digits of the one Content-Length."""
    lead, name, rest = block.lower().partition(b"\r\ncontent-length: ")
    digits = headers.get(_LENGTH, b"")
    if not name or not digits.isdigit() or b"%d" % int(digits) != digits:
        return None
    start = len(lead) + len(name)
    end = start + len(digits)
    if block[start:end] != digits or block[end : end + 2] not in (b"", b"\r\n"):
        return None
    if b"\r\ncontent-length" in rest:
        return None
    return block[:start], block[end:]
