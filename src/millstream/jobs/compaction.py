"""Compaction, the part that decides: what is worth rewriting, who rewrites what, is it right.

Everything here is a pure function of what the catalog says. The kinds of job that ask it are in
rewrites.py, the rewriting itself is in the pipeline's process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import JobConflict, ResultRefused
from millstream.formats.crc32c import crc32c_combine
from millstream.formats.jobs import TaskInput, TaskResult, cut_runs
from millstream.formats.key_filters import is_filter_sound
from millstream.formats.runs import Run, Segment, is_run_sound, is_segment_sound, segment_folder
from millstream.limits import MIB
from millstream.tier.catalog import Decay, SegmentSpan, SegmentUse

LiveRun = tuple[str, Run]  # name of the segment that holds it, and where in there


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

    def __post_init__(self) -> None:
        """What a job writes must not be worth a job again: at most two new segments are small,
        those of the only two tasks, or one that ends the last task and one that is small in all."""
        assert self.small_min > 2
        assert self.depth_min > 2
        assert self.task_bytes >= 2 * self.target_bytes


@dataclass(frozen=True)
class Choice:
    """Segments of one shard to be rewritten together."""

    shard: int
    inputs: list[SegmentUse]
    reason: str


# What is worth rewriting


def choose_small(
    uses: Iterable[SegmentUse], policy: Policy, busy: Collection[str] = ()
) -> Choice | None:
    """The shard with the most small segments, if they are many. `busy` ones belong to a job."""
    small: dict[int, list[SegmentUse]] = {}
    for use in uses:
        is_small = use.live_bytes < policy.target_bytes // 2
        if is_small and use.live_runs > 0 and use.segment.name not in busy:
            small.setdefault(use.segment.shard, []).append(use)
    shard = max(small, key=lambda shard: (len(small[shard]), -shard), default=0)
    if len(small.get(shard, ())) < policy.small_min:
        return None
    return _limited(shard, small[shard], policy, "many small segments")


def choose_decayed(
    decays: Sequence[Decay], died_before_ms: int, policy: Policy, busy: Collection[str] = ()
) -> Choice | None:
    """Segments with content that died before then, of the shard with the oldest; whatever their
    size. `decays` are sorted by the time of the death."""
    due = [decay.use for decay in decays if decay.since_ms <= died_before_ms]
    free = [use for use in due if use.segment.name not in busy]
    if not free:
        return None
    shard = free[0].segment.shard
    inputs = _first_few([use for use in free if use.segment.shard == shard], policy)
    return Choice(shard, inputs, "content that must go")


def choose_spread(
    shard: int,
    uses: Iterable[SegmentUse],
    spans: Mapping[str, SegmentSpan],
    policy: Policy,
    busy: Collection[str] = (),
) -> Choice | None:
    """Segments of one shard that hold mostly garbage, or that all hold parts of the same streams.

    What a job writes is neither: new segments hold no garbage and lie one behind the other.
    """
    free = [use for use in uses if use.segment.name in spans and use.segment.name not in busy]
    wasteful = [use for use in free if _garbage(use, spans) > policy.garbage_fraction]
    if wasteful:
        return _limited(shard, wasteful, policy, "garbage", inputs_min=1)
    deepest = _deepest(free, spans)
    if len(deepest) >= policy.depth_min:
        return _limited(shard, deepest, policy, "streams spread over many segments")
    return None


def _garbage(use: SegmentUse, spans: Mapping[str, SegmentSpan]) -> float:
    return 1 - spans[use.segment.name].live_rows / max(1, use.segment.rows)


def _deepest(uses: list[SegmentUse], spans: Mapping[str, SegmentSpan]) -> list[SegmentUse]:
    """The largest set of segments that all lie around the same place in the order of streams.

    The first and the last stream of a segment do not count: a stream that fills many segments is
    the last of one and the first of the next, and nothing can be won there.
    """
    best: list[SegmentUse] = []
    active: list[SegmentUse] = []
    for use in sorted(uses, key=lambda use: spans[use.segment.name].first_stream):
        first = spans[use.segment.name].first_stream
        active = [other for other in active if spans[other.segment.name].last_stream > first]
        if spans[use.segment.name].last_stream > first:
            active.append(use)
        if len(active) > len(best):
            best = list(active)
    return best


def _limited(
    shard: int, uses: list[SegmentUse], policy: Policy, reason: str, inputs_min: int = 2
) -> Choice | None:
    """Smallest first, as many as one job may take; None when those are too few to pay."""
    inputs = _first_few(sorted(uses, key=lambda use: (use.live_bytes, use.segment.name)), policy)
    return Choice(shard, inputs, reason) if len(inputs) >= inputs_min else None


def _first_few(uses: Sequence[SegmentUse], policy: Policy) -> list[SegmentUse]:
    """As many as one job may take, one at least."""
    inputs: list[SegmentUse] = []
    size = runs = 0
    for use in uses:
        size += use.live_bytes
        runs += use.live_runs
        is_over = size > policy.job_bytes_max or runs > policy.job_runs_max
        if inputs and (is_over or len(inputs) == policy.inputs_max):
            break
        inputs.append(use)
    return inputs


# Who rewrites what


def cut_tasks(runs: Iterable[LiveRun], live_bytes: int, policy: Policy) -> Iterator[list[LiveRun]]:
    """Tasks of about equal bytes, each a contiguous range of stream ids.

    Two at least, unless there is little to do: one executor would work and the others look on.
    """
    tasks_min = 2 if live_bytes >= policy.target_bytes // 2 else 1
    tasks = max(tasks_min, -(-live_bytes // policy.task_bytes))
    return cut_runs(runs, max(1, live_bytes // tasks), policy.task_runs_max)


def task_input(
    piece: Sequence[LiveRun], segments: dict[str, Segment], cuts: Mapping[int, int]
) -> TaskInput:
    """The same runs with their segments told once."""
    index: dict[str, int] = {}
    runs = [(index.setdefault(name, len(index)), run) for name, run in piece]
    streams = dict.fromkeys(run.stream_id for _, run in piece)
    its_cuts = [(stream_id, cuts[stream_id]) for stream_id in streams if stream_id in cuts]
    return TaskInput([segments[name] for name in index], runs, its_cuts)


# Is it right


def check_result(
    task: TaskInput, result: TaskResult, *, shard: int, taken_names: Collection[str]
) -> None:
    """Raises ResultRefused unless the new runs hold exactly what the old ones held.

    But for what they were to leave out: with that, told as runs, they do.
    """
    _check_segments(task, result, shard, taken_names)
    cuts = dict(task.cuts)
    for run in result.dropped:
        if run.end_ordinal > cuts.get(run.stream_id, 0):
            raise ResultRefused(f"{_place(run)} was left out and is alive")
    new = [run for runs in result.runs for run in runs]
    if result.dropped:
        new = sorted([*new, *result.dropped], key=_key)
    check_same_content([run for _, run in task.runs], new)


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
        folder = segment_folder(shard)
        if not is_segment_sound(segment, shard + 1):
            raise ResultRefused(f"{segment.name} has sizes that cannot be")
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
        if not is_run_sound(run) or not is_filter_sound(run.keys):
            raise ResultRefused(f"{segment.name}: {_place(run)} is told in a way that cannot be")
        row += run.count
    rows = sum(run.count for run in runs)
    if rows != segment.rows:
        raise ResultRefused(f"{segment.name} has {segment.rows} rows and runs of {rows}")


def check_same_content(old: Sequence[Run], new: Sequence[Run]) -> None:
    """Raises ResultRefused unless both cover the same messages with the same bytes.

    Both are cut into the smallest groups that begin and end at the same message; within a group
    the runs join without a gap, and their CRCs combine to the same CRC on both sides.
    """
    old_runs, new_runs = _Runs(old), _Runs(new)
    while (expected := old_runs.take()) is not None:
        found = new_runs.take()
        if found is None:
            raise ResultRefused(f"{_place(expected)} and what follows is missing")
        if _start(expected) != _start(found):
            raise ResultRefused(f"expected {_start(expected)} next, found {_start(found)}")
        while expected.end_ordinal != found.end_ordinal:
            if expected.end_ordinal < found.end_ordinal:
                expected = old_runs.join(expected, "the new runs hold more than there is")
            else:
                found = new_runs.join(found, "the new runs leave something out")
        if (expected.end_byte, expected.crc) != (found.end_byte, found.crc):
            raise ResultRefused(
                f"{_place(expected)}: expected CRC32C {expected.crc:08x} up to byte "
                f"{expected.end_byte}, found {found.crc:08x} up to byte {found.end_byte}"
            )
        if not _have_same_times(expected, found):
            raise ResultRefused(
                f"{_place(expected)}: expected append times from {expected.first_ms} to "
                f"{expected.last_ms}, found {found.first_ms} to {found.last_ms}"
            )
    extra = new_runs.take()
    if extra is not None:
        raise ResultRefused(f"{_place(extra)} was not asked for")


class _Runs:
    """Runs to be taken one by one."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = iter(runs)

    def take(self) -> Run | None:
        return next(self._runs, None)

    def join(self, run: Run, otherwise: str) -> Run:
        """The run together with the next one, which must follow it in the same stream."""
        found = self.take()
        place = (run.stream_id, run.end_ordinal, run.end_byte)
        if found is None or (found.stream_id, found.first_ordinal, found.first_byte) != place:
            raise ResultRefused(f"{_place(run)}: {otherwise} behind message {run.end_ordinal - 1}")
        return Run(
            run.stream_id,
            run.first_ordinal,
            run.first_byte,
            run.count + found.count,
            run.size + found.size,
            run.row_group,
            run.row,
            crc32c_combine(run.crc, found.crc, found.size),
            run.first_ms,
            found.last_ms,
        )


def _have_same_times(run: Run, other: Run) -> bool:
    """As far as they are known."""
    pairs = ((run.first_ms, other.first_ms), (run.last_ms, other.last_ms))
    return all(ms == other_ms or not ms or not other_ms for ms, other_ms in pairs)


def _start(run: Run) -> str:
    return f"stream {run.stream_id}, message {run.first_ordinal}, byte {run.first_byte}"


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


def split_like(
    tasks: Iterable[TaskInput], live: Iterator[LiveRun]
) -> Iterator[tuple[list[LiveRun], list[LiveRun]]]:
    """For each task what it was given, and what of that place is live now.

    Raises JobConflict for live runs behind all of them.
    """
    ahead = next(live, None)
    for task in tasks:
        frozen = [(task.segments[index].name, run) for index, run in task.runs]
        part: list[LiveRun] = []
        while ahead is not None and _key(ahead[1]) <= _key(frozen[-1][1]):
            part.append(ahead)
            ahead = next(live, None)
        yield frozen, part
    if ahead is not None:
        raise JobConflict(f"{ahead[0]}: {_place(ahead[1])} was not there when the job began")


def _key(run: Run) -> tuple[int, int]:
    return run.stream_id, run.first_ordinal
