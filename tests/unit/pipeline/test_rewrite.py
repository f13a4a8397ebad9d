"""Rows become new segments; what is dead is left out, and the server can check that it was that."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.errors import ResultRefused
from millstream.formats.jobs import TaskInput, TaskResult, decode_result, decode_task, encode_task
from millstream.formats.runs import index_problem
from millstream.jobs.compaction import check_result
from millstream.pipeline.rewrite import Target, rewrite
from millstream.tier.objects import ColdSettings, ObjectStore
from millstream.tier.segments import SegmentReader
from tests.support.blocks import messages_of
from tests.unit.pipeline.test_merge import Streams

TARGET = Target("x", 3, 5, 100_000)


def cut_task(streams: Streams, numbers: random.Random) -> TaskInput:
    """Some streams are dead up to somewhere in a run."""
    cuts = []
    for stream_id in sorted({run.stream_id for _, run in streams.runs}):
        if numbers.random() < 0.6:
            first = min(run.first_ordinal for _, run in streams.runs if run.stream_id == stream_id)
            cuts.append((stream_id, first + numbers.randint(1, 2)))
    return decode_task(encode_task(TaskInput(streams.segments, streams.runs, cuts)))


def test_dead_messages_are_left_out_and_told_and_others_keep_their_keys(
    tmp_path: Path,
) -> None:
    streams, numbers = Streams(tmp_path, seed := random.randrange(2**32)), random.Random(seed)
    task = cut_task(streams, numbers)
    cuts: dict[int, int] = dict(task.cuts)
    store = ObjectStore(ColdSettings(f"fs:{tmp_path}"))
    result = decode_result(encode_task(rewrite(task, store, TARGET)))
    check_result(task, result, shard=3, taken_names=())
    alive = [row for row in streams.rows if row[1] >= cuts.get(row[0], 0)]
    kept = [(run.stream_id, run.first_ordinal, run.count) for runs in result.runs for run in runs]
    assert [(s, o + k) for s, o, count in kept for k in range(count)] == [r[:2] for r in alive]
    paths = [tmp_path / segment.name for segment in result.segments]
    tables = [pq.read_table(path, columns=["data"]) for path in paths]
    assert [data for table in tables for data in table["data"].to_pylist()] == [r[2] for r in alive]
    reader = SegmentReader(store, 0)
    for segment, runs in zip(result.segments, result.runs, strict=True):
        for run, block in zip(runs, reader.load_runs(segment, runs), strict=True):
            assert index_problem(run, block) is None
            places = [(run.stream_id, run.first_ordinal + k) for k in range(run.count)]
            found = [(message.time, message.key) for message in messages_of(block)]
            assert found == [streams.known[place] for place in places]
            assert (run.first_ms, run.last_ms) == (found[0][0], found[-1][0])
    stored = b"".join(path.read_bytes() for path in paths)
    for stream_id, ordinal, data in streams.rows:
        if len(data) > 100 and ordinal < cuts.get(stream_id, 0):
            assert data[:100] not in stored


def test_who_leaves_out_what_is_alive_is_refused(tmp_path: Path) -> None:
    streams, numbers = Streams(tmp_path, seed := random.randrange(2**32)), random.Random(seed)
    task = cut_task(streams, numbers)
    [first, *rest] = task.cuts
    result = rewrite(task, ObjectStore(ColdSettings(f"fs:{tmp_path}")), TARGET)
    for cuts in ([(first[0], first[1] - 1), *rest], rest):
        given = TaskInput(task.segments, task.runs, cuts)
        with pytest.raises(ResultRefused, match="left out and is alive"):
            check_result(given, result, shard=3, taken_names=())
    untold = TaskResult(result.segments, result.runs, result.dropped[1:])
    with pytest.raises(ResultRefused):
        check_result(task, untold, shard=3, taken_names=())
