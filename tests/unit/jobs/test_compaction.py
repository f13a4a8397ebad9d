from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import google_crc32c
import pytest
from msgspec.structs import replace as replace_fields

from millstream.errors import JobConflict, ResultRefused
from millstream.formats.jobs import TaskInput, TaskResult
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.jobs.compaction import (
    LiveRun,
    Policy,
    check_result,
    check_same_content,
    choose_small,
    choose_spread,
    cut_tasks,
    live_part,
    split_like,
    task_input,
)
from millstream.limits import KEY_FILTER_BYTES_MAX
from millstream.tier.catalog import SegmentSpan, SegmentUse

POLICY = Policy(
    target_bytes=100, task_bytes=200, job_bytes_max=1000, small_min=3, depth_min=3, inputs_max=5
)


def use(
    name: str, live_bytes: int, *, shard: int = 0, rows: int = 10, live_runs: int = 1
) -> SegmentUse:
    return SegmentUse(Segment(name, shard, live_bytes, 10, rows, 0), live_bytes, live_runs)


def names(uses: Sequence[SegmentUse]) -> list[str]:
    return [each.segment.name for each in uses]


# What is worth rewriting


def test_a_few_small_segments_are_left_alone() -> None:
    assert choose_small([use("a", 10), use("b", 10), use("c", 90)], POLICY) is None


def test_many_small_segments_are_merged_smallest_first() -> None:
    choice = choose_small([use("c", 30), use("a", 10), use("b", 20), use("big", 60)], POLICY)
    assert choice is not None
    assert names(choice.inputs) == ["a", "b", "c"]
    assert choice.reason == "many small segments"


def test_the_shard_with_the_most_small_segments_comes_first() -> None:
    uses = [use(f"a{k}", 1, shard=3) for k in range(3)] + [
        use(f"b{k}", 1, shard=5) for k in range(4)
    ]
    choice = choose_small(uses, POLICY)
    assert choice is not None
    assert choice.shard == 5


def test_segments_of_another_job_and_empty_ones_are_not_chosen() -> None:
    uses = [use(f"a{k}", 1) for k in range(4)] + [use("empty", 0, live_runs=0)]
    choice = choose_small(uses, POLICY, busy={"a0"})
    assert choice is not None
    assert names(choice.inputs) == ["a1", "a2", "a3"]
    assert choose_small(uses, POLICY, busy={"a0", "a1"}) is None


def test_a_job_is_bounded_in_inputs_bytes_and_runs() -> None:
    many = [use(f"a{k}", 40, live_runs=10) for k in range(9)]
    by_inputs = choose_small(many, POLICY)
    assert by_inputs is not None
    assert len(by_inputs.inputs) == 5
    by_bytes = choose_small(many, replace(POLICY, job_bytes_max=130))
    assert by_bytes is not None
    assert len(by_bytes.inputs) == 3
    by_runs = choose_small(many, replace(POLICY, job_runs_max=25))
    assert by_runs is not None
    assert len(by_runs.inputs) == 2


def test_one_segment_that_is_mostly_garbage_is_worth_a_job() -> None:
    uses = [use("a", 90), use("b", 90)]
    spans = {"a": SegmentSpan(4, 1, 1), "b": SegmentSpan(6, 1, 1)}
    choice = choose_spread(0, uses, spans, POLICY)
    assert choice is not None
    assert (names(choice.inputs), choice.reason) == (["a"], "garbage")


def test_segments_that_share_streams_are_merged_when_they_are_many() -> None:
    uses = [use(name, 90) for name in "abcd"]
    spans = {
        "a": SegmentSpan(10, 1, 50),
        "b": SegmentSpan(10, 40, 90),
        "c": SegmentSpan(10, 45, 46),
        "d": SegmentSpan(10, 60, 99),
    }
    choice = choose_spread(0, uses, spans, POLICY)
    assert choice is not None
    assert names(choice.inputs) == ["a", "b", "c"]
    assert choose_spread(0, uses, spans, POLICY, busy={"c"}) is None


def test_what_a_job_wrote_is_not_worth_another_one() -> None:
    uses = [use(f"{k}", 90) for k in range(20)]
    spans = {f"{k}": SegmentSpan(10, k * 10, k * 10 + 9) for k in range(20)}
    assert choose_small(uses, POLICY) is None
    assert choose_spread(0, uses, spans, POLICY) is None


def test_a_stream_that_fills_many_segments_is_not_rewritten_for_ever() -> None:
    uses = [use(f"{k}", 90) for k in range(20)]
    spans = {f"{k}": SegmentSpan(10, 7, 7) for k in range(20)}
    spans["0"], spans["19"] = SegmentSpan(10, 1, 7), SegmentSpan(10, 7, 9)
    assert choose_spread(0, uses, spans, POLICY) is None


# Tasks


def run(stream_id: int, first: int, count: int = 1, size: int = 10) -> Run:
    return Run(StreamId(stream_id), first, first * 10, count, size, 0, 0, 0)


