"""Which stream a URL path names, on both surfaces.

One namespace of buckets and streams. `/v1/stream/{path}` is lenient: the first `/` splits the
bucket from the stream, a name without `/` is in the bucket `_default`. `/{bucket}/{stream}` is
strict. A stream's key is `bucket/stream` with percent escapes resolved, but for `%2F` and `%25`:
an encoded slash stays part of a name. Listings show names in that notation: it is the one in which
no two streams look the same, and in which streams are sorted.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from millstream.errors import InvalidRequest
from millstream.limits import BUCKETED_KEY_BYTES_MAX, STREAM_PATH_BYTES_MAX
from millstream.protocol.patterns import DEFAULT_BUCKET

STREAM_ROOT = b"/v1/stream/"
CONTROL_SEGMENT = b"__ds"  # reserved: the server's own routes, no streams
CONTROL_ROOT = STREAM_ROOT + CONTROL_SEGMENT + b"/"
CACHE_ENTRIES_MAX = 16_384
RESERVED_BUCKETS = frozenset(
    (b"healthz", b"readyz", b"metrics", b"console", b"__ursula", b"__ds", b"__millstream")
)
RESERVED_STREAM = b"streams"

_BUCKET_ID = re.compile(rb"[a-z0-9_-]{4,64}")
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
    # An encoded slash splits no name, but others may decode it before they look at a path.
    decoded = name.replace(b"%2F", b"/").split(b"/")
    if any(segment in (b"", b".", b"..") for segment in decoded):
        raise InvalidRequest("a stream's path must not have empty, . or .. segments")
    if decoded[0] == CONTROL_SEGMENT:
        raise InvalidRequest("stream paths below __ds are reserved")
    return name.split(b"/")


def check_bucket_id(bucket: bytes, *, new: bool = False) -> None:
    """Raises InvalidRequest for what is no bucket's name, or none that `new` ones may have."""
    if not _BUCKET_ID.fullmatch(bucket):
        raise InvalidRequest("a bucket's id is 4 to 64 of a-z, 0-9, _ and -")
    if new and bucket in RESERVED_BUCKETS:
        raise InvalidRequest(f"the bucket id {bucket.decode()} is reserved")


def bucketed_key(bucket: bytes, raw_stream: bytes) -> bytes:
    """The key of `/{bucket}/{stream}`, by the strict rules of that surface."""
    check_bucket_id(bucket)
    stream = unescape_all(raw_stream)
    if not stream or b"/" in stream or b"\0" in stream or b".." in stream:
        raise InvalidRequest("a stream's id must not be empty nor contain /, NUL or ..")
    try:
        stream.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("a stream's id must be UTF-8") from None
    if stream == RESERVED_STREAM:
        raise InvalidRequest("the stream id streams is reserved for the bucket's listing")
    if len(bucket) + 1 + len(stream) > BUCKETED_KEY_BYTES_MAX:
        raise InvalidRequest(
            f"bucket and stream id together must not exceed {BUCKETED_KEY_BYTES_MAX - 1} bytes"
        )
    return bucket + b"/" + stream.replace(b"%", b"%25")


def unescape_all(raw: bytes) -> bytes:
    return unquote_to_bytes(_ESCAPE.sub(_check_escape, raw))


def _check_escape(match: re.Match[bytes]) -> bytes:
    if match[1] is None:
        raise InvalidRequest("the URL has a % that is not followed by two hexadecimal digits")
    return match[0]


class StreamPaths:
    """Remembers the keys of paths seen, because most requests come again."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}

    def any_key(self, raw_path: bytes) -> bytes:
        """The key of a stream's path on either surface."""
        if raw_path.startswith(STREAM_ROOT):
            return self.key(raw_path)
        parts = raw_path.split(b"/")
        if len(parts) != 3 or parts[0]:
            raise InvalidRequest("a stream's path is /v1/stream/{path} or /{bucket}/{stream}")
        return bucketed_key(parts[1], parts[2])

    def key(self, raw_path: bytes) -> bytes:
        key = self.keys.get(raw_path)
        if key is None:
            key = stream_key(raw_path)
            if len(self.keys) >= CACHE_ENTRIES_MAX:
                self.keys.clear()
            self.keys[raw_path] = key
        return key
