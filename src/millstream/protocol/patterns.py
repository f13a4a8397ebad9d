"""Glob patterns over stream paths: `*` is one segment, `**` any number of them, also none.

Everything else in a pattern is taken literally; a segment that really is called `*` is spelled
`%2A`. Patterns are matched against a stream's path as users write it: `a/b` for the stream `b` of
bucket `a`, just `b` for one in the default bucket (which a pattern may also spell out).
"""

from __future__ import annotations

from enum import Enum, auto

DEFAULT_BUCKET = b"_default"


class Wildcard(Enum):
    ONE = auto()
    ANY = auto()


Segment = bytes | Wildcard
Pattern = tuple[Segment, ...]

_WILDCARDS: dict[bytes, Wildcard] = {b"*": Wildcard.ONE, b"**": Wildcard.ANY}


def parse_pattern(text: bytes) -> Pattern:
    """`text` has its escapes resolved like a stream's key, but for `%2A`.

    Several `**` in a row are one: they match the same paths, and no more work.
    """
    segments: list[Segment] = []
    for part in text.split(b"/"):
        segment = _parse_segment(part)
        if not (segment is Wildcard.ANY and segments and segments[-1] is Wildcard.ANY):
            segments.append(segment)
    return tuple(segments)


def _parse_segment(segment: bytes) -> Segment:
    return _WILDCARDS.get(segment) or segment.replace(b"%2A", b"*")


def literal_prefix(pattern: Pattern) -> tuple[bytes, ...]:
    """The segments before the first wildcard."""
    prefix: list[bytes] = []
    for segment in pattern:
        if isinstance(segment, Wildcard):
            break
        prefix.append(segment)
    return tuple(prefix)


def weight_of(pattern: Pattern) -> int:
    """At how many places in the pattern a path may be at once while it is matched.

    Without a `**` it is one; behind the first `**` it may be anywhere.
    """
    if Wildcard.ANY not in pattern:
        return 1
    return len(pattern) - pattern.index(Wildcard.ANY)


def path_of(key: bytes) -> bytes:
    """The path users write for the stream with this key; `api.paths.stream_key` turns it back."""
    name = key.removeprefix(DEFAULT_BUCKET + b"/")
    return key if b"/" in name else name


def text_of(key: bytes) -> str:
    """The same as text."""
    return path_of(key).decode(errors="replace")


def segments_of(key: bytes) -> list[bytes]:
    return path_of(key).split(b"/")
