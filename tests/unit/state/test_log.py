"""The log against a plain list of messages, whatever way the messages came in."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.limits import SMALL_BLOCK_BYTES, SMALL_BLOCK_OVERHEAD
from millstream.protocol.offsets import START, Position
from millstream.state.log import Log
from tests.support.blocks import datas_of, messages_of
from tests.unit.effort import brief, briefer

MANY = 600  # tiny appends; enough to be merged at least once
POOL = random.Random(7).randbytes(1 << 20)  # content that is nowhere like itself

small_sizes = st.integers(1, 40)
sizes = st.one_of(
    small_sizes,
    small_sizes,
    st.integers(1000, 30_000),
    st.sampled_from([SMALL_BLOCK_BYTES - 1, SMALL_BLOCK_BYTES, SMALL_BLOCK_BYTES + 1, 200_000]),
)
# One append each: the sizes of its messages. A long run of small ones is what gets merged by count.
appends = st.one_of(
    st.lists(sizes, min_size=1, max_size=1).map(lambda one: [one]),
    st.lists(sizes, min_size=2, max_size=5).map(lambda batch: [batch]),
    st.tuples(small_sizes, st.sampled_from([3, 100, 505, 512, MANY])).map(
        lambda run: [[run[0]]] * run[1]
    ),
)


class Model:
    """A log and the list it has to agree with; a fork's begins with what it inherited."""

    def __init__(self) -> None:
        self.log = Log()
        self.messages: list[bytes] = []
        self.inherited = 0  # messages, the last one perhaps cut

    def append(self, message_sizes: list[int], twist: int = 0) -> None:
        messages: list[bytes] = []
        for size in message_sizes:
            begin = (len(self.messages) * 131 + len(messages) * 17 + twist) % (len(POOL) - size)
            messages.append(POOL[begin : begin + size])
        ends = array("I", accumulate(map(len, messages))) if len(messages) > 1 else None
        self.log.append(b"".join(messages), ends, 0)
        self.messages += messages

    @property
    def bounds(self) -> list[int]:
        """Where each message begins, and the tail."""
        return [0, *accumulate(map(len, self.messages))]

    def check(self) -> None:
        log, bounds, own = self.log, self.bounds, self.inherited
        assert (log.tail_ordinal, log.tail_byte) == (len(self.messages), bounds[-1])
        assert (log.own_ordinal, log.own_byte) == (own, bounds[own])
        held = range(own, len(bounds))
        assert [log.byte_at(ordinal) for ordinal in held] == bounds[own:]
        assert [log.ordinal_at(byte) for byte in bounds[own:]] == list(held)
        assert b"".join(log.slices(bounds[own], bounds[-1])) == b"".join(self.messages[own:])


def build(groups: list[list[list[int]]]) -> Model:
    model = Model()
    for group in groups:
        for message_sizes in group:
            model.append(message_sizes)
    return model


logs = st.lists(appends, max_size=12).map(build)


@given(logs)
@brief
def test_every_boundary_is_where_the_list_has_it(model: Model) -> None:
    model.check()


@given(st.lists(st.tuples(appends, st.booleans(), st.booleans()), max_size=10))
@brief
def test_reading_forking_and_appending_in_turns_disturb_nothing(
    turns: list[tuple[list[list[int]], bool, bool]],
) -> None:
    model, forks = Model(), list[Model]()
    for group, reads, forks_now in turns:
        for message_sizes in group:
            model.append(message_sizes)
        if reads:
            model.check()
        if forks_now:
            forks.append(cut(model, model.log.tail_byte - len(forks) % 2))
            forks[-1].append([3, 5], twist=4)
    for grown in (model, *forks):
        grown.check()


@given(logs, st.data())
@brief
def test_a_byte_names_a_message_only_where_one_begins(model: Model, data: st.DataObject) -> None:
    bounds = model.bounds
    near = st.sampled_from(bounds).flatmap(lambda bound: st.integers(bound - 2, bound + 2))
    byte = data.draw(st.one_of(st.integers(-3, bounds[-1] + 3), near))
    expected = bounds.index(byte) if byte in bounds else None
    assert model.log.ordinal_at(byte) == expected


