"""Content codings: which one an Accept-Encoding asks for, and how to make it.

gzip is understood by everybody. zstd costs half the time for the same size, and is used where it is
named. Both are made with their quickest settings, and with windows that every decoder has room for
(32 and 512 KiB; browsers allow zstd 8 MiB).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

Encoding = Literal[b"gzip", b"zstd"]

GZIP: Encoding = b"gzip"
ZSTD: Encoding = b"zstd"
_HEADER_BYTES_MAX = 1024  # no honest client names so many codings
_WEIGHT = re.compile(rb"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)
_GZIP_LEVEL = 1
_GZIP_FORM = zlib.MAX_WBITS | 16  # with gzip's header and trailer, not zlib's
_ZSTD_LEVEL = 1  # also what a CompressedOutputStream takes


class Accepted(NamedTuple):
    """The coding a client prefers among ours, and whether it takes an answer without any."""

    encoding: Encoding | None
    takes_identity: bool


@lru_cache(maxsize=256)
def choose_encoding(accept_encoding: bytes) -> Accepted:
    """By weight (RFC 9110, 12.5.3). A client that takes none of ours gets the answer as it is."""
    if len(accept_encoding) > _HEADER_BYTES_MAX:
        return Accepted(None, True)
    weights: dict[bytes, float] = {}
    for element in accept_encoding.lower().split(b","):
        name, *parameters = (part.strip() for part in element.split(b";"))
        weight = _weight(parameters)
        if name and weight is not None:
            weights.setdefault(name.removeprefix(b"x-"), weight)
    others = weights.get(b"*")
    identity = weights.get(b"identity", others)
    gzip = weights.get(GZIP, others or 0.0)
    zstd = weights.get(ZSTD, 0.0)  # only where it is named: `*` is often said without thought
    best, weight = (ZSTD, zstd) if zstd >= gzip else (GZIP, gzip)
    if weight == 0 or (weights.get(b"identity") or 0.0) > weight:
        return Accepted(None, True)
    return Accepted(best, identity != 0)


def _weight(parameters: list[bytes]) -> float | None:
    """1 when nothing is said; None when what is said makes no sense."""
    for parameter in parameters:
        if parameter.startswith(b"q"):
            found = _WEIGHT.fullmatch(parameter)
            return None if found is None else float(found[1])
    return 1.0


def compress(encoding: Encoding, data: bytes) -> bytes:
    """All at once; the quickest way for what is small."""
    if encoding == GZIP:
        return zlib.compress(data, _GZIP_LEVEL, _GZIP_FORM)
    compressed: bytes = pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(data, asbytes=True)
    return compressed


class Compressor(Protocol):
    """One body, piece by piece. Used by one thread at a time."""

    def compress(self, parts: Sequence[bytes | memoryview]) -> bytes:
        """What is ready of it: perhaps nothing yet."""
        ...

    def flush(self) -> bytes:
        """Everything so far can be decoded with this."""
        ...

    def finish(self) -> bytes: ...


def new_compressor(encoding: Encoding) -> Compressor:
    return _Gzip() if encoding == GZIP else _Zstd()


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORM)

    def compress(self, parts: Sequence[bytes | memoryview]) -> bytes:
        return b"".join([self._stream.compress(part) for part in parts])

    def flush(self) -> bytes:
        return self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._stream.flush()


class _Zstd:
    def __init__(self) -> None:
        self._output = _Output()
        self._stream = pa.CompressedOutputStream(self._output, "zstd")

    def compress(self, parts: Sequence[bytes | memoryview]) -> bytes:
        for part in parts:
            self._stream.write(part)
        return self._output.take()

    def flush(self) -> bytes:
        self._stream.flush()
        return self._output.take()

    def finish(self) -> bytes:
        self._stream.close()
        return self._output.take()


class _Output:
    """As much of a file as pyarrow writes to."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