def test_tasks_hold_all_runs_in_order_and_end_between_streams() -> None:
    runs: list[LiveRun] = [("s", run(stream, k)) for stream in range(50) for k in range(4)]
    tasks = list(cut_tasks(iter(runs), 2000, POLICY))
    assert [item for task in tasks for item in task] == runs
    assert len(tasks) == 10
    for left, right in pairwise(tasks):
        assert left[-1][1].stream_id < right[0][1].stream_id


def test_two_share_what_is_not_little() -> None:
    little: list[LiveRun] = [("s", run(stream, 0)) for stream in range(4)]
    more: list[LiveRun] = [("s", run(stream, 0)) for stream in range(6)]
    assert [len(task) for task in cut_tasks(iter(little), 40, POLICY)] == [4]
    assert [len(task) for task in cut_tasks(iter(more), 60, POLICY)] == [3, 3]


def test_a_stream_larger_than_a_task_is_cut_between_runs() -> None:
    runs: list[LiveRun] = [("s", run(7, k)) for k in range(100)]
    tasks = list(cut_tasks(iter(runs), 1000, POLICY))
    assert [item for task in tasks for item in task] == runs
    assert 2 <= len(tasks) <= 5


def test_the_runs_of_a_task_are_bounded_too() -> None:
    runs: list[LiveRun] = [("s", run(k, 0)) for k in range(100)]
    tasks = list(cut_tasks(iter(runs), 1000, Policy(task_runs_max=30)))
    assert [len(task) for task in tasks] == [30, 30, 30, 10]


def test_a_task_tells_each_segment_once() -> None:
    segments = {name: use(name, 1).segment for name in "abc"}
    task = task_input([("b", run(1, 0)), ("a", run(1, 1)), ("b", run(2, 0))], segments, {})
    assert [segment.name for segment in task.segments] == ["b", "a"]
    assert task.runs == [(0, run(1, 0)), (1, run(1, 1)), (0, run(2, 0))]


# Is it right


