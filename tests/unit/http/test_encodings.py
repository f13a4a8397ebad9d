from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.http.encodings import (
    GZIP,
    ZSTD,
    Accepted,
    Encoding,
    choose_encoding,
    compress,
    new_compressor,
)
from tests.unit.effort import brief

ENCODINGS: list[Encoding] = [GZIP, ZSTD]


def decoded(encoding: Encoding, data: bytes) -> bytes:
    if encoding == GZIP:
        return zlib.decompress(data, zlib.MAX_WBITS | 16)
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        content: bytes = stream.read()
        return content


@pytest.mark.parametrize(
    ("accept", "encoding", "takes_identity"),
    [
        (b"gzip", GZIP, True),
        (b"GZip", GZIP, True),
        (b"x-gzip", GZIP, True),
        (b"zstd", ZSTD, True),
        (b"gzip, deflate, br, zstd", ZSTD, True),  # Chrome
        (b"gzip, deflate", GZIP, True),  # Node
        (b"gzip;q=1.0, zstd;q=0.5", GZIP, True),
        (b"gzip;q=0.5, zstd;q=0.5", ZSTD, True),
        (b"gzip ; q=0.001", GZIP, True),
        (b"gzip;q=0, zstd;q=0", None, True),
        (b"gzip;q=0", None, True),
        (b"br", None, True),
        (b"", None, True),
        (b",,;q=1,", None, True),
        (b"identity", None, True),
        (b"identity;q=1, gzip;q=0.9", None, True),
        (b"identity;q=0.5, gzip;q=0.9", GZIP, True),
        (b"identity;q=0, gzip", GZIP, False),
        (b"identity;q=0", None, True),
        (b"*", GZIP, True),
        (b"*;q=0", None, True),
        (b"gzip, *;q=0", GZIP, False),
        (b"gzip;q=0, *", None, True),
        (b"zstd, *;q=0.1", ZSTD, True),
        (b"identity;q=0, *", GZIP, False),
        (b"gzip;q=2", None, True),
        (b"gzip;q=much", None, True),
        (b"gzip;q=0.1234", None, True),
        (b"gzip;level=9", GZIP, True),
        (b"gzip" + b"," * 5000, None, True),
    ],
)
def test_the_coding_that_a_client_asks_for(
    accept: bytes, encoding: Encoding | None, takes_identity: bool
) -> None:
    assert choose_encoding(accept) == Accepted(encoding, takes_identity)


@brief
@given(st.binary(max_size=200))
def test_no_header_is_too_strange(accept: bytes) -> None:
    assert choose_encoding(accept).encoding in (None, GZIP, ZSTD)


@brief
@given(st.sampled_from(ENCODINGS), st.binary(max_size=5000))
def test_what_is_compressed_at_once_comes_back(encoding: Encoding, data: bytes) -> None:
    assert decoded(encoding, compress(encoding, data)) == data


@brief
@given(
    st.sampled_from(ENCODINGS),
    st.lists(st.lists(st.binary(max_size=2000), max_size=3), max_size=5),
    st.booleans(),
)
def test_what_is_compressed_in_pieces_comes_back(
    encoding: Encoding, pieces: list[list[bytes]], flushes: bool
) -> None:
    compressor = new_compressor(encoding)
    written = b""
    for parts in pieces:
        written += compressor.compress([memoryview(part) for part in parts])
        if flushes:
            written += compressor.flush()
    written += compressor.finish()
    assert decoded(encoding, written) == b"".join(b"".join(parts) for parts in pieces)


def test_a_flush_brings_all_so_far_to_the_client() -> None:
    compressor, reader = new_compressor(GZIP), zlib.decompressobj(zlib.MAX_WBITS | 16)
    for word in (b"one", b"two"):
        assert reader.decompress(compressor.compress([word]) + compressor.flush()) == word


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_zstd_frame_asks_for_a_window_that_browsers_have(is_streamed: bool) -> None:
    data = b"".join(b"%d " % number for number in range(1_000_000))
    if is_streamed:
        compressor = new_compressor(ZSTD)
        frame = compressor.compress([data]) + compressor.finish()
    else:
        frame = compress(ZSTD, data)
    assert frame[:4] == b"\x28\xb5\x2f\xfd"
    assert not frame[4] & 0x20, "a single segment is as large as its content"
    exponent, mantissa = frame[5] >> 3, frame[5] & 7
    assert (1 << 10 + exponent) * (1 + mantissa / 8) <= 8 * 2**20
