"""Compaction, the part that decides: what is worth rewriting, who rewrites what, is it right.

Everything here is a pure function of what the catalog says. The jobs under way live in
job_table.py, the requests in api/jobs.py, the rewriting itself in the pipeline's process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.errors import JobConflict, ResultRefused
from millstream.formats.crc32c import combine_groups
from millstream.formats.jobs import TaskInput, TaskResult
from millstream.formats.runs import Run, Segment
from millstream.limits import MIB

LiveRun = tuple[str, Run]  # name of the segment that holds it, and where in there


class Use(Protocol):
    """What is still needed of a segment."""

    @property
    def segment(self) -> Segment: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def live_runs(self) -> int: ...
    @property
    def live_rows(self) -> int: ...
    @property
    def first_stream(self) -> int: ...
    @property
    def last_stream(self) -> int: ...


@dataclass(frozen=True)
class Policy:
    """When rewriting pays. The defaults bound what one job holds in memory and loses to a kill."""

    target_bytes: int = 64 * MIB  # of a new segment; an executor holds one while it writes
    task_bytes: int = 128 * MIB  # of live bytes; minutes of work to repeat at the very worst
    task_runs_max: int = 100_000  # one task's list is a few MB in a request
    job_bytes_max: int = 1024 * MIB
    job_runs_max: int = 500_000  # the lists of a job stay in the server's memory while it runs
    inputs_max: int = 256  # segments that a task has open at once, one row group each
    small_min: int = 8  # fewer small segments are left to gather company
    depth_min: int = 8  # segments a reader of one stream may have to visit before it pays
    garbage_fraction: float = 0.5


@dataclass(frozen=True)
class Choice:
    """Segments of one shard to be rewritten together."""

    shard: int
    inputs: list[Use]
    reason: str


# What is worth rewriting


def choose_segments(
    uses: Iterable[Use], policy: Policy, busy: Collection[str] = ()
) -> Choice | None:
    """The most rewarding job there is, or None. Segments in `busy` belong to a job already."""
    by_shard: dict[int, list[Use]] = {}
    for use in uses:
        if use.segment.name not in busy and use.live_runs > 0:  # the rest is garbage already
            by_shard.setdefault(use.segment.shard, []).append(use)
    choices = [choose_in_shard(shard, found, policy) for shard, found in by_shard.items()]
    return max(
        (choice for choice in choices if choice is not None),
        key=lambda choice: (len(choice.inputs), -choice.shard),
        default=None,
    )


def choose_in_shard(shard: int, uses: list[Use], policy: Policy) -> Choice | None:
    """Three reasons, the most urgent first; what is chosen for one never needs it again soon."""
    small = [use for use in uses if use.live_bytes < policy.target_bytes // 2]
    if len(small) >= policy.small_min:
        return _limited(shard, small, policy, "many small segments")
    wasteful = [use for use in uses if _garbage(use) > policy.garbage_fraction]
    if wasteful:
        return _limited(shard, wasteful, policy, "garbage")
    deepest = _deepest(uses)
    if len(deepest) >= policy.depth_min:
        return _limited(shard, deepest, policy, "streams spread over many segments")
    return None


def _garbage(use: Use) -> float:
    return 1 - use.live_rows / max(1, use.segment.rows)


def _deepest(uses: list[Use]) -> list[Use]:
    """The largest set of segments that one stream id lies within the bounds of."""
    best: list[Use] = []
    active: list[Use] = []
    for use in sorted(uses, key=lambda use: use.first_stream):
        active = [other for other in active if other.last_stream >= use.first_stream]
        active.append(use)
        if len(active) > len(best):
            best = list(active)
    return best


def _limited(shard: int, uses: list[Use], policy: Policy, reason: str) -> Choice | None:
    """Smallest first, as many as one job may take."""
    inputs: list[Use] = []
    size = runs = 0
    for use in sorted(uses, key=lambda use: (use.live_bytes, use.segment.name)):
        size += use.live_bytes
        runs += use.live_runs
        is_over = size > policy.job_bytes_max or runs > policy.job_runs_max
        if inputs and (is_over or len(inputs) == policy.inputs_max):
            break
        inputs.append(use)
    return Choice(shard, inputs, reason) if len(inputs) > 1 or reason == "garbage" else None


# Who rewrites what


def cut_tasks(runs: Iterable[LiveRun], live_bytes: int, policy: Policy) -> Iterator[list[LiveRun]]:
    """Cuts runs, sorted by stream id and ordinal, into pieces of about equal bytes.

    A cut lies between two streams, but for a stream that is larger than a task by itself.
    """
    pieces = max(1, -(-live_bytes // policy.task_bytes))
    fair_bytes = max(1, -(-live_bytes // pieces))
    piece: list[LiveRun] = []
    size = 0
    for name, run in runs:
        starts_stream = bool(piece) and piece[-1][1].stream_id != run.stream_id
        is_full = size >= fair_bytes or len(piece) >= policy.task_runs_max
        if is_full and (starts_stream or size >= 2 * fair_bytes):
            yield piece
            piece, size = [], 0
        piece.append((name, run))
        size += run.size
    if piece:
        yield piece


def task_input(piece: Sequence[LiveRun], segments: dict[str, Segment]) -> TaskInput:
    """The same runs with their segments told once."""
    index: dict[str, int] = {}
    runs = [(index.setdefault(name, len(index)), run) for name, run in piece]
    return TaskInput([segments[name] for name in index], runs)


# Is it right


def check_result(
    task: TaskInput, result: TaskResult, *, shard: int, taken_names: Collection[str]
) -> None:
    """Raises ResultRefused unless the new runs hold exactly what the old ones held."""
    _check_segments(task, result, shard, taken_names)
    check_same_content(
        [run for _, run in task.runs], [run for runs in result.runs for run in runs]
    )


def _check_segments(
    task: TaskInput, result: TaskResult, shard: int, taken_names: Collection[str]
) -> None:
    if len(result.segments) != len(result.runs):
        raise ResultRefused(
            f"there are {len(result.segments)} segments and {len(result.runs)} lists of runs"
        )
    seen = {segment.name for segment in task.segments}
    for segment, runs in zip(result.segments, result.runs, strict=True):
        if segment.name in seen or segment.name in taken_names:
            raise ResultRefused(f"the name {segment.name} is used twice")
        seen.add(segment.name)
        folder = f"segments/{shard:04d}/"
        if segment.shard != shard or not segment.name.startswith(folder):
            raise ResultRefused(f"{segment.name} is not a segment of shard {shard}")
        _check_rows(segment, runs)


def _check_rows(segment: Segment, runs: Sequence[Run]) -> None:
    """The runs follow each other without a gap, from the first row of the first row group."""
    row_group, row = 0, 0
    for run in runs:
        if run.row_group == row_group + 1 and row > 0:
            row_group, row = run.row_group, 0
        if run.count < 1 or (run.row_group, run.row) != (row_group, row):
            raise ResultRefused(
                f"{segment.name}: {run.count} rows of stream {run.stream_id} are said to begin at "
                f"row {run.row} of row group {run.row_group}, expected row {row} of {row_group}"
            )
        row += run.count
    rows = sum(run.count for run in runs)
    if rows != segment.rows:
        raise ResultRefused(f"{segment.name} has {segment.rows} rows and runs of {rows}")


def check_same_content(old: Sequence[Run], new: Sequence[Run]) -> None:
    """Raises ResultRefused unless both cover the same messages with the same bytes.

    Both are cut into the smallest groups that begin and end at the same message; within a group
    the runs join without a gap, and the CRCs of a group combine to the same CRC on both sides.
    """
    groups = list(_common_groups(old, new))
    crcs = [
        combine_groups(
            [run.crc for run in runs], [run.size for run in runs], [group[side] for group in groups]
        )
        for side, runs in enumerate((old, new))
    ]
    for (first, _), expected, found in zip(groups, crcs[0], crcs[1], strict=True):
        if expected != found:
            run = old[first]
            raise ResultRefused(
                f"stream {run.stream_id} from message {run.first_ordinal}: expected CRC32C "
                f"{expected:08x}, found {found:08x}"
            )


def _common_groups(old: Sequence[Run], new: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Where each group begins, in `old` and in `new`."""
    at, to = 0, 0
    while at < len(old):
        start = (at, to)
        if to == len(new):
            raise ResultRefused(f"{_place(old[at])} and what follows is missing")
        _check_start(old[at], new[to])
        last_old, last_new = old[at], new[to]
        at, to = at + 1, to + 1
        while last_old.end_ordinal != last_new.end_ordinal:
            if last_old.end_ordinal < last_new.end_ordinal:
                last_old = _next(last_old, old, at, "the new runs hold more than there is")
                at += 1
            else:
                last_new = _next(last_new, new, to, "the new runs leave a gap")
                to += 1
        if last_old.end_byte != last_new.end_byte:
            raise ResultRefused(
                f"{_place(last_old)} should end at byte {last_old.end_byte}, "
                f"found {last_new.end_byte}"
            )
        yield start
    if to < len(new):
        raise ResultRefused(f"{_place(new[to])} was not asked for")


