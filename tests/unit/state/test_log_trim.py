"""A log that forgets its beginning, against a plain list that forgets the same."""

from __future__ import annotations

from array import array
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.limits import SMALL_BLOCK_BYTES
from millstream.protocol.offsets import Position
from millstream.state.log import Log
from tests.support.blocks import datas_of, messages_of
from tests.unit.effort import brief
from tests.unit.state.test_log import MANY, POOL, Model, appends, build, cut, logs


class Trimmed:
    """A log, all messages it ever had, and how many of them are gone."""

    def __init__(self, model: Model, gone: int = 0) -> None:
        self.model = model
        self.gone = gone

    @property
    def log(self) -> Log:
        return self.model.log

    def trim(self, ordinal: int) -> None:
        """Nobody needs what comes before it, so it goes."""
        byte, held_byte = self.model.bounds[ordinal], self.log.held_byte
        self.log.trim(Position(ordinal, byte))
        assert self.log.drop(byte) == max(0, byte - held_byte)
        self.gone = ordinal

    @property
    def held(self) -> int:
        return max(self.gone, self.model.inherited)

    def check(self) -> None:
        log, bounds, messages = self.log, self.model.bounds, self.model.messages
        held = self.held
        kept = range(held, len(bounds))
        assert (log.first_ordinal, log.first_byte) == (self.gone, bounds[self.gone])
        assert (log.tail_ordinal, log.tail_byte) == (len(messages), bounds[-1])
        assert [log.byte_at(ordinal) for ordinal in kept] == bounds[held:]
        assert [log.ordinal_at(byte) for byte in bounds[held:]] == list(kept)
        whole = b"".join(log.slices(bounds[held], bounds[-1]))
        assert whole == b"".join(messages[held:])
        self.check_blocks()
        if held and bounds[held] != bounds[-1]:
            assert log.ordinal_at(bounds[held] - 1) is None

    def check_blocks(self) -> None:
        """What bootstrap is made of: every message once, in order, whole."""
        found = [message.data for block in self.log.blocks for message in messages_of(block)]
        assert found == self.model.messages[self.held :]


def grow(trimmed: Trimmed, groups: list[list[list[int]]], twist: int) -> None:
    for group in groups:
        for message_sizes in group:
            trimmed.model.append(message_sizes, twist)


@given(logs, st.data())
@brief
def test_everything_behind_the_cut_stays_where_it_was(model: Model, data: st.DataObject) -> None:
    trimmed = Trimmed(model)
    trimmed.trim(data.draw(st.integers(0, len(model.messages))))
    trimmed.check()


@given(logs, st.lists(st.lists(appends, max_size=4), min_size=1, max_size=4), st.data())
@brief
def test_a_log_trimmed_now_and_then_grows_like_the_list(
    model: Model, later: list[list[list[list[int]]]], data: st.DataObject
) -> None:
    trimmed = Trimmed(model)
    for twist, groups in enumerate(later):
        trimmed.trim(data.draw(st.integers(trimmed.gone, len(model.messages))))
        trimmed.check()
        grow(trimmed, groups, twist)
        trimmed.check()


@given(logs, st.data())
@brief
def test_pages_and_boundaries_of_a_trimmed_log_are_those_of_the_list(
    model: Model, data: st.DataObject
) -> None:
    trimmed, bounds = Trimmed(model), model.bounds
    trimmed.trim(data.draw(st.integers(0, len(model.messages))))
    ordinal = data.draw(st.integers(trimmed.gone, len(model.messages)))
    byte = data.draw(st.integers(bounds[trimmed.gone], bounds[-1] + 5))
    floor = max(bound for bound in bounds if bound <= byte)
    assert model.log.last_boundary(byte) == (bounds.index(floor), floor)
    bytes_max = data.draw(st.integers(1, 100_000))
    end, end_byte = model.log.page_end(Position(ordinal, bounds[ordinal]), bytes_max)
    assert bounds[end] == end_byte
    assert end_byte - bounds[ordinal] <= bytes_max or end == ordinal + 1


