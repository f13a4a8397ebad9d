"""Reading segments: only the row groups needed, by range requests, through a bounded cache.

What a segment holds and how it is checked is in formats/segment.py and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa

from millstream.errors import DamagedSegment, ObjectTooShort
from millstream.formats.blocks import Block
from millstream.formats.runs import Run, Segment
from millstream.formats.segment_footer import SCHEMA, Footer, decode_footer
from millstream.formats.segment_rows import (
    FoundRow,
    RowGroup,
    decode_columns,
    decode_row_group,
    decode_row_group_of,
)
from millstream.limits import (
    COLD_FETCH_BYTES_MAX,
    DECODES_MAX,
    FOOTER_CACHE_BYTES,
    FOOTER_MEMORY_FACTOR,
    KIB,
)
from millstream.tier.shared_cache import SharedCache

_DECODED_AT_ONCE_BYTES = 64 * KIB  # of a row group as stored; handing it to a thread takes longer


class SegmentStore(Protocol):
    """What a reader needs of an object store; it may block, and is called by many threads."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises ObjectMissing, ObjectTooShort, StoreUnavailable."""
        ...


class SegmentReader:
    """Blocking, and safe to use from many threads.

    An object that is not what was written raises DamagedSegment; nothing of it is returned. Other
    errors of the store pass through: after ObjectMissing the caller plans its read again.
    """

    def __init__(self, store: SegmentStore, cache_bytes: int) -> None:
        self._store = store
        self._decoders = ThreadPoolExecutor(DECODES_MAX, thread_name_prefix="decode")
        self._footers: SharedCache[str, Footer] = SharedCache(FOOTER_CACHE_BYTES, _footer_memory)
        self._row_groups: SharedCache[tuple[str, int], RowGroup] = SharedCache(
            cache_bytes, _row_group_memory
        )

    @property
    def cached_bytes(self) -> int:
        return self._row_groups.used_bytes

    @property
    def cached_row_groups(self) -> int:
        return len(self._row_groups)

    @property
    def arrow_bytes(self) -> int:
        """What Arrow has allocated, here and wherever segments are encoded."""
        return int(pa.total_allocated_bytes())

    def load_runs(self, segment: Segment, runs: Sequence[Run]) -> list[Block]:
        """The wire form of runs of one segment, in the order asked for."""
        name = segment.name

        def load(keys: list[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], RowGroup]]:
            footer = self._footer(segment)

            def decode(fetched: tuple[int, pa.Buffer]) -> tuple[tuple[str, int], RowGroup]:
                index, data = fetched
                return (name, index), decode_row_group(name, footer, index, data)

            for span in self._fetch(segment, footer, [index for _, index in keys]):
                yield from self._decoders.map(decode, span)

        keys = [(name, index) for index in sorted({run.row_group for run in runs})]
        row_groups = self._row_groups.get(keys, load)
        return [row_groups[name, run.row_group].block(name, run) for run in runs]

    def load_rows_of(
        self, segment: Segment, runs: Sequence[Run], key: bytes
    ) -> list[list[FoundRow]]:
        """Of each run the messages that have this key. Of what is not in the cache the keys are
        decoded first, and the rest only where the key is."""
        name = segment.name
        wanted = sorted({run.row_group for run in runs})
        found = self._row_groups.kept([(name, index) for index in wanted])
        missing = [index for index in wanted if (name, index) not in found]
        if missing:
            found.update(self._load_row_groups_of(segment, missing, key))
        row_groups = ((run, found.get((name, run.row_group))) for run in runs)
        return [[] if each is None else each.rows_of(name, run, key) for run, each in row_groups]

    def _load_row_groups_of(
        self, segment: Segment, row_groups: Sequence[int], key: bytes
    ) -> Iterator[tuple[tuple[str, int], RowGroup]]:
        """Those in which a row has this key; they are in the cache from now on."""
        name, footer = segment.name, self._footer(segment)

        def decode(fetched: tuple[int, pa.Buffer]) -> tuple[int, RowGroup | None]:
            index, data = fetched
            return index, decode_row_group_of(name, footer, index, data, key)

        for span in self._fetch(segment, footer, row_groups):
            is_small = len(span) == 1 and len(span[0][1]) <= _DECODED_AT_ONCE_BYTES
            decoded = map(decode, span) if is_small else self._decoders.map(decode, span)
            for index, row_group in decoded:
                if row_group is not None:
                    self._row_groups.put((name, index), row_group)
                    yield (name, index), row_group

    def load_table(self, segment: Segment, row_groups: Sequence[int]) -> pa.Table:
        """All columns of these row groups, in ascending order. The cache is left alone."""
        footer = self._footer(segment)
        batches = [
            decode_columns(segment.name, footer, index, data)
            for span in self._fetch(segment, footer, sorted(set(row_groups)))
            for index, data in span
        ]
        return pa.Table.from_batches(batches, schema=SCHEMA)

    def _footer(self, segment: Segment) -> Footer:
        def load(names: list[str]) -> Iterator[tuple[str, Footer]]:
            start = segment.size - segment.footer_bytes
            data = self._get_range(segment, start, segment.footer_bytes)
            footer = decode_footer(segment.name, data, segment.size)
            _check_rows(segment, footer)
            yield segment.name, footer

        return self._footers.get([segment.name], load)[segment.name]

    def _fetch(
        self, segment: Segment, footer: Footer, row_groups: Sequence[int]
    ) -> Iterator[list[tuple[int, pa.Buffer]]]:
        """Row groups with their bytes; neighbours come in one request, and together."""
        borders = footer.borders
        for first, last in _spans(segment, borders, row_groups):
            start = borders[first]
            data = pa.py_buffer(self._get_range(segment, start, borders[last + 1] - start))
            yield [
                (index, data.slice(borders[index] - start, borders[index + 1] - borders[index]))
                for index in range(first, last + 1)
            ]

    def _get_range(self, segment: Segment, start: int, length: int) -> bytes:
        try:
            return self._store.get_range(segment.name, start, length)
        except ObjectTooShort as error:
            expected = f"of {segment.size} bytes"
            raise DamagedSegment(segment.name, "the object", expected, error.message) from error


def _spans(
    segment: Segment, borders: Sequence[int], row_groups: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """First and last row group of each request: neighbours, as long as they are not too much."""
    if row_groups and not 0 <= row_groups[0] <= row_groups[-1] < len(borders) - 1:
        expected = f"to have row groups {row_groups[0]} to {row_groups[-1]}"
        raise DamagedSegment(segment.name, "the object", expected, f"{len(borders) - 1}")
    first = last = -1
    for index in row_groups:
        bytes_in_all = borders[index + 1] - borders[first]
        if first >= 0 and index == last + 1 and bytes_in_all <= COLD_FETCH_BYTES_MAX:
            last = index
            continue
        if first >= 0:
            yield first, last
        first = last = index
    if first >= 0:
        yield first, last


def _check_rows(segment: Segment, footer: Footer) -> None:
    rows = footer.metadata.num_rows
    if rows != segment.rows:
        raise DamagedSegment(segment.name, "the object", f"of {segment.rows} rows", f"{rows} rows")


def _footer_memory(footer: Footer) -> int:
    serialized: int = footer.metadata.serialized_size
    return FOOTER_MEMORY_FACTOR * serialized


def _row_group_memory(row_group: RowGroup) -> int:
    return row_group.nbytes