def _check_start(old: Run, new: Run) -> None:
    expected = (old.stream_id, old.first_ordinal, old.first_byte)
    found = (new.stream_id, new.first_ordinal, new.first_byte)
    if expected != found:
        raise ResultRefused(
            "expected stream %d, message %d, byte %d next; " % expected
            + "found stream %d, message %d, byte %d" % found
        )


def _next(run: Run, runs: Sequence[Run], index: int, otherwise: str) -> Run:
    """The run behind this one, which joins it."""
    if index < len(runs):
        found = runs[index]
        if (found.stream_id, found.first_ordinal, found.first_byte) == (
            run.stream_id,
            run.end_ordinal,
            run.end_byte,
        ):
            return found
    raise ResultRefused(f"{_place(run)}: {otherwise} behind message {run.end_ordinal - 1}")


def _place(run: Run) -> str:
    return f"stream {run.stream_id}, messages {run.first_ordinal} to {run.end_ordinal - 1}"


# What changed while the job ran


def live_part(
    frozen: Sequence[LiveRun], live: Sequence[LiveRun], new_runs: Sequence[Sequence[Run]]
) -> list[list[Run]]:
    """The new runs that hold something live. Raises JobConflict if more is live than was given.

    Streams may have been deleted and trimmed since; nothing new can have come to old segments.
    """
    remaining = iter(frozen)
    for item in live:
        if item not in remaining:  # moves on to it: `live` has to be a part of `frozen`, in order
            raise JobConflict(f"{item[0]}: {_place(item[1])} changed its place meanwhile")
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for _, run in live:
        starts.setdefault(run.stream_id, []).append(run.first_ordinal)
        ends.setdefault(run.stream_id, []).append(run.end_ordinal)

    def is_live(run: Run) -> bool:
        stream_ends = ends.get(run.stream_id, [])
        index = bisect_right(stream_ends, run.first_ordinal)
        return index < len(stream_ends) and starts[run.stream_id][index] < run.end_ordinal

    return [[run for run in runs if is_live(run)] for runs in new_runs]


def split_like(tasks: Iterable[TaskInput], live: Iterator[LiveRun]) -> Iterator[list[LiveRun]]:
    """The live runs of each task, from all of them in order. Raises JobConflict for more."""
    ahead = next(live, None)
    for task in tasks:
        last = task.runs[-1][1]
        part: list[LiveRun] = []
        while ahead is not None and _key(ahead[1]) <= _key(last):
            part.append(ahead)
            ahead = next(live, None)
        yield part
    if ahead is not None:
        raise JobConflict(f"{ahead[0]}: {_place(ahead[1])} was not there when the job began")


def frozen_runs(task: TaskInput) -> list[LiveRun]:
    return [(task.segments[index].name, run) for index, run in task.runs]


def _key(run: Run) -> tuple[int, int]:
    return run.stream_id, run.first_ordinal
