"""CRC32C of bytes that lie in pieces, from the CRC32C of each piece.

Bytes behind a piece multiply its CRC by a power of x. The powers are kept as tables, one for each
hexadecimal digit of a length and the value it can have.
"""

from __future__ import annotations

from array import array
from functools import cache

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected: bit 31 is the coefficient of x^0
_ONE = 1 << 31


def crc32c_combine(crc_a: int, crc_b: int, len_b: int) -> int:
    """The CRC32C of A followed by B, where B is `len_b` bytes long."""
    digit = 0
    while len_b:
        if len_b & 15:
            first, second, third, fourth = _shift_tables(digit, len_b & 15)
            crc_a = (
                first[crc_a & 0xFF]
                ^ second[crc_a >> 8 & 0xFF]
                ^ third[crc_a >> 16 & 0xFF]
                ^ fourth[crc_a >> 24]
            )
        len_b >>= 4
        digit += 1
    return crc_a ^ crc_b


@cache
def _shift_tables(digit: int, value: int) -> tuple[array[int], ...]:
    """For each byte of a CRC its product with what `value * 16**digit` bytes multiply by."""
    product = _shift(digit, value)
    columns = [0] * 32
    for bit in range(31, -1, -1):
        columns[bit] = product
        product = _times_x(product)
    return tuple(_table(columns[low : low + 8]) for low in (0, 8, 16, 24))


def _shift(digit: int, value: int) -> int:
    power = _ONE >> 8  # x^8: one byte
    for _ in range(4 * digit):
        power = _multiply(power, power)
    shift = _ONE
    for _ in range(value):
        shift = _multiply(shift, power)
    return shift


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo Castagnoli's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = _times_x(b)
    return product


def _times_x(polynomial: int) -> int:
    return polynomial >> 1 ^ _POLYNOMIAL if polynomial & 1 else polynomial >> 1


def _table(columns: list[int]) -> array[int]:
    table = [0]
    for column in columns:
        table += [value ^ column for value in table]
    return array("I", table)
