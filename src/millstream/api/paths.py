"""Which bucket or stream a URL path names, on both surfaces, and what below a stream.

One namespace of buckets and streams. `/v1/stream/{path}` is lenient: the first `/` splits the
bucket from the stream, a name without `/` is in the bucket `_default`. `/{bucket}/{stream}` is
strict. A stream's key is `bucket/stream` with percent escapes resolved, but for `%2F` and `%25`:
an encoded slash stays part of a name. Listings show names in that notation: it is the one in which
no two streams look the same, and in which streams are sorted.

What hangs below a stream is declared (routing.py). On the strict surface it begins at the third
segment, and nothing else can be there. On the lenient one every segment may be part of a name:
what is declared there takes the end of a path. It is compared as it is spelled in the URL, so a
stream that is called so is named with an escape, such as `%5Fschema`, `%70k/x` or `%74ouch/meta`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from millstream.errors import InvalidRequest, RouteNotFound
from millstream.limits import BUCKETED_KEY_BYTES_MAX, STREAM_PATH_BYTES_MAX
from millstream.protocol.patterns import DEFAULT_BUCKET
from millstream.state.system_streams import SYSTEM_KEYS

STREAM_ROOT = b"/v1/stream/"
CONTROL_SEGMENT = b"__ds"  # reserved: the server's own routes, no streams
CONTROL_ROOT = STREAM_ROOT + CONTROL_SEGMENT + b"/"
CACHE_ENTRIES_MAX = 16_384
RESERVED_BUCKETS = frozenset(
    (
        b"health",
        b"healthz",
        b"readyz",
        b"metrics",
        b"console",
        b"__ursula",
        b"__ds",
        b"__millstream",
    )
)
RESERVED_STREAM = b"streams"

# Patterns of the rows in routes.py that a path can turn out to be
V1_STREAM = "/v1/stream/{path}"
BUCKET = "/{bucket}"
LISTING = "/{bucket}/streams"
BUCKETED_STREAM = "/{bucket}/{stream}"
BELOW_STREAM = "{stream}/"  # begins what hangs below a stream, such as {stream}/snapshot/{offset}

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


class Surface(Enum):
    V1 = "/v1/stream/{path}"
    BUCKETED = "/{bucket}/{stream}"


class SubResource(NamedTuple):
    """What hangs below a stream. A `{parameter}` stands for one segment."""

    pattern: str
    surfaces: frozenset[Surface] = frozenset(Surface)

    @property
    def segments(self) -> tuple[bytes, ...]:
        return tuple(self.pattern.removeprefix(BELOW_STREAM).encode().split(b"/"))


class Place(NamedTuple):
    """What a path names: the pattern of its row, and what stands for the pattern's parameters."""

    pattern: str
    key: bytes | None  # of a stream; of a bucket its id and a slash
    arguments: tuple[bytes, ...]


class StreamPaths:
    """Remembers the keys of streams' own paths, because most requests come again."""

    def __init__(self, below: Iterable[SubResource] = ()) -> None:
        self.keys: dict[bytes, bytes] = {}
        # The one that begins first in a path takes it.
        declared = sorted(below, key=lambda each: len(each.segments), reverse=True)
        self.patterns_below = frozenset(each.pattern for each in declared)
        self._below = {
            surface: [
                (each.segments, each.pattern) for each in declared if surface in each.surfaces
            ]
            for surface in Surface
        }
        for segments, _ in self._below[Surface.V1]:
            is_long = len(segments) > 1 and not segments[0].startswith(b"{")
            assert is_long or segments[0].startswith(b"_"), "it would take the names of streams"

    def resolve(self, raw_path: bytes) -> Place:
        """Raises RouteNotFound, and InvalidRequest for what is not well-formed."""
        is_v1 = raw_path.startswith(STREAM_ROOT)
        key = self.keys.get(raw_path)
        if key is not None:
            return Place(V1_STREAM if is_v1 else BUCKETED_STREAM, key, (key,))
        return self._resolve_v1(raw_path) if is_v1 else self._resolve_bucketed(raw_path)

    def _remember(self, raw_path: bytes, key: bytes) -> None:
        if key in SYSTEM_KEYS:
            return  # what is remembered may be appended to without a further look (app.py)
        if len(self.keys) >= CACHE_ENTRIES_MAX:
            self.keys.clear()
        self.keys[raw_path] = key

    def any_key(self, raw_path: bytes) -> bytes:
        """The key of a stream's path on either surface."""
        with suppress(RouteNotFound):
            place = self.resolve(raw_path)
            if place.pattern in (V1_STREAM, BUCKETED_STREAM):
                return place.arguments[0]
        raise InvalidRequest("a stream's path is /v1/stream/{path} or /{bucket}/{stream}")

    def _resolve_v1(self, raw_path: bytes) -> Place:
        segments = raw_path.split(b"/")
        first = STREAM_ROOT.count(b"/") + 1  # what hangs below a stream has a stream above it
        for wanted, pattern in self._below[Surface.V1]:
            arguments = _match(wanted, segments[-len(wanted) :])
            if len(segments) - len(wanted) >= first and arguments is not None:
                key = stream_key(b"/".join(segments[: -len(wanted)]))
                return Place(pattern, key, (key, *arguments))
        key = stream_key(raw_path)
        self._remember(raw_path, key)
        return Place(V1_STREAM, key, (key,))

    def _resolve_bucketed(self, raw_path: bytes) -> Place:
        root, *parts = raw_path.split(b"/")
        below = self._below[Surface.BUCKETED]
        parts_max = 2 + (len(below[0][0]) if below else 0)
        is_place = not root and 1 <= len(parts) <= parts_max and parts[0] not in (b"", b"v1")
        if not is_place or parts[0] in RESERVED_BUCKETS:
            raise RouteNotFound("nothing is here; try /v1/stream/{path} or /{bucket}/{stream}")
        bucket = unescape_all(parts[0])
        if len(parts) == 1:
            return Place(BUCKET, bucket + b"/", (bucket,))
        if parts[1:] == [RESERVED_STREAM]:
            return Place(LISTING, None, (bucket,))  # it shows what the key may read
        if len(parts) == 2:
            key = bucketed_key(bucket, parts[1])
            self._remember(raw_path, key)
            return Place(BUCKETED_STREAM, key, (key,))
        for wanted, pattern in below:
            arguments = _match(wanted, parts[2:])
            if arguments is not None:
                key = bucketed_key(bucket, parts[1])
                return Place(pattern, key, (key, *arguments))
        names = sorted({wanted[0].decode() for wanted, _ in below})
        raise RouteNotFound(f"below a stream there is only: {', '.join(names)}")


def _match(wanted: tuple[bytes, ...], segments: list[bytes]) -> tuple[bytes, ...] | None:
    """What the segments give for the parameters, unescaped; None when they do not fit."""
    if len(wanted) != len(segments):
        return None
    found: list[bytes] = []
    for name, segment in zip(wanted, segments, strict=True):
        if name.startswith(b"{"):
            found.append(segment)
        elif name != segment:
            return None
    return tuple(map(unescape_all, found))