@given(logs, st.data())
@brief
def test_the_last_boundary_is_the_greatest_that_is_not_behind(
    model: Model, data: st.DataObject
) -> None:
    bounds = model.bounds
    byte = data.draw(st.integers(0, bounds[-1] + 5))
    expected = max(bound for bound in bounds if bound <= byte)
    assert model.log.last_boundary(byte) == (bounds.index(expected), expected)


@given(logs, st.data())
@brief
def test_a_page_holds_whole_messages_at_least_one_and_no_more_than_asked(
    model: Model, data: st.DataObject
) -> None:
    bounds = model.bounds
    ordinal = data.draw(st.integers(0, len(bounds) - 1))
    bytes_max = data.draw(st.one_of(st.integers(1, 50), st.integers(1, 300_000)))
    expected = max(
        index
        for index, bound in enumerate(bounds)
        if index >= ordinal
        and (bound - bounds[ordinal] <= bytes_max or index == ordinal + 1 or index == ordinal)
    )
    page_end = model.log.page_end(Position(ordinal, bounds[ordinal]), bytes_max)
    assert page_end == (expected, bounds[expected])


@given(logs, st.data())
@brief
def test_slices_are_the_bytes_between_two_places(model: Model, data: st.DataObject) -> None:
    whole = b"".join(model.messages)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(0, len(whole)))
    assert b"".join(model.log.slices(start, end)) == whole[start:end]


def cut(model: Model, byte: int) -> Model:
    """A fork as the list would make it: a cut inside a message makes it a shorter one."""
    short = Model()
    for message, begin in zip(model.messages, model.bounds, strict=False):
        if begin < byte:
            short.messages.append(message[: byte - begin])
    short.inherited = len(short.messages)
    short.log = model.log.branch(Position(short.inherited, byte))
    return short


@given(logs, st.data())
@brief
def test_a_fork_cut_anywhere_counts_from_the_cut_and_holds_nothing_before_it(
    model: Model, data: st.DataObject
) -> None:
    near = st.sampled_from(model.bounds).map(lambda bound: min(bound + 1, model.log.tail_byte))
    byte = data.draw(st.one_of(st.integers(0, model.log.tail_byte), near))
    fork = cut(model, byte)
    fork.check()
    assert fork.log.blocks == []
    assert (fork.log.first_ordinal, fork.log.first_byte) == (0, 0)
    assert fork.log.held_byte == fork.log.cold_byte == byte
    if byte:
        assert fork.log.ordinal_at(byte - 1) is None


@given(logs, st.data())
@brief
def test_what_a_fork_inherits_is_cut_out_of_its_sources_blocks(
    model: Model, data: st.DataObject
) -> None:
    if not model.messages:
        return
    byte = data.draw(st.integers(1, model.log.tail_byte))
    fork = cut(model, byte)
    (_, start), blocks = model.log.blocks_between(0, byte)
    found = list[bytes]()
    for block in blocks:
        found += [message.data for message in messages_of(block.cut(byte - start))]
        start += len(block.data)
    assert found == fork.messages


@given(logs, st.data(), st.lists(appends, max_size=4), st.lists(appends, max_size=4))
@briefer
def test_a_fork_and_its_source_grow_apart(
    model: Model,
    data: st.DataObject,
    later_in_source: list[list[list[int]]],
    later_in_fork: list[list[list[int]]],
) -> None:
    fork = cut(model, data.draw(st.integers(0, model.log.tail_byte)))
    for group in later_in_source:
        for message_sizes in group:
            model.append(message_sizes, twist=1)
    for group in later_in_fork:
        for message_sizes in group:
            fork.append(message_sizes, twist=2)
    model.check()
    fork.check()


@given(logs, st.data())
@briefer
def test_a_fork_of_a_fork_is_right_too(model: Model, data: st.DataObject) -> None:
    fork = cut(model, data.draw(st.integers(0, model.log.tail_byte)))
    fork.append([100], twist=3)
    cut(fork, data.draw(st.integers(0, fork.log.tail_byte))).check()


@given(logs, st.data())
@brief
def test_blocks_between_two_places_are_those_that_hold_something_of_it(
    model: Model, data: st.DataObject
) -> None:
    if not model.messages:
        return
    start = data.draw(st.integers(0, model.log.tail_byte - 1))
    end = data.draw(st.integers(start + 1, model.log.tail_byte))
    (ordinal, byte), blocks = model.log.blocks_between(start, end)
    assert model.bounds[ordinal] == byte <= start
    size = sum(len(block.data) for block in blocks)
    whole = b"".join(model.messages)
    assert b"".join(block.data for block in blocks) == whole[byte : byte + size]
    assert byte + len(blocks[0].data) > start
    assert byte + size >= end > byte + size - len(blocks[-1].data)