@given(logs, st.lists(appends, max_size=4), st.data())
@brief
def test_forks_keep_what_they_inherited_and_inherit_only_what_is_there(
    model: Model, later: list[list[list[int]]], data: st.DataObject
) -> None:
    before = cut(model, data.draw(st.integers(0, model.log.tail_byte)))
    trimmed = Trimmed(model)
    trimmed.trim(data.draw(st.integers(0, len(model.messages))))
    before.check()
    byte = data.draw(st.integers(model.bounds[trimmed.gone], model.bounds[-1]))
    after = Trimmed(cut(model, byte), trimmed.gone)
    grow(trimmed, later, twist=1)
    grow(after, later, twist=2)
    trimmed.check()
    after.check()


@given(logs, st.data())
@brief
def test_a_reader_keeps_its_slices_and_blocks_while_the_log_is_trimmed(
    model: Model, data: st.DataObject
) -> None:
    held, blocks = model.log.slices(0, model.log.tail_byte), list(model.log.blocks)
    messages = list(model.messages)
    Trimmed(model).trim(data.draw(st.integers(0, len(messages))))
    model.append([5], twist=9)
    assert b"".join(held) == b"".join(messages)
    assert b"".join(block.data for block in blocks) == b"".join(messages)


def test_blocks_say_where_each_message_ends() -> None:
    log = Log()
    log.append(b"abc", None, 0)
    assert [(block.data, list(block.message_ends)) for block in log.blocks] == [(b"abc", [3])]
    model = build([[[2, 3]], [[4]]])
    assert [list(block.message_ends) for block in model.log.blocks] == [[2, 5], [4]]


def test_a_log_trimmed_to_its_tail_is_empty_and_goes_on_counting() -> None:
    model = build([[[3], [4]]])
    model.log.trim(Position(2, 7))
    model.log.drop(7)
    assert model.log.blocks == []
    model.append([5])
    assert (model.log.tail_ordinal, model.log.tail_byte) == (3, 12)
    assert model.log.ordinal_at(7) == 2
    assert model.log.byte_at(3) == 12


def test_dropping_gives_the_memory_back_and_trimming_alone_does_not() -> None:
    model = build([[[SMALL_BLOCK_BYTES]]] * 10)
    model.log.trim(Position(9, 9 * SMALL_BLOCK_BYTES))
    assert len(model.log.blocks) == 10
    assert model.log.drop(9 * SMALL_BLOCK_BYTES) == 9 * SMALL_BLOCK_BYTES
    assert list(map(len, datas_of(model.log))) == [SMALL_BLOCK_BYTES]
    small = build([[[10]] * MANY])
    small.log.drop(10 * (MANY - 1))
    assert sum(map(len, datas_of(small.log))) == 10


def test_small_appends_are_still_merged_after_many_trims() -> None:
    model = Model()
    for number in range(6 * MANY):
        model.append([3])
        if number % 50 == 49:
            model.log.drop(3 * (number - 20))
    for _ in range(2 * MANY):
        model.append([3])
    assert len(model.log.blocks) <= MANY


def test_bytes_and_messages_start_where_they_are_told() -> None:
    log = Log()
    log.start_at(Position(5, 90))
    log.append(b"abc", None, 0)
    assert (log.first_ordinal, log.first_byte) == (5, 90)
    assert (log.tail_ordinal, log.tail_byte) == (6, 93)
    assert log.ordinal_at(90) == 5
    assert log.ordinal_at(0) is None
    assert b"".join(log.slices(91, 93)) == b"bc"


# Runs


def run_of(model: Model, first: int, end: int) -> Run:
    begin, size = model.bounds[first], model.bounds[end] - model.bounds[first]
    return Run(StreamId(1), first, begin, end - first, size, 0, 0, 0)


SEGMENT = Segment("s", 0, 1, 1, 1, 1)


