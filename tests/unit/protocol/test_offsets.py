from __future__ import annotations

import pytest

from millstream.errors import InvalidOffset
from millstream.protocol.offsets import (
    BEGINNING_TOKEN,
    NOW_TOKEN,
    Offset,
    decode_offset,
    encode_offset,
)

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def base32_token(epoch: int, ordinal: int, in_block: int) -> bytes:
    """The 26 characters of Prisma Streams: epoch(32) ordinal(64) in_block(32), zero-padded."""
    value = epoch << 96 | ordinal << 32 | in_block
    return "".join(CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5)).encode()


def test_a_token_spells_both_units_in_sixteen_digits_each() -> None:
    assert encode_offset(7, 1234) == "0000000000000007_0000000000001234"


@pytest.mark.parametrize(("ordinal", "byte"), [(0, 0), (1, 2), (10**16 - 1, 10**16 - 1)])
def test_a_token_decodes_to_what_was_encoded(ordinal: int, byte: int) -> None:
    assert decode_offset(encode_offset(ordinal, byte).encode()) == Offset(ordinal, byte)


def test_tokens_sort_like_their_positions() -> None:
    positions = [(0, 0), (1, 9), (2, 10), (9, 99), (10, 100), (10**9, 10**12)]
    tokens = [encode_offset(*position) for position in positions]
    assert sorted(tokens) == tokens


def test_twenty_digits_are_a_byte_position_of_unknown_ordinal() -> None:
    assert decode_offset(b"00000000000000000042") == Offset(None, 42)


def test_base32_is_an_ordinal_of_unknown_byte() -> None:
    assert decode_offset(base32_token(0, 42, 0)) == Offset(42, None)


@pytest.mark.parametrize("ordinal", [0, 1, 31, 32, 2**32, 2**64 - 1])
def test_base32_keeps_every_bit_of_the_ordinal(ordinal: int) -> None:
    assert decode_offset(base32_token(0, ordinal, 0)) == Offset(ordinal, None)


def test_base32_may_be_written_in_lower_case() -> None:
    token = base32_token(0, 0xDEADBEEF, 0)
    assert token != token.lower()
    assert decode_offset(token.lower()) == Offset(0xDEADBEEF, None)


def test_base32_reads_o_as_zero_and_i_and_l_as_one() -> None:
    aliases, plain = b"O0o0000000000IiLl100000000", b"00000000000001111100000000"
    assert len(aliases) == len(plain) == 26
    assert decode_offset(aliases) == decode_offset(plain) != Offset(0, None)


@pytest.mark.parametrize("epoch", [1, 2**32 - 1, 2**33])
def test_base32_with_an_epoch_is_refused(epoch: int) -> None:
    with pytest.raises(InvalidOffset):
        decode_offset(base32_token(epoch, 5, 0))


@pytest.mark.parametrize("in_block", [1, 2**31, 2**32 - 1])
def test_base32_with_a_place_inside_a_block_is_refused(in_block: int) -> None:
    with pytest.raises(InvalidOffset):
        decode_offset(base32_token(0, 5, in_block))


@pytest.mark.parametrize("character", list("Uu-_*=$ ~\n"))
def test_base32_with_a_character_outside_its_alphabet_is_refused(character: str) -> None:
    token = base32_token(0, 5, 0)[:-8] + character.encode() + b"0000000"
    assert len(token) == 26
    with pytest.raises(InvalidOffset):
        decode_offset(token)


GOOD = b"0000000000000001_0000000000000002"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"0", id="bare zero"),
        pytest.param(b"42", id="bare number"),
        pytest.param(b"-2", id="another negative number"),
        pytest.param(b" -1", id="space before a sentinel"),
        pytest.param(b"NOW", id="sentinel in upper case"),
        pytest.param(GOOD + b"\n", id="trailing newline"),
        pytest.param(GOOD + b"\0", id="trailing NUL"),
        pytest.param(b" " + GOOD, id="leading space"),
        pytest.param(GOOD + b" ", id="trailing space"),
        pytest.param(GOOD[:-1], id="a digit short"),
        pytest.param(GOOD + b"0", id="a digit long"),
        pytest.param(b"0" + GOOD, id="a digit long in front"),
        pytest.param(GOOD.replace(b"_", b"-"), id="another separator"),
        pytest.param(GOOD.replace(b"_", b"__"), id="two separators"),
        pytest.param(b"-" + GOOD[1:], id="negative ordinal"),
        pytest.param(b"+" + GOOD[1:], id="signed ordinal"),
        pytest.param(b"000000000000000a_0000000000000002", id="hexadecimal ordinal"),
        pytest.param(b"0000_0000000001__0000000000000002", id="grouped digits"),
        pytest.param("٠".encode() * 8 + b"_" + "٠".encode() * 8, id="Arabic digits, 16 bytes each"),
        pytest.param(("٠" * 16 + "_" + "٠" * 16).encode(), id="Arabic digits, 16 characters each"),
        pytest.param("０".encode() * 20, id="full-width digits"),
        pytest.param("²".encode() * 10, id="superscripts, 20 bytes"),
        pytest.param(b"0000000000000000004", id="19 digits"),
        pytest.param(b"000000000000000000042", id="21 digits"),
        pytest.param(b"00000000000000000042\n", id="20 digits and a newline"),
        pytest.param(b"0000000000000000004\n", id="19 digits and a newline"),
        pytest.param(base32_token(0, 5, 0) + b"\n", id="base32 and a newline"),
        pytest.param(base32_token(0, 5, 0)[:-1], id="25 characters of base32"),
        pytest.param("é".encode() * 13, id="26 bytes that are not ASCII"),
        pytest.param(b"\xff" * 26, id="26 bytes that are not UTF-8"),
        pytest.param(b"../../../etc/passwd", id="a path"),
    ],
)
def test_a_malformed_token_is_refused(token: bytes) -> None:
    with pytest.raises(InvalidOffset):
        decode_offset(token)


def test_the_sentinels_are_the_callers_and_not_positions() -> None:
    assert (BEGINNING_TOKEN, NOW_TOKEN) == (b"-1", b"now")
    for sentinel in (BEGINNING_TOKEN, NOW_TOKEN):
        with pytest.raises(InvalidOffset):
            decode_offset(sentinel)