def test_a_fork_of_a_trimmed_log_shows_what_its_source_shows() -> None:
    model = build([[[3], [4], [5]]])
    model.log.trim(Position(1, 3))
    fork = model.log.branch(Position(2, 7))
    assert (fork.first_ordinal, fork.first_byte) == (1, 3)
    assert (fork.own_ordinal, fork.tail_ordinal, fork.tail_byte) == (2, 2, 7)


def test_slices_of_whole_blocks_are_the_blocks_and_not_copies() -> None:
    model = build([[[SMALL_BLOCK_BYTES]], [[SMALL_BLOCK_BYTES]]])
    slices = model.log.slices(0, 2 * SMALL_BLOCK_BYTES)
    assert [a is b for a, b in zip(slices, datas_of(model.log), strict=True)] == [True, True]


def test_a_reader_keeps_its_slices_while_the_blocks_behind_them_are_merged() -> None:
    model = build([[[5], [6]]])
    held = model.log.slices(2, 11)
    expected = b"".join(model.messages)[2:11]
    for _ in range(MANY):
        model.append([4])
    assert len(model.log.blocks) < MANY
    assert b"".join(held) == expected


def test_small_appends_become_blocks_of_bounded_number() -> None:
    model = Model()
    for _ in range(10 * MANY):
        model.append([1])
    assert len(model.log.blocks) <= MANY


def test_small_appends_become_blocks_of_bounded_size() -> None:
    model = Model()
    for _ in range(100):
        model.append([SMALL_BLOCK_BYTES // 4])
    assert len(model.log.blocks) <= 30
    assert max(map(len, datas_of(model.log))) < 2 * SMALL_BLOCK_BYTES


def test_a_large_append_stays_the_bytes_object_it_came_as() -> None:
    log, large = Log(), POOL[: SMALL_BLOCK_BYTES + 1]
    log.append(b"small", None, 0)
    log.append(large, None, 0)
    log.append(b"small", None, 0)
    assert any(data is large for data in datas_of(log))


@pytest.mark.parametrize("byte", [0, 1, 100])
def test_an_empty_log_has_one_boundary(byte: int) -> None:
    log = Log()
    assert log.last_boundary(byte) == (0, 0)
    assert log.page_end(START, byte) == (0, 0)
    assert log.byte_at(0) == 0
    assert log.ordinal_at(byte) == (0 if byte == 0 else None)
    assert log.slices(0, 0) == []
    assert log.branch(START).tail_byte == 0
    assert log.unpublished() == []


def test_logs_that_grow_alike_do_not_merge_all_at_once() -> None:
    logs = [Log() for _ in range(128)]
    merges = []
    for _ in range(1000):
        before = sum(len(log.blocks) for log in logs)
        for log in logs:
            log.append(b"x" * 256, None, 0)
        shrunk = before + len(logs) - sum(len(log.blocks) for log in logs)
        merges.append(shrunk)
    merged_blocks = SMALL_BLOCK_BYTES // (256 + SMALL_BLOCK_OVERHEAD)
    assert sum(merges) > 0
    assert max(merges) <= len(logs) // 8 * merged_blocks


@brief
@given(
    st.lists(st.tuples(st.lists(small_sizes, min_size=1, max_size=4), st.integers(0, 3))),
    st.integers(0, 30),
    st.integers(0, 99),
)
def test_a_moment_is_found_as_in_a_plain_list(
    appends: list[tuple[list[int], int]], since_ms: int, start: int
) -> None:
    log, times, bounds, time_ms = Log(), list[int](), [0], 0
    for sizes, later_ms in appends:
        time_ms += later_ms
        ends = array("I", accumulate(sizes)) if len(sizes) > 1 else None
        log.append(b"x" * sum(sizes), ends, time_ms)
        for size in sizes:
            times.append(time_ms)
            bounds.append(bounds[-1] + size)
    start %= len(bounds)
    expected = next((n for n in range(start, len(times)) if times[n] >= since_ms), len(times))
    found = log.first_since(since_ms, Position(start, bounds[start]))
    assert found == (expected, bounds[expected])
