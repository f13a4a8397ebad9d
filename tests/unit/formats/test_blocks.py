"""Blocks against plain lists of messages, each with its time and its key."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.blocks import Block, bounded_blocks, decode_ends, join, normal_keys, shifted
from millstream.limits import BLOCK_BYTES
from tests.support.blocks import Message, messages_of
from tests.unit.effort import brief, briefer

# Few different times and keys, so that "all the same" is as frequent as "one each".
message = st.builds(
    Message,
    st.binary(min_size=1, max_size=40),
    st.sampled_from([0, 7, 2**63]),
    st.sampled_from([None, None, b"", b"k"]),
)
few = st.lists(message, min_size=1, max_size=6)
many = st.lists(message, min_size=60, max_size=70)  # their ends are moved all at once
message_lists = st.one_of(few, few, many)


def block_of(messages: list[Message]) -> Block:
    """Written down in the shortest form, as everything that makes blocks does."""
    ends = array("I", accumulate(len(each.data) for each in messages))
    times, keys = [each.time for each in messages], tuple(each.key for each in messages)
    return Block(
        b"".join(each.data for each in messages),
        None if len(messages) == 1 else ends,
        times[0] if len(set(times)) == 1 else array("Q", times),
        keys[0] if len(set(keys)) == 1 else keys,
    )


def cut_list(messages: list[Message], size: int) -> list[Message]:
    kept = []
    for each in messages:
        if size > 0:
            kept.append(each._replace(data=each.data[:size]))
            size -= len(each.data)
    return kept


@given(st.lists(message_lists, min_size=1, max_size=6))
@brief
def test_joined_blocks_hold_all_messages_in_order(lists: list[list[Message]]) -> None:
    joined = join([block_of(messages) for messages in lists])
    assert messages_of(joined) == [each for messages in lists for each in messages]


@given(message_lists, st.data())
@brief
def test_a_block_is_split_behind_any_message_and_joins_again(
    messages: list[Message], data: st.DataObject
) -> None:
    if len(messages) == 1:
        return
    count = data.draw(st.integers(1, len(messages) - 1))
    block = block_of(messages)
    first, rest = block.split(count)
    assert (first, rest) == (block_of(messages[:count]), block_of(messages[count:]))
    assert messages_of(join([first, rest])) == messages
    assert messages_of(block) == messages, "a block never changes"


@given(message_lists, st.data())
@brief
def test_the_first_messages_and_those_after_them_are_all(
    messages: list[Message], data: st.DataObject
) -> None:
    block = block_of(messages)
    count = data.draw(st.integers(1, len(messages)))
    assert block.first(count) == block_of(messages[:count])
    assert block.first(len(messages)) is block.after(0) is block
    skipped = data.draw(st.integers(0, len(messages) - 1))
    assert block.after(skipped) == block_of(messages[skipped:])


@given(message_lists, st.data())
@brief
def test_a_message_that_a_cut_goes_through_ends_there(
    messages: list[Message], data: st.DataObject
) -> None:
    block = block_of(messages)
    size = data.draw(st.integers(1, len(block.data)))
    assert block.cut(size) == block_of(cut_list(messages, size))
    assert block.cut(len(block.data)) is block


@given(message_lists, st.data())
@brief
def test_places_inside_of_a_block_are_where_the_list_has_them(
    messages: list[Message], data: st.DataObject
) -> None:
    block, bounds = block_of(messages), [0, *accumulate(len(each.data) for each in messages)]
    assert [block.end_of(count) for count in range(len(bounds))] == bounds
    assert list(block.message_ends) == bounds[1:]
    size = data.draw(st.integers(0, bounds[-1] + 3))
    assert block.count_within(size) == sum(bound <= size for bound in bounds[1:])


@given(st.lists(st.integers(100, 2**31), max_size=130), st.integers(-100, 2**31 - 1))
@brief
def test_ends_are_moved_by_the_same_number_each(numbers: list[int], by: int) -> None:
    ends = array("I", numbers)
    assert list(shifted(ends, by)) == [end + by for end in numbers]
    assert list(ends) == numbers


@given(st.lists(st.sampled_from([1, 50, 70_000, BLOCK_BYTES, 3 << 20]), min_size=2, max_size=8))
@briefer
def test_content_in_one_long_piece_becomes_blocks_of_whole_messages(sizes: list[int]) -> None:
    data = b"".join(bytes([65 + index]) * size for index, size in enumerate(sizes))
    blocks = list(bounded_blocks((data,), array("I", accumulate(sizes)), 7))
    found = [each for block in blocks for each in messages_of(block)]
    expected = [Message(bytes([65 + index]) * size, 7) for index, size in enumerate(sizes)]
    assert found == expected
    assert all(block.count == 1 or len(block.data) <= 2 * BLOCK_BYTES + 1 for block in blocks)


@pytest.mark.parametrize(
    ("size", "ends", "times"),
    [(2, None, 7), (3, None, 7), (4, [3, 4], [7, 8]), (8, [3, 8], [7, 8])],
)
def test_a_cut_block_ends_its_last_message_at_the_cut(
    size: int, ends: list[int] | None, times: int | list[int]
) -> None:
    block = Block(b"onethreefour", array("I", [3, 8, 12]), array("Q", [7, 8, 9]))
    cut = block.cut(size)
    assert cut.data == b"onethreefour"[:size]
    assert (None if cut.ends is None else list(cut.ends)) == ends
    assert (cut.times if isinstance(cut.times, int) else list(cut.times)) == times
    assert block.cut(12) is block
    assert Block(b"one", None, 7).cut(2) == Block(b"on", None, 7)


def test_ends_decode_from_the_form_in_which_commands_carry_them() -> None:
    assert decode_ends(b"") is None
    assert decode_ends(array("I", [3, 9]).tobytes()) == array("I", [3, 9])


@brief
@given(message_lists)
def test_messages_of_a_key_and_their_times_are_found(messages: list[Message]) -> None:
    block = block_of(messages)
    assert [block.time_of(index) for index in range(block.count)] == [m.time for m in messages]
    assert (block.first_ms, block.last_ms) == (messages[0].time, messages[-1].time)
    for key in (b"", b"k", b"another"):
        indexes = [index for index, each in enumerate(messages) if each.key == key]
        assert list(block.indexes_of(key)) == indexes


@brief
@given(message_lists, st.sampled_from([0, 1, 7, 8, 2**63, 2**63 + 1]))
def test_messages_before_a_time_are_counted(messages: list[Message], time_ms: int) -> None:
    """Append times never go back."""
    block = block_of(sorted(messages, key=lambda each: each.time))
    assert block.count_before(time_ms) == sum(each.time < time_ms for each in messages)


def test_the_same_keys_have_one_form() -> None:
    assert normal_keys((b"a",)) == normal_keys((b"a", b"a")) == normal_keys(b"a") == b"a"
    assert normal_keys((None, None)) is None
    assert normal_keys(()) is None
    assert normal_keys((b"a", None)) == (b"a", None)
