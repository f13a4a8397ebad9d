from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.crc32c import crc32c_combine
from millstream.formats.wal import crc32c
from tests.unit.effort import brief


@given(st.binary(), st.binary(), st.sampled_from([1, 7, 4096]))
@brief
def test_the_crc_of_joined_pieces_is_that_of_all_their_bytes(a: bytes, b: bytes, n: int) -> None:
    assert crc32c_combine(crc32c(a), crc32c(b * n), len(b * n)) == crc32c(a + b * n)


def test_pieces_join_in_any_grouping() -> None:
    a, b, c = b"first", b"second" * 1000, b"third" * 30
    ab = crc32c_combine(crc32c(a), crc32c(b), len(b))
    bc = crc32c_combine(crc32c(b), crc32c(c), len(c))
    whole = crc32c(a + b + c)
    assert crc32c_combine(ab, crc32c(c), len(c)) == whole
    assert crc32c_combine(crc32c(a), bc, len(b + c)) == whole


def test_a_piece_of_64_mebibytes_is_joined() -> None:
    large = bytes(range(256)) * (256 * 1024)
    assert crc32c_combine(crc32c(b"a"), crc32c(large), len(large)) == crc32c(b"a" + large)
