"""What a key may be good for, and over which streams: `append:agents/run-*`, `read:**`, `admin`.

Every route of the table in api/ names one Scope, or none. Patterns are those of protocol/patterns,
written as listings show names; in addition a `*` inside a segment stands for any bytes of that
segment. A stream whose name has a `*` is spelled with `%2A`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from millstream.errors import InvalidRequest
from millstream.limits import PATTERN_SEGMENTS_MAX, STREAM_PATH_BYTES_MAX
from millstream.protocol.patterns import DEFAULT_BUCKET, Segment, Wildcard, parse_pattern, path_of


class Scope(Enum):
    """`admin` is over the whole server; the others are over streams that a pattern names."""

    READ = "read"  # content, tails, snapshots, listings of what it covers
    APPEND = "append"  # content, and closing
    MANAGE = "manage"  # create, delete, fork, snapshots, buckets, retention
    SUBSCRIBE = "subscribe"  # subscriptions and their wakes
    ADMIN = "admin"  # operators' routes, keys

    # One object each, so its address will do. Enum's own is a function in Python: twice the price
    # of a whole look at the gate.
    __hash__ = object.__hash__


class Glob(NamedTuple):
    """A segment with stars in it: what stands before, between and behind them."""

    parts: tuple[bytes, ...]

    def matches(self, segment: bytes) -> bool:
        """Takes each part at the first place it can be: no other place leaves more room."""
        first, *between, last = self.parts
        place, end = len(first), len(segment) - len(last)
        if place > end or not (segment.startswith(first) and segment.endswith(last)):
            return False
        for part in between:
            found = segment.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return True


Piece = Segment | Glob


class Rule(NamedTuple):
    """One scope over what one pattern names."""

    scope: Scope
    pattern: tuple[Piece, ...]

    def covers(self, key: bytes) -> bool:
        """Whether it is over this stream. A key that ends in `/` is a bucket with all in it."""
        if key.endswith(b"/"):
            return self.covers_pattern((key[:-1], Wildcard.ANY))
        if self._names_default_bucket:
            return _covers(self.pattern, key.split(b"/"))
        return _covers(self.pattern, path_of(key).split(b"/"))

    def covers_pattern(self, pattern: Sequence[Segment]) -> bool:
        """Whether it is over every stream that a pattern names, as far as one rule alone can be."""
        if pattern[0] == DEFAULT_BUCKET:
            if len(pattern) == 2 and pattern[1] is not Wildcard.ANY:
                pattern = pattern if self._names_default_bucket else pattern[1:]
            elif not self._names_default_bucket:
                return self.pattern == (Wildcard.ANY,)
        return _covers(self.pattern, pattern)

    def reaches_into(self, bucket: bytes) -> bool:
        """Whether there can be streams in this bucket that it is over."""
        first = self.pattern[0]
        # Names in the default bucket are written without it: any pattern may begin with one.
        return bucket == DEFAULT_BUCKET or first is Wildcard.ANY or _fits(first, bucket)

    @property
    def _names_default_bucket(self) -> bool:
        return self.pattern[0] == DEFAULT_BUCKET


_SCOPE = "|".join(scope.value for scope in Scope if scope is not Scope.ADMIN)
_TEXT = re.compile(rf"(?P<scope>{_SCOPE}):(?P<pattern>.+)", re.DOTALL)
_ESCAPE = re.compile(rb"%(?!2F|25|2A)")
EVERYTHING: tuple[Piece, ...] = (Wildcard.ANY,)


def parse_rule(text: str) -> Rule:
    """Raises InvalidRequest with what is wrong about it."""
    if text == Scope.ADMIN.value:
        return Rule(Scope.ADMIN, EVERYTHING)
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{text!r} is no scope; use admin, or one of read, append, manage and subscribe with a "
            "pattern of streams, such as append:agents/run-* or read:**"
        )
    try:
        pattern = match["pattern"].encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a scope must be UTF-8") from None
    return Rule(Scope(match["scope"]), _parse_pattern(text, pattern))


def _parse_pattern(text: str, pattern: bytes) -> tuple[Piece, ...]:
    segments = pattern.split(b"/")
    if len(pattern) > STREAM_PATH_BYTES_MAX or len(segments) > PATTERN_SEGMENTS_MAX:
        raise InvalidRequest(
            f"the pattern of a scope must not exceed {STREAM_PATH_BYTES_MAX} bytes and "
            f"{PATTERN_SEGMENTS_MAX} segments"
        )
    if any(segment in (b"", b".", b"..") for segment in segments) or b"\0" in pattern:
        raise InvalidRequest(f"{text!r}: a pattern has no empty, . or .. segments and no NUL")
    if _ESCAPE.search(pattern):
        raise InvalidRequest(
            f"{text!r}: write names as listings show them; only %2F, %25 and %2A are escapes"
        )
    found: list[Piece] = []
    for segment in segments:
        if b"*" in segment and segment not in (b"*", b"**"):
            parts = (part.replace(b"%2A", b"*") for part in segment.split(b"*"))
            found.append(Glob(tuple(parts)))
        elif segment != b"**" or found[-1:] != [Wildcard.ANY]:
            found += parse_pattern(segment)
    return tuple(found)


def _covers(pattern: Sequence[Piece], segments: Sequence[Segment]) -> bool:
    """A `**` takes as little as it can; when that fails, the last one takes one more.

    Never more than one step for each pair of a segment and a piece of the pattern.
    """
    piece = place = 0
    again_piece = again_place = -1
    while place < len(segments):
        if piece < len(pattern) and pattern[piece] is Wildcard.ANY:
            again_piece, again_place = piece, place
            piece += 1
        elif piece < len(pattern) and _fits(pattern[piece], segments[place]):
            piece += 1
            place += 1
        elif again_place >= 0:
            again_place += 1
            piece, place = again_piece + 1, again_place
        else:
            return False
    return all(rest is Wildcard.ANY for rest in pattern[piece:])


def _fits(piece: Piece, segment: Segment) -> bool:
    if piece is Wildcard.ONE:
        return segment is not Wildcard.ANY
    if isinstance(segment, Wildcard) or isinstance(piece, Wildcard):
        return False
    return piece.matches(segment) if isinstance(piece, Glob) else piece == segment
