"""Offset tokens: how a position in a stream is spelled.

A position has two units, counted from the stream's start: messages (ordinal) and bytes. The token
spells both, `{ordinal:016d}_{byte:016d}`, so that it sorts as a string and can be checked against
the stream. Older spellings of other servers are understood on input only.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from millstream.errors import InvalidOffset


class Position(NamedTuple):
    """A boundary that a stream has: so many messages lie before it, and so many bytes."""

    ordinal: int
    byte: int

    @property
    def token(self) -> str:
        return encode_offset(self.ordinal, self.byte)


class Offset(NamedTuple):
    """What a client asks for. Whether it is a boundary, the stream has to say, and what the other
    unit is where one is None: `Stream.resolve` makes a Position of it."""

    ordinal: int | None
    byte: int | None


AnyOffset: TypeAlias = Offset | Position  # a position can be asked for as well

START = Position(0, 0)
BEGINNING_TOKEN = b"-1"
NOW_TOKEN = b"now"

_TOKEN = re.compile(rb"([0-9]{16})_([0-9]{16})")
_BYTE_FORM = re.compile(rb"[0-9]{20}")
_CROCKFORD = {c: i for i, c in enumerate(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_CROCKFORD |= {ord("O"): 0, ord("I"): 1, ord("L"): 1}
_BASE32_CHARACTERS = 26


def encode_offset(ordinal: int, byte: int) -> str:
    return f"{ordinal:016d}_{byte:016d}"


def decode_offset(token: bytes) -> Offset:
    """The position a token names; the sentinels `-1` and `now` are the caller's to handle first."""
    match = _TOKEN.fullmatch(token)
    if match is not None:
        return Offset(int(match[1]), int(match[2]))
    if _BYTE_FORM.fullmatch(token) is not None:
        return Offset(None, int(token))
    if len(token) == _BASE32_CHARACTERS:
        return Offset(_decode_base32_ordinal(token), None)
    raise InvalidOffset(
        "offset must be -1, now, or a value this server returned in Stream-Next-Offset"
    )


def _decode_base32_ordinal(token: bytes) -> int:
    """The 128-bit tuple epoch(32) ordinal(64) in_block(32), left-padded to 26 characters."""
    value = 0
    for character in token.upper():
        digit = _CROCKFORD.get(character)
        if digit is None:
            raise InvalidOffset("offset has a character that is not Crockford base32")
        value = value << 5 | digit
    epoch, ordinal, in_block = value >> 96, value >> 32 & (2**64 - 1), value & (2**32 - 1)
    if epoch or in_block:
        raise InvalidOffset("offset names a position this server never hands out")
    return ordinal