@given(logs, st.lists(appends, max_size=3), st.data())
@brief
def test_published_content_may_be_dropped_and_the_rest_stays_whole(
    model: Model, later: list[list[list[int]]], data: st.DataObject
) -> None:
    trimmed, count = Trimmed(model), len(model.messages)
    cold = data.draw(st.integers(0, count))
    if cold:
        assert model.log.publish(SEGMENT, run_of(model, 0, cold))
    held = data.draw(st.integers(0, cold))
    model.log.drop(model.bounds[held])
    grow(trimmed, later, twist=1)
    log, bounds = model.log, model.bounds
    assert (log.held_byte, log.cold_byte) == (bounds[held], bounds[cold])
    assert b"".join(log.slices(bounds[held], bounds[-1])) == b"".join(model.messages[held:])
    unpublished = log.unpublished()
    assert b"".join(block.data for block in unpublished) == b"".join(model.messages[cold:])
    assert sum(block.count for block in unpublished) == len(model.messages) - cold


def test_a_run_is_only_taken_where_the_cold_content_ends() -> None:
    model = build([[[3], [4], [5]]])
    assert not model.log.publish(SEGMENT, run_of(model, 1, 2))
    assert model.log.publish(SEGMENT, run_of(model, 0, 1))
    assert not model.log.publish(SEGMENT, run_of(model, 0, 1))
    assert not model.log.publish(SEGMENT, Run(StreamId(1), 1, 3, 3, 10, 0, 0, 0))
    assert model.log.publish(SEGMENT, run_of(model, 1, 3))
    assert model.log.runs == [(SEGMENT, run_of(model, 0, 1)), (SEGMENT, run_of(model, 1, 3))]
    assert model.log.cold_byte == model.log.tail_byte == 12


def test_what_is_dropped_unpublished_counts_as_cold() -> None:
    """It was trimmed: nobody needs to publish it any more."""
    model = build([[[3], [4], [5]]])
    model.log.trim(Position(2, 7))
    model.log.drop(7)
    assert (model.log.cold_ordinal, model.log.cold_byte) == (2, 7)
    assert not model.log.publish(SEGMENT, run_of(model, 0, 3))
    assert model.log.publish(SEGMENT, run_of(model, 2, 3))


@st.composite
def flush_steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    verbs = st.sampled_from(["append", "append", "append", "gather", "publish", "part", "drop"])
    numbers = st.integers(0, 50)
    return draw(st.lists(st.tuples(verbs, numbers, numbers), min_size=20, max_size=60))


@given(flush_steps())
@settings(brief, max_examples=200)
def test_flushes_between_appends_find_exactly_what_is_unpublished(
    steps: list[tuple[str, int, int]],
) -> None:
    """Runs end where content was gathered, or before; appends and drops come in between."""
    log = Log()
    messages: list[bytes] = []
    times: list[int] = []
    held = cold = 0
    gathered: tuple[int, int] | None = None

    def byte_of(ordinal: int) -> int:
        return sum(map(len, messages[:ordinal]))

    for verb, a, b in steps:
        if verb == "append":
            new = [POOL[a + i : a + i + 1 + 60 * b * (i + 1)] for i in range(1 + a % 3)]
            ends = array("I", accumulate(map(len, new))) if len(new) > 1 else None
            log.append(b"".join(new), ends, 1000 + b % 2)
            messages += new
            times += [1000 + b % 2] * len(new)
        elif verb == "gather":
            blocks = log.unpublished()
            assert b"".join(block.data for block in blocks) == b"".join(messages[cold:])
            assert [m.time for block in blocks for m in messages_of(block)] == times[cold:]
            gathered = cold, len(messages)
        elif verb in ("publish", "part") and gathered is not None:
            first, end = gathered
            if verb == "part":
                end = first + (end - first) * (a % 4) // 4
            if first == cold < end:
                size = byte_of(end) - byte_of(first)
                assert log.publish(
                    SEGMENT, Run(StreamId(1), first, byte_of(first), end - first, size, 0, 0, 0)
                )
                cold = end
            gathered = None
        elif verb == "drop":
            target = held + a % (len(messages) + 1 - held) if b % 10 == 0 else min(cold, held + a)
            log.drop(byte_of(target))
            held, cold = max(held, target), max(cold, target)
        assert (log.cold_ordinal, log.cold_byte) == (cold, byte_of(cold))
        assert (log.held_ordinal, log.held_byte) == (held, byte_of(held))
        shown = b"".join(log.slices(byte_of(held), byte_of(len(messages))))
        assert shown == b"".join(messages[held:])
    assert b"".join(block.data for block in log.unpublished()) == b"".join(messages[cold:])
