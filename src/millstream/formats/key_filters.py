"""Key filters: which routing keys a run may hold, in a dozen bits for each.

probes u8 | bits … | CRC32C of both, little-endian

A Bloom filter: a key that is in the run is always found in its filter, another one in three of a
thousand cases. Without a single byte it holds no key. With 0 probes nothing is known, and any key
may be there: runs of older stores have that, and what is damaged is read as that. The same keys
make the same filter, whatever their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from millstream.formats.wal import crc32c
from millstream.limits import KEY_FILTER_BYTES_MAX

Hashes = npt.NDArray[np.uint64]

NO_KEYS = b""
UNKNOWN_KEYS = b"\x00"

_BITS_PER_KEY = 12
_PROBES_MAX = 8  # the best number for 12 bits
_TABLE_BYTES_MIN = 4  # in fewer, the places of different keys are too often the same
_CRC_BYTES = 4
_FRAME_BYTES = 1 + _CRC_BYTES
_FEW = 32  # keys that Python's own numbers take sooner than an array does
_LOW = 0xFFFF_FFFF

hash_key = xxh3_64_intdigest


def make_filter(hashes: Hashes) -> bytes:
    """Of keys with these hashes, however often each comes."""
    if not len(hashes):
        return NO_KEYS
    distinct = sorted(set(hashes.tolist())) if len(hashes) <= _FEW else np.unique(hashes).tolist()
    size = max(_TABLE_BYTES_MIN, -(-len(distinct) * _BITS_PER_KEY // 8))
    size = min(size, KEY_FILTER_BYTES_MAX - _FRAME_BYTES)
    probes = min(max(1, round(8 * size / len(distinct) * log(2))), _PROBES_MAX)
    bits_of = _few_bits if len(distinct) <= _FEW else _many_bits
    framed = bytes([probes]) + bits_of(distinct, probes, size)
    return framed + _crc_of(framed)


def _few_bits(hashes: Sequence[int], probes: int, size: int) -> bytes:
    """Each hash gives as many places as are needed: one half of it, then the other added each
    time, and a little more each time: else small tables would see the same places too often."""
    bits = 0
    for each in hashes:
        place, step = each & _LOW, each >> 32
        for probe in range(probes):
            bits |= 1 << place % (8 * size)
            place += step
            step += probe
    return bits.to_bytes(size, "little")


def _many_bits(hashes: Sequence[int], probes: int, size: int) -> bytes:
    table = np.zeros(8 * size, np.bool_)
    each, probe = np.array(hashes, np.uint64)[:, None], np.arange(probes)
    more = (probe * (probe - 1) * (probe - 2) // 6).astype(np.uint64)  # what `step` has grown by
    places = (each & np.uint64(_LOW)) + (each >> np.uint64(32)) * probe.astype(np.uint64) + more
    table[places % np.uint64(8 * size)] = True
    return np.packbits(table, bitorder="little").tobytes()


def _crc_of(framed: bytes) -> bytes:
    return crc32c(framed).to_bytes(_CRC_BYTES, "little")


def is_filter_sound(key_filter: bytes) -> bool:
    """Whether it is as it was made, by this version or another.

    From a damaged catalog it may come as a value of another type.
    """
    if not isinstance(key_filter, bytes) or len(key_filter) > KEY_FILTER_BYTES_MAX:
        return False
    if key_filter in (NO_KEYS, UNKNOWN_KEYS):
        return True
    framed, crc = key_filter[:-_CRC_BYTES], key_filter[-_CRC_BYTES:]
    return len(framed) > 1 and _crc_of(framed) == crc


def may_hold(key_filter: bytes, hashed: int) -> bool:
    """False: no message of the run has the key with this hash."""
    if key_filter == NO_KEYS:
        return False
    if not is_filter_sound(key_filter) or key_filter == UNKNOWN_KEYS:
        return True
    probes = key_filter[0]
    place, step = hashed & _LOW, hashed >> 32
    bits = 8 * (len(key_filter) - _FRAME_BYTES)
    for probe in range(probes):
        index = place % bits
        if not key_filter[1 + (index >> 3)] >> (index & 7) & 1:
            return False
        place += step
        step += probe
    return True
