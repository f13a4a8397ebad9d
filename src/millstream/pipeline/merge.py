"""The rows of many segments, in the order of stream and ordinal.

Every run is sorted in itself and the list of runs is sorted too, so nothing has to be compared:
rows are taken in the order of the list. What no run of the list covers is left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.formats.jobs import TaskInput, cut_runs
from millstream.formats.runs import Run
from millstream.limits import MIB
from millstream.tier.segments import SegmentReader

PIECE_BYTES = 16 * MIB  # taken at a time: the next is loaded while this one is written
PIECE_RUNS = 100_000
LOAD_THREADS = 8  # requests to the object store at once; most of their time is waiting

_Place = tuple[int, int]  # index of the segment, row group
_Piece = list[tuple[int, Run]]


class RowMerge:
    """Iterate for tables of about PIECE_BYTES, sorted within and across.

    A row group is loaded once and held until its last run is taken: at most one of each segment
    beside the piece in hand and the one behind it.
    """

    def __init__(self, reader: SegmentReader, task: TaskInput) -> None:
        self._reader = reader
        self._segments = task.segments
        self._runs = task.runs
        self._waiting = Counter((index, run.row_group) for index, run in task.runs)
        self._loaded: dict[_Place, pa.RecordBatch] = {}

    def __iter__(self) -> Iterator[pa.Table]:
        pieces = cut_runs(self._runs, PIECE_BYTES, PIECE_RUNS)
        with (
            ThreadPoolExecutor(LOAD_THREADS) as loaders,
            ThreadPoolExecutor(1) as ahead,
        ):
            following: Future[pa.Table] | None = None
            for piece in pieces:
                current, following = following, ahead.submit(self._take, piece, loaders)
                if current is not None:
                    yield current.result()
            if following is not None:
                yield following.result()

    def _take(self, piece: _Piece, loaders: ThreadPoolExecutor) -> pa.Table:
        places = sorted({(index, run.row_group) for index, run in piece})
        self._load([place for place in places if place not in self._loaded], loaders)
        table = take_rows(piece, self._loaded)
        self._waiting.subtract((index, run.row_group) for index, run in piece)
        for place in places:
            if self._waiting[place] == 0:
                del self._loaded[place]
        return table

    def _load(self, places: Sequence[_Place], loaders: ThreadPoolExecutor) -> None:
        wanted: dict[int, list[int]] = {}
        for index, row_group in places:
            wanted.setdefault(index, []).append(row_group)
        tables = loaders.map(
            lambda item: self._reader.load_table(self._segments[item[0]], item[1]), wanted.items()
        )
        for (index, row_groups), table in zip(wanted.items(), tables, strict=True):
            for row_group, batch in zip(row_groups, table.to_batches(), strict=True):
                self._loaded[index, row_group] = batch


def take_rows(piece: _Piece, loaded: dict[_Place, pa.RecordBatch]) -> pa.Table:
    """The rows of these runs, in this order."""
    bounds: dict[_Place, tuple[int, int]] = {}
    for index, run in piece:
        first, last = bounds.get((index, run.row_group), (run.row, run.row))
        bounds[index, run.row_group] = (min(first, run.row), max(last, run.row + run.count))
    parts, moved, rows = [], dict[_Place, int](), 0
    for place, (first, last) in bounds.items():
        parts.append(loaded[place].slice(first, last - first))
        moved[place] = rows - first
        rows += last - first
    table = pa.Table.from_batches(parts)
    starts = np.array([moved[index, run.row_group] + run.row for index, run in piece], np.int64)
    counts = np.array([run.count for _, run in piece], np.int64)
    indexes = _ranges(starts, counts)
    if len(indexes) == rows and (np.diff(indexes) == 1).all():
        return table
    return table.combine_chunks().take(pa.array(indexes))


def _ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """All numbers from each start on, as many as its count."""
    befores = np.cumsum(counts) - counts
    return np.repeat(starts - befores, counts) + np.arange(int(counts.sum()))