class Cutter:
    """Cuts the same content into runs here and there."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.numbers = random.Random(seed)
        self.messages = {
            stream_id: [
                self.numbers.randbytes(self.numbers.randint(0, 9))
                for _ in range(self.numbers.randint(1, 30))
            ]
            for stream_id in (3, 19, 35)
        }

    def runs(self) -> list[Run]:
        """One row group, rows one behind the other."""
        found, row = [], 0
        for stream_id, messages in self.messages.items():
            at, byte = 0, 0
            while at < len(messages):
                count = self.numbers.randint(1, len(messages) - at)
                data = b"".join(messages[at : at + count])
                crc = google_crc32c.value(data)
                place = (at, byte, count, len(data), 0, row, crc)
                found.append(Run(StreamId(stream_id), *place, 1000 + at, 1000 + at + count - 1))
                at, byte, row = at + count, byte + len(data), row + count
        return found


def task_and_result(seed: int) -> tuple[TaskInput, TaskResult]:
    cutter = Cutter(seed)
    old, new = cutter.runs(), cutter.runs()
    task = TaskInput([use("segments/0003/old", 1, shard=3).segment], [(0, each) for each in old])
    rows = sum(each.count for each in new)
    segment = Segment("segments/0003/new", 3, 1, 1, rows, 0)
    return task, TaskResult([segment], [new])


@pytest.mark.parametrize("seed", range(30))
def test_the_same_content_is_accepted_however_it_is_cut(seed: int) -> None:
    task, result = task_and_result(seed)
    check_result(task, result, shard=3, taken_names=())


@pytest.mark.parametrize("seed", range(30))
def test_any_run_that_is_lost_doubled_or_changed_is_noticed(seed: int) -> None:
    cutter = Cutter(seed)
    old, new = cutter.runs(), cutter.runs()
    at = cutter.numbers.randrange(len(new))
    bad = new[at]
    changed = [
        *(_with(bad, stream_id=1), _with(bad, first_ordinal=1), _with(bad, first_byte=1)),
        *(_with(bad, count=1), _with(bad, size=1), _with(bad, crc=1)),
    ]
    if bad.first_ordinal == 0:
        changed.append(_with(bad, first_ms=1))
    if at + 1 == len(new) or new[at + 1].stream_id != bad.stream_id:
        changed.append(_with(bad, last_ms=-1))
    with pytest.raises(ResultRefused):
        check_same_content(old, new[:at] + new[at + 1 :])
    with pytest.raises(ResultRefused):
        check_same_content(old, new[: at + 1] + new[at:])
    for other in changed:
        with pytest.raises(ResultRefused):
            check_same_content(old, [*new[:at], other, *new[at + 1 :]])


def _with(bad: Run, **more: int) -> Run:
    return replace_fields(bad, **{name: getattr(bad, name) + by for name, by in more.items()})


def test_a_refusal_says_what_was_expected_and_what_was_found() -> None:
    old = [Run(StreamId(7), 0, 0, 2, 20, 0, 0, 0xAAAA), Run(StreamId(7), 2, 20, 1, 5, 0, 2, 0xBBBB)]
    with pytest.raises(ResultRefused, match="expected stream 7, message 0, byte 0 next, found"):
        check_same_content(old, [Run(StreamId(7), 1, 9, 2, 16, 0, 0, 1)])
    with pytest.raises(ResultRefused, match="stream 7, messages 2 to 2 and what follows is miss"):
        check_same_content(old, old[:1])
    with pytest.raises(ResultRefused, match="messages 0 to 1: expected CRC32C 0000aaaa up to byte"):
        check_same_content(old, [Run(StreamId(7), 0, 0, 2, 20, 0, 0, 0xCCCC), old[1]])
    with pytest.raises(ResultRefused, match="stream 8, messages 0 to 0 was not asked for"):
        check_same_content(old, [*old, Run(StreamId(8), 0, 0, 1, 1, 0, 3, 1)])


def test_what_is_not_contiguous_must_not_be_joined() -> None:
    old = [Run(StreamId(7), 0, 0, 1, 4, 0, 0, 1), Run(StreamId(7), 5, 20, 1, 4, 0, 1, 2)]
    with pytest.raises(ResultRefused, match="the new runs hold more than there is"):
        check_same_content(old, [Run(StreamId(7), 0, 0, 2, 8, 0, 0, 3)])


def test_rows_and_row_groups_of_new_segments_have_no_gaps() -> None:
    task, result = task_and_result(1)
    [segment], [runs] = result.segments, result.runs
    moved = [runs[0], *(_with(each, row=1) for each in runs[1:])]
    with pytest.raises(ResultRefused, match="are said to begin at row"):
        check_result(task, TaskResult([segment], [moved]), shard=3, taken_names=())
    more = Segment(segment.name, 3, 1, 1, segment.rows + 1, 0)
    with pytest.raises(ResultRefused, match=f"has {segment.rows + 1} rows and runs of"):
        check_result(task, TaskResult([more], [runs]), shard=3, taken_names=())


def test_times_that_one_side_does_not_know_are_not_compared() -> None:
    """Runs of older stores, and results of an older pipeline."""
    task, result = task_and_result(4)
    old = [(index, replace_fields(run, first_ms=0, last_ms=0)) for index, run in task.runs]
    check_result(TaskInput(task.segments, old), result, shard=3, taken_names=())
    new = [replace_fields(run, first_ms=0, last_ms=0) for run in result.runs[0]]
    check_result(task, TaskResult(result.segments, [new]), shard=3, taken_names=())


@pytest.mark.parametrize(
    "fields",
    [{"keys": b"x" * (KEY_FILTER_BYTES_MAX + 1)}, {"keys": b"\x08 torn"}, {"first_ms": -1}],
)
def test_what_could_not_be_kept_is_refused(fields: dict[str, Any]) -> None:
    task, result = task_and_result(5)
    [[first, *rest]] = result.runs
    runs = [replace_fields(first, **fields), *rest]
    with pytest.raises(ResultRefused, match="in a way that cannot be"):
        check_result(task, TaskResult(result.segments, [runs]), shard=3, taken_names=())


def test_names_of_new_segments_are_new_and_in_their_shard() -> None:
    task, result = task_and_result(2)
    name = result.segments[0].name
    with pytest.raises(ResultRefused, match="used twice"):
        check_result(task, result, shard=3, taken_names={name})
    with pytest.raises(ResultRefused, match="not a segment of shard 4"):
        check_result(task, result, shard=4, taken_names=())
    with pytest.raises(ResultRefused, match="1 segments and 0 lists"):
        check_result(task, TaskResult(result.segments, []), shard=3, taken_names=())


# What changed meanwhile


def test_new_runs_that_hold_nothing_live_any_more_are_left_out() -> None:
    frozen: list[LiveRun] = [("a", run(1, 0)), ("b", run(1, 1)), ("a", run(2, 0)), ("a", run(3, 0))]
    live = [frozen[1], frozen[3]]
    new = [[run(1, 0, 2), run(2, 0)], [run(3, 0)]]
    assert live_part(frozen, live, new) == [[run(1, 0, 2)], [run(3, 0)]]


def test_a_live_run_that_the_job_was_not_given_is_a_conflict() -> None:
    frozen: list[LiveRun] = [("a", run(1, 0)), ("a", run(2, 0))]
    with pytest.raises(JobConflict, match="b: stream 1, messages 0 to 0 changed its place"):
        live_part(frozen, [("b", run(1, 0))], [])


def test_live_runs_are_split_as_the_tasks_were() -> None:
    segments = {name: use(name, 1).segment for name in "ab"}
    first: list[LiveRun] = [("a", run(1, 0)), ("b", run(1, 1))]
    second: list[LiveRun] = [("a", run(1, 2)), ("a", run(2, 0))]
    tasks = [task_input(first, segments, {}), task_input(second, segments, {})]
    live = [first[1], second[0], second[1]]
    assert list(split_like(tasks, iter(live))) == [(first, [first[1]]), (second, second)]
    with pytest.raises(JobConflict, match="was not there when the job began"):
        list(split_like(tasks, iter([*live, ("a", run(9, 0))])))
