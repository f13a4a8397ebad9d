"""Which stream a URL path names.

One namespace of buckets and streams: the first `/` below `/v1/stream/` splits the bucket from the
stream, a name without `/` is in the bucket `_default`. A stream's key is `bucket/stream` with
percent escapes resolved, but for `%2F` and `%25`: an encoded slash stays part of a name.
"""

from __future__ import annotations

import re

from millstream.errors import InvalidRequest
from millstream.limits import STREAM_PATH_BYTES_MAX
from millstream.protocol.patterns import DEFAULT_BUCKET

STREAM_ROOT = b"/v1/stream/"
CONTROL_SEGMENT = b"__ds"  # reserved: the server's own routes, no streams
CONTROL_ROOT = STREAM_ROOT + CONTROL_SEGMENT + b"/"
CACHE_ENTRIES_MAX = 65_536

_WILDCARDS = (b"*", b"**")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})|%")


def _unescape(match: re.Match[bytes]) -> bytes:
    digits = match[1]
    if digits is None:
        raise InvalidRequest("the URL has a % that is not followed by two hexadecimal digits")
    upper = digits.upper()
    return b"%" + upper if upper in (b"2F", b"25") else bytes.fromhex(digits.decode())


def stream_key(raw_path: bytes) -> bytes:
    """The key of the stream at this raw URL path below STREAM_ROOT."""
    segments = _segments(raw_path[len(STREAM_ROOT) :])
    name = b"/".join(segments)
    return name if len(segments) > 1 else DEFAULT_BUCKET + b"/" + name


def normal_pattern(raw_pattern: bytes) -> bytes:
    """A glob pattern with its escapes resolved, as protocol.patterns reads it."""
    segments = [
        raw if raw in _WILDCARDS else _literal(segment)
        for raw, segment in zip(raw_pattern.split(b"/"), _segments(raw_pattern), strict=True)
    ]
    return b"/".join(segments)


def _literal(segment: bytes) -> bytes:
    return segment.replace(b"*", b"%2A") if segment in _WILDCARDS else segment


def _segments(raw_name: bytes) -> list[bytes]:
    name = _ESCAPE.sub(_unescape, raw_name)
    if len(name) > STREAM_PATH_BYTES_MAX:
        raise InvalidRequest(f"a stream's path must not exceed {STREAM_PATH_BYTES_MAX} bytes")
    try:
        name.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("a stream's path must be UTF-8") from None
    if b"\0" in name:
        raise InvalidRequest("a stream's path must not contain NUL")
    segments = name.split(b"/")
    if any(segment in (b"", b".", b"..") for segment in segments):
        raise InvalidRequest("a stream's path must not have empty, . or .. segments")
    if segments[0] == CONTROL_SEGMENT:
        raise InvalidRequest("stream paths below __ds are reserved")
    return segments


class StreamPaths:
    """Remembers the keys of paths seen, because most requests come again."""

    def __init__(self) -> None:
        self._keys: dict[bytes, bytes] = {}

    def key(self, raw_path: bytes) -> bytes:
        key = self._keys.get(raw_path)
        if key is None:
            key = stream_key(raw_path)
            if len(self._keys) >= CACHE_ENTRIES_MAX:
                self._keys.clear()
            self._keys[raw_path] = key
        return key
