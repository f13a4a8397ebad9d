"""Large appends of many messages: bounded blocks, and a front that goes at a bounded cost."""

from __future__ import annotations

import time
from array import array
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from millstream.limits import BLOCK_BYTES
from millstream.state.log import Log
from tests.support.blocks import datas_of
from tests.unit.effort import brief, briefer
from tests.unit.state.test_log import POOL


def tiny(messages: int) -> tuple[bytes, bytes]:
    return b"1," * messages, array("I", range(2, 2 * messages + 1, 2)).tobytes()


def log_of(messages: int) -> Log:
    log = Log()
    data, ends = tiny(messages)
    assert log.append_many((data,), ends, 7) == len(data)
    return log


sizes = st.lists(st.sampled_from([1, 2, 50, 70_000, 300_000, 3 << 20]), min_size=1, max_size=12)


@given(sizes, st.data())
@briefer
def test_pieces_become_the_same_log_as_one_append(
    message_sizes: list[int], data: st.DataObject
) -> None:
    messages = [(POOL * 4)[index : index + size] for index, size in enumerate(message_sizes)]
    bounds = [0, *accumulate(message_sizes)]
    ends = array("I", bounds[1:]).tobytes() if len(messages) > 1 else b""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(messages) - 1)))) if messages[1:] else []
    pieces = tuple(
        b"".join(messages[first:last])
        for first, last in zip([0, *cuts], [*cuts, len(messages)], strict=True)
    )
    log = Log()
    assert log.append_many(pieces, ends, 7) == bounds[-1]
    assert (log.tail_ordinal, log.tail_byte) == (len(messages), bounds[-1])
    assert [log.byte_at(ordinal) for ordinal in range(len(bounds))] == bounds
    assert [log.ordinal_at(byte) for byte in bounds] == list(range(len(bounds)))
    assert b"".join(log.slices(0, bounds[-1])) == b"".join(messages)
    gone = data.draw(st.integers(0, len(messages)))
    log.drop(bounds[gone])
    assert [log.byte_at(ordinal) for ordinal in range(gone, len(bounds))] == bounds[gone:]
    assert b"".join(log.slices(bounds[gone], bounds[-1])) == b"".join(messages[gone:])


@given(st.integers(1, 4_000_000))
@brief
def test_no_block_of_many_messages_is_long(messages: int) -> None:
    log = log_of(messages)
    assert max(map(len, datas_of(log))) <= 2 * BLOCK_BYTES
    assert sum(map(len, datas_of(log))) == 2 * messages
    assert log.byte_at(messages // 2) == messages // 2 * 2


def test_the_front_goes_at_a_cost_that_grows_with_what_goes() -> None:
    """Run by run, as held content does; a list that is rewritten each time would be quadratic."""
    run = 64 * 1024

    def seconds(messages: int) -> float:
        log = log_of(messages)
        began = time.thread_time()
        for ordinal in range(run, messages + 1, run):
            log.drop(2 * ordinal)
        return time.thread_time() - began

    quarter = min(seconds(4 << 20) for _ in range(3))
    assert min(seconds(16 << 20) for _ in range(3)) < 8 * quarter + 0.01


def test_no_single_drop_takes_long() -> None:
    """Less than a millisecond on a machine that has nothing else to do."""
    log, longest = log_of(16 << 20), 0.0
    for ordinal in range(1000, 16 << 20, 777_777):
        began = time.thread_time()
        log.drop(2 * ordinal)
        log.unpublished()
        log.last_boundary(2 * ordinal + 100_001)
        longest = max(longest, time.thread_time() - began)
    assert longest < 0.050
