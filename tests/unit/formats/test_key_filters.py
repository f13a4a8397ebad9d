from __future__ import annotations

import random
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats import key_filters
from millstream.formats.blocks import Block
from millstream.formats.key_filters import (
    NO_KEYS,
    UNKNOWN_KEYS,
    hash_key,
    is_filter_sound,
    make_filter,
    may_hold,
)
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, index_problem
from millstream.limits import KEY_FILTER_BYTES_MAX
from tests.unit.effort import brief

keys = st.lists(st.binary(max_size=12), max_size=120)


def filter_of(keys: list[bytes]) -> bytes:
    return make_filter(np.array([hash_key(key) for key in keys], np.uint64))


@brief
@given(keys)
def test_a_filter_knows_every_key_it_was_made_of(keys: list[bytes]) -> None:
    found = filter_of(keys)
    assert is_filter_sound(found)
    assert all(may_hold(found, hash_key(key)) for key in keys)
    assert (found == NO_KEYS) == (not keys)


@brief
@given(keys, st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(keys: list[bytes], numbers: random.Random) -> None:
    shuffled = keys + keys[: len(keys) // 2]
    numbers.shuffle(shuffled)
    assert filter_of(shuffled) == filter_of(keys)


@brief
@given(keys.filter(bool))
def test_few_keys_and_many_make_the_same_bits(keys: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_filters, "_FEW", 0)
        by_arrays = filter_of(keys)
    assert by_arrays == filter_of(keys)


@pytest.mark.parametrize("count", [1, 10, 100, 1000, 10_000])
def test_other_keys_are_hardly_ever_found(count: int) -> None:
    found = filter_of([b"key %d" % number for number in range(count)])
    assert len(found) <= count * 1.5 + 9
    others = sum(may_hold(found, hash_key(b"other %d" % number)) for number in range(20_000))
    assert others < 120


def test_a_filter_has_a_bound_and_still_rules_out_some() -> None:
    found = filter_of([b"%d" % number for number in range(65_536)])
    assert len(found) == KEY_FILTER_BYTES_MAX
    others = sum(may_hold(found, hash_key(b"other %d" % number)) for number in range(10_000))
    assert others < 5000


@pytest.mark.parametrize("key", [b"", b"a", b"b"])
def test_what_is_unknown_may_hold_any_key_and_what_is_empty_none(key: bytes) -> None:
    assert may_hold(UNKNOWN_KEYS, hash_key(key))
    assert not may_hold(NO_KEYS, hash_key(key))


def test_a_damaged_filter_rules_nothing_out() -> None:
    sound = filter_of([b"a", b"b", b"c"])
    for position in range(len(sound)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << bit
            assert not is_filter_sound(bytes(damaged))
            assert may_hold(bytes(damaged), hash_key(b"a"))
            assert may_hold(bytes(damaged), hash_key(b"another"))


@pytest.mark.parametrize("value", [None, 7, 1.5, "", "text"])
def test_a_value_that_is_no_filter_rules_nothing_out(value: Any) -> None:
    assert not is_filter_sound(value)
    assert may_hold(value, hash_key(b"a"))


def test_a_run_of_an_older_store_may_hold_any_key_at_any_time() -> None:
    old = msgspec.msgpack.encode([7, 0, 0, 2, 10, 0, 0, 99])
    run = msgspec.msgpack.decode(old, type=Run)
    assert (run.first_ms, run.last_ms, run.keys) == (0, 0, UNKNOWN_KEYS)
    assert index_problem(run, Block(b"0123456789", None, 5, b"key")) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"first_ms": 4}, "the append times should be from 4 to 6, found 5 to 6"),
        ({"last_ms": 7}, "the append times should be from 5 to 7, found 5 to 6"),
        ({"keys": NO_KEYS}, "does not know all of them"),
        ({"keys": filter_of([b"other"])}, "does not know all of them"),
        ({"keys": b"\x08abc"}, "is damaged"),
        ({"keys": UNKNOWN_KEYS}, None),
        ({"first_ms": 0, "last_ms": 0}, None),
        ({}, None),
    ],
)
def test_what_a_run_is_found_by_can_be_checked(
    fields: dict[str, object], problem: str | None
) -> None:
    known = (5, 6, filter_of([b"a", b"b"]))
    run = msgspec.structs.replace(Run(StreamId(1), 0, 0, 2, 2, 0, 0, 0, *known), **fields)
    block = Block(b"xy", array("I", [1, 2]), array("Q", [5, 6]), (b"a", b"b"))
    found = index_problem(run, block)
    assert (found is None) if problem is None else (problem in (found or ""))
