"""What streams hold, seen from outside: positions, payloads, and laying payloads out over a read.

A stream is counted in units: bytes for binary and text streams, messages for JSON streams. Nothing
here uses the server's own code, so that a mistake there cannot hide itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

Content = bytes | tuple[bytes, ...]  # bytes, or the raw JSON messages


class Kind(Enum):
    BINARY = "application/octet-stream"
    TEXT = "text/plain"
    JSON = "application/json"

    @property
    def nothing(self) -> Content:
        return () if self is Kind.JSON else b""


class Position(NamedTuple):
    """An offset token, taken apart."""

    ordinal: int
    byte: int

    @classmethod
    def parse(cls, token: str) -> Position:
        ordinal, separator, byte = token.partition("_")
        if separator != "_" or len(ordinal) != 16 or len(byte) != 16:
            raise ValueError(f"not an offset token: {token!r}")
        return cls(int(ordinal), int(byte))

    @property
    def token(self) -> str:
        return f"{self.ordinal:016d}_{self.byte:016d}"

    def units(self, kind: Kind) -> int:
        return self.ordinal if kind is Kind.JSON else self.byte

    def before(self, kind: Kind, payload: Content) -> Position:
        """Where an append began that ended here."""
        if isinstance(payload, tuple):
            return Position(
                self.ordinal - len(payload), self.byte - sum(len(m) + 1 for m in payload)
            )
        return Position(self.ordinal - 1, self.byte - len(payload))


START = Position(0, 0)


def join(first: Content, second: Content) -> Content:
    if isinstance(first, bytes):
        assert isinstance(second, bytes)
        return first + second
    assert isinstance(second, tuple)
    return first + second


def encode_body(payload: Content) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if len(payload) == 1 and not payload[0].startswith(b"["):
        return payload[0]
    return b"[" + b",".join(payload) + b"]"


def decode_body(kind: Kind, body: bytes) -> Content:
    if kind is not Kind.JSON:
        return body
    return tuple(bytes(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw]))


def make_payload(kind: Kind, tag: str, size_bytes: int, messages: int, tiny: int) -> Content:
    """A payload that names its request, as far as its size allows.

    `tiny` tells payloads apart that are too small for their tag: it differs between requests
    that may be unanswered at the same time.
    """
    if kind is Kind.JSON:
        each = size_bytes // messages
        return tuple(_json_message(f"{tag}.{i}", each, tiny + i) for i in range(messages))
    marked = f"<{tag}>".encode()
    if size_bytes <= len(marked):
        return (bytes([0x21 + tiny % 94]) * size_bytes)[:size_bytes]
    filler = size_bytes - len(marked)
    if kind is Kind.BINARY:
        return marked + random.Random(tag).randbytes(filler)
    line = f"{tag} žluťoučký kůň\n".encode()
    text = (line * (filler // len(line) + 1))[:filler].decode(errors="ignore").encode()
    return marked + text + b"." * (filler - len(text))


def _json_message(tag: str, size_bytes: int, tiny: int) -> bytes:
    """Raw JSON in spellings that a re-printing server would change."""
    if size_bytes < 8:
        return str(tiny).encode()
    shape = tiny % 4
    if shape == 0:
        return b'[1.0, ["%s"],12345678901234567890]' % tag.encode()
    if shape == 1:
        return b'"%s \\u00e9\\/"' % tag.encode()
    head = b'{"t":"%s","t" : 1e2,"p":"' % tag.encode()
    return head + b"x" * max(0, size_bytes - len(head) - 2) + b'"}'


@dataclass(frozen=True)
class Placed:
    """Was acknowledged with an offset: it must be exactly there."""

    start: int
    payload: Content
    label: str


@dataclass(frozen=True)
class Loose:
    """Has no known place: whole, at most once, and exactly once when `required`.

    In a fork it may be cut where the fork begins: `cut` is that place.
    """

    payload: Content
    label: str
    required: bool = False
    cut: int | None = None

    def end_from(self, begin: int) -> int:
        """Where the piece ends when it begins there."""
        end = begin + len(self.payload)
        return self.cut if self.cut is not None and begin < self.cut < end else end


@dataclass
class Layout:
    """How a stream's content is made up of requests, in order, with no unit left over."""

    starts: dict[str, int] = field(default_factory=dict)  # by label
    ends: list[int] = field(default_factory=list)  # where each piece ends


class Mismatch(AssertionError):
    """The content is not what the record of requests allows."""


def lay_out(
    content: Content, begin: int, placed: Iterable[Placed], loose: Sequence[Loose]
) -> Layout:
    """Explains `content` from `begin` to its end by the given pieces, or raises Mismatch."""
    layout = Layout()
    remaining = list(loose)
    position = begin
    for piece in sorted(placed, key=lambda p: (p.start, len(p.payload))):
        end = piece.start + len(piece.payload)
        if piece.start < position:
            raise Mismatch(f"{piece.label} at {piece.start} overlaps what ends at {position}")
        if end > len(content):
            raise Mismatch(f"lost: {piece.label} at {piece.start}, stream ends at {len(content)}")
        _fill_gap(content, position, piece.start, remaining, layout)
        if content[piece.start : end] != piece.payload:
            found = _show(content[piece.start : end])
            raise Mismatch(f"altered: {piece.label} at {piece.start}: found {found}")
        layout.starts[piece.label] = piece.start
        layout.ends.append(end)
        position = end
    _fill_gap(content, position, len(content), remaining, layout)
    lost = [piece.label for piece in remaining if piece.required]
    if lost:
        raise Mismatch(f"lost: {', '.join(lost)}")
    return layout


def _fill_gap(
    content: Content, begin: int, end: int, remaining: list[Loose], layout: Layout
) -> None:
    chosen = _tile(content, begin, end, remaining)
    if chosen is None:
        candidates = [piece.label for piece in remaining]
        raise Mismatch(
            f"units {begin} to {end} are nobody's request, or one of them twice or torn:"
            f" {_show(content[begin:end])}; candidates: {candidates}"
        )
    position = begin
    for piece in chosen:
        remaining.remove(piece)
        layout.starts[piece.label] = position
        position = piece.end_from(position)
        layout.ends.append(position)


def _tile(content: Content, begin: int, end: int, pieces: Sequence[Loose]) -> list[Loose] | None:
    if begin == end:
        return []
    for index, piece in enumerate(pieces):
        stop = piece.end_from(begin)
        if stop <= end and content[begin:stop] == piece.payload[: stop - begin]:
            rest = _tile(content, stop, end, [*pieces[:index], *pieces[index + 1 :]])
            if rest is not None:
                return [piece, *rest]
    return None


def _show(content: Content) -> str:
    return f"{content[:60]!r}… ({len(content)} units)" if len(content) > 60 else repr(content)
