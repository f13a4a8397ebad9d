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
    """`text` has its escapes resolved like a stream's key, but for `%2A`."""
    return tuple(_parse_segment(segment) for segment in text.split(b"/"))


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


def path_of(key: bytes) -> bytes:
    """The path users write for the stream with this key; `api.paths.stream_key` turns it back."""
    name = key.removeprefix(DEFAULT_BUCKET + b"/")
    return key if b"/" in name else name


def text_of(key: bytes) -> str:
    """The same as text."""
    return path_of(key).decode()


def segments_of(key: bytes) -> list[bytes]:
    return path_of(key).split(b"/")
