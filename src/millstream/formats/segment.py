"""Segments: Parquet objects that hold runs of many streams (docs/formats/segment.md shows them).

magic | row group … row group | footer | footer length u32 | magic

Rows are sorted by stream and ordinal. They are written here; next door are the checksums
(segment_footer.py) and the way back (segment_rows.py). A row holds a message without the comma that
JSON mode has behind it on the wire; `byte_end` and the runs count with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream import __version__
from millstream.formats.blocks import Block
from millstream.formats.key_filters import NO_KEYS, Hashes, hash_key, make_filter
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run
from millstream.formats.segment_footer import SCHEMA, seal_footer, unsealed_metadata
from millstream.formats.segment_rows import Bools, Int64s, Wire, int64s, wire_form
from millstream.formats.wal import crc32c
from millstream.limits import (
    MIB,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS_MAX,
    SHARED_ROW_GROUP_BYTES,
    SHARED_ROW_GROUP_ROWS_MAX,
)

__all__ = ["SCHEMA", "Content", "EncodedSegment", "SegmentBuilder", "encode_segment"]

# Level 1: on JSON of 256 bytes it is twice as fast as level 3 and no larger.
_ZSTD_LEVEL = 1
# The others are packed; zstd's set-up would cost more than it saves.
_COMPRESSED = ("stream", "key", "data")
_PAGE_BYTES = 2 * MIB  # more than a row group, so that a column is one page there
_COMMA = ord(",")


class Content(NamedTuple):
    """What a segment shall hold of one stream: contiguous messages from a boundary on."""

    stream_id: StreamId
    path: bytes
    is_json: bool
    first_ordinal: int
    first_byte: int
    blocks: Sequence[Block]


class EncodedSegment(NamedTuple):
    data: bytes
    runs: list[Run]  # in the order of their rows
    rows: int
    footer_bytes: int  # from the start of the footer to the end of the data


def encode_segment(contents: Iterable[Content], *, store_id: str, shard: int) -> EncodedSegment:
    """A whole segment. `contents` come in the order of their stream ids, each stream once."""
    rows = _Rows(list(contents))
    writer = _Writer(store_id, shard)
    for first, last in _row_groups(rows.wire_ends, rows.stream_ids, rows.has_key, whole=True):
        writer.write(rows.columns(first, last), rows.wire_of(first, last))
    return writer.finish()


class SegmentBuilder:
    """Writes a segment from rows as they are read from other segments.

    The segment and its runs are the same however the rows are cut into tables.
    """

    def __init__(self, store_id: str, shard: int) -> None:
        self._writer = _Writer(store_id, shard)
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._last = (-1, -1)

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        """Rows in the order of stream id and ordinal, behind all that were added before."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if table.num_rows == 0:
            return
        table = table.select(SCHEMA.names).cast(SCHEMA)
        self._check_order(table)
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        self._pending_rows += table.num_rows
        if self._pending_bytes >= 4 * ROW_GROUP_BYTES or self._pending_rows > ROW_GROUP_ROWS_MAX:
            self._write_pending(whole=False)

    def finish(self) -> EncodedSegment:
        self._write_pending(whole=True)
        return self._writer.finish()

    def _check_order(self, table: pa.Table) -> None:
        stream_ids, ordinals = int64s(table["stream_id"]), int64s(table["ordinal"])
        ascends = (stream_ids[1:] > stream_ids[:-1]) | (
            (stream_ids[1:] == stream_ids[:-1]) & (ordinals[1:] > ordinals[:-1])
        )
        first = (int(stream_ids[0]), int(ordinals[0]))
        if first <= self._last or not ascends.all():
            raise ValueError("rows of a segment must be sorted by stream_id and ordinal")
        self._last = (int(stream_ids[-1]), int(ordinals[-1]))

    def _write_pending(self, whole: bool) -> None:
        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        sizes = int64s(pc.binary_length(table["data"]).cast(pa.int64()))
        wire_ends = np.zeros(table.num_rows + 1, np.int64)
        np.cumsum(sizes + _bools(table["is_json"]), out=wire_ends[1:])
        written = 0
        stream_ids, has_key = int64s(table["stream_id"]), _bools(table["key"].is_valid())
        for first, last in _row_groups(wire_ends, stream_ids, has_key, whole):
            columns = table.slice(first, last - first).combine_chunks().to_batches()
            assert len(columns) == 1  # a row group is far below the 2 GiB of an Arrow array
            self._writer.write(columns[0], wire_form(columns[0]))
            written = last
        rest = table.slice(written)
        self._pending = [rest] if rest.num_rows else []
        self._pending_bytes = int(wire_ends[-1] - wire_ends[written])
        self._pending_rows = rest.num_rows


class _Rows:
    """The rows of many contents: the wire bytes in one piece, everything else in arrays."""

    def __init__(self, contents: Sequence[Content]) -> None:
        blocks = [block for content in contents for block in content.blocks]
        datas = [block.data for block in blocks]
        counts = np.array([block.count for block in blocks], np.int64)
        sizes = np.fromiter(map(len, datas), np.int64, len(datas))
        blocks_of = np.array([len(content.blocks) for content in contents], np.int64)
        block_starts = np.cumsum(sizes) - sizes
        block_rows = np.cumsum(counts) - counts

        self.wire = pa.py_buffer(b"".join(datas))
        rows = int(counts.sum())
        self.wire_ends = np.zeros(rows + 1, np.int64)
        self.wire_ends[1:] = _message_ends(blocks, counts, sizes)
        self.wire_ends[1:] += np.repeat(block_starts, counts)
        self.times = _message_times(blocks, counts)
        self._keys = _message_keys(blocks)
        self.has_key = np.zeros(rows, bool) if self._keys is None else _is_keyed(self._keys)

        # Contents without blocks have no rows, so their places below do not matter.
        first_blocks = np.minimum(np.cumsum(blocks_of) - blocks_of, max(len(blocks) - 1, 0))
        row_counts = np.zeros(len(contents), np.int64)
        np.add.at(row_counts, np.repeat(np.arange(len(contents)), blocks_of), counts)
        self.content_of = np.repeat(np.arange(len(contents)), row_counts)
        stream_ids = np.array([content.stream_id for content in contents], np.int64)
        assert (stream_ids[1:] > stream_ids[:-1]).all(), "contents come in stream order"
        first_ordinals = np.array([content.first_ordinal for content in contents], np.int64)
        first_bytes = np.array([content.first_byte for content in contents], np.int64)
        if rows:
            first_ordinals -= block_rows[first_blocks]
            first_bytes -= block_starts[first_blocks]
        self.stream_ids = stream_ids[self.content_of]
        self.ordinals = np.arange(rows) + first_ordinals[self.content_of]
        self.byte_ends = self.wire_ends[1:] + first_bytes[self.content_of]
        self.is_json = np.array([content.is_json for content in contents], bool)[self.content_of]
        self.paths = pa.array([content.path for content in contents], pa.binary()).cast(pa.utf8())
        self._check_commas()

    def _check_commas(self) -> None:
        wire = np.frombuffer(self.wire, np.uint8)
        assert (wire[self.wire_ends[1:][self.is_json] - 1] == _COMMA).all(), "JSON has commas"

    def columns(self, first: int, last: int) -> pa.RecordBatch:
        rows = slice(first, last)
        is_json = pa.array(self.is_json[rows])
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.stream_ids[rows]),
                self.paths.take(pa.array(self.content_of[rows])),
                pa.array(self.ordinals[rows]),
                pa.array(self.byte_ends[rows]),
                pa.array(self.times[rows]).view(SCHEMA.field("append_ms").type),
                self._keys_of(first, last),
                is_json,
                self._messages(first, last, is_json),
            ],
            schema=SCHEMA,
        )

    def _keys_of(self, first: int, last: int) -> pa.Array:
        if self._keys is None:
            return pa.nulls(last - first, pa.binary())
        return self._keys.slice(first, last - first)

    def _messages(self, first: int, last: int, is_json: pa.BooleanArray) -> pa.Array:
        """Column `data`: the messages without their commas."""
        ends = self.wire_ends[first : last + 1]
        begin = int(ends[0])
        offsets = pa.py_buffer((ends - begin).astype(np.int32))
        wire = self.wire.slice(begin, int(ends[-1]) - begin)
        messages = pa.Array.from_buffers(pa.binary(), last - first, [None, offsets, wire])
        json_rows = is_json.true_count
        if json_rows == 0:
            return messages
        cut = pc.binary_slice(messages, 0, -1)
        return cut if json_rows == last - first else pc.if_else(is_json, cut, messages)

    def wire_of(self, first: int, last: int) -> Wire:
        ends = self.wire_ends[first : last + 1]
        begin = int(ends[0])
        return Wire(self.wire.slice(begin, int(ends[-1]) - begin), ends - begin)


def _message_ends(blocks: Sequence[Block], counts: Int64s, sizes: Int64s) -> Int64s:
    """The end of every message, relative to its block."""
    message_ends = np.repeat(sizes, counts)
    several = [block.ends is not None for block in blocks]
    if any(several):
        joined = b"".join([block.ends for block in blocks if block.ends is not None])
        message_ends[np.repeat(several, counts)] = np.frombuffer(joined, np.uint32)
    return message_ends


def _message_times(blocks: Sequence[Block], counts: Int64s) -> Int64s:
    all_times = [block.times for block in blocks]
    single = [times if isinstance(times, int) else 0 for times in all_times]
    message_times = np.repeat(np.array(single, np.int64), counts)
    several = [not isinstance(times, int) for times in all_times]
    if any(several):
        joined = b"".join([times for times in all_times if not isinstance(times, int)])
        message_times[np.repeat(several, counts)] = np.frombuffer(joined, np.int64)
    return message_times


def _message_keys(blocks: Sequence[Block]) -> pa.Array | None:
    """None: no message has one."""
    all_keys = [block.keys for block in blocks]
    if all_keys.count(None) == len(all_keys):
        return None
    each = (
        block.keys if isinstance(block.keys, tuple) else (block.keys,) * block.count
        for block in blocks
    )
    return pa.array(list(chain.from_iterable(each)), pa.binary())


def _row_groups(
    wire_ends: Int64s, stream_ids: Int64s, has_key: Bools, whole: bool
) -> Iterable[tuple[int, int]]:
    """First and last row of each row group; without `whole` only of those that rows behind what is
    here would not change."""
    first, rows = 0, len(stream_ids)
    while first < rows:
        last = _row_group_end(wire_ends, stream_ids, first, has_large=not has_key[first])
        if last >= rows and not whole:
            return
        yield first, last
        first = last


def _row_group_end(wire_ends: Int64s, stream_ids: Int64s, first: int, has_large: bool) -> int:
    """A stream that is large enough has its row groups alone, and large ones if it `has_large`: it
    is read in sequence. Where messages have keys, a reader of one key decodes a row group for each
    of them, so they are small. Other streams share small ones, because a reader of one of them
    decodes all. Those end in front of a stream when that leaves them at least half full: fewer
    streams are in two of them.
    """
    own_end = int(np.searchsorted(stream_ids, stream_ids[first], "right"))
    last = _rows_that_fit(wire_ends, first, SHARED_ROW_GROUP_BYTES, SHARED_ROW_GROUP_ROWS_MAX)
    if own_end >= last and not has_large:
        return last
    if own_end >= last:
        return min(own_end, _rows_that_fit(wire_ends, first, ROW_GROUP_BYTES, ROW_GROUP_ROWS_MAX))
    if last < len(stream_ids) and stream_ids[last] == stream_ids[last - 1]:
        border = int(np.searchsorted(stream_ids, stream_ids[last]))
        if border > first and wire_ends[border] - wire_ends[first] >= SHARED_ROW_GROUP_BYTES // 2:
            return border
    return last


def _rows_that_fit(wire_ends: Int64s, first: int, bytes_max: int, rows_max: int) -> int:
    last = int(np.searchsorted(wire_ends, wire_ends[first] + bytes_max, "right")) - 1
    return min(max(last, first + 1), first + rows_max, len(wire_ends) - 1)


class _Writer:
    """Writes row groups, and notes the runs that are in them."""

    def __init__(self, store_id: str, shard: int) -> None:
        self._store_id = store_id
        self._shard = shard
        self._sink = pa.BufferOutputStream()
        self._file = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression={name: "zstd" if name in _COMPRESSED else "none" for name in SCHEMA.names},
            compression_level=dict.fromkeys(_COMPRESSED, _ZSTD_LEVEL),
            use_dictionary=["stream"],
            column_encoding=dict.fromkeys(
                ("stream_id", "ordinal", "byte_end", "append_ms"), "DELTA_BINARY_PACKED"
            ),
            write_statistics=["stream_id", "ordinal", "append_ms", "key"],
            sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(2)],
            data_page_size=_PAGE_BYTES,
            max_rows_per_page=ROW_GROUP_ROWS_MAX,
            write_page_checksum=True,
            store_schema=False,
        )
        self._borders = [self._sink.tell()]
        self._runs: list[Run] = []
        self._rows = 0

    def write(self, columns: pa.RecordBatch, wire: Wire) -> None:
        """One row group."""
        self._runs += _runs(columns, wire, len(self._borders) - 1)
        self._rows += columns.num_rows
        self._file.write_batch(columns, row_group_size=columns.num_rows)
        self._borders.append(self._sink.tell())

    def finish(self) -> EncodedSegment:
        row_groups = len(self._borders) - 1
        self._file.add_key_value_metadata(
            unsealed_metadata(self._store_id, self._shard, __version__, row_groups)
        )
        self._file.close()
        data = seal_footer(self._sink.getvalue(), self._borders)
        return EncodedSegment(data, self._runs, self._rows, len(data) - self._borders[-1])


def _runs(columns: pa.RecordBatch, wire: Wire, row_group: int) -> list[Run]:
    """A run ends where the stream does, and where messages between two rows are elsewhere."""
    stream_ids, ordinals = int64s(columns["stream_id"]), int64s(columns["ordinal"])
    ends = int64s(columns["byte_end"])
    begins = ends - np.diff(wire.ends)
    joined = (
        (stream_ids[1:] == stream_ids[:-1])
        & (ordinals[1:] == ordinals[:-1] + 1)
        & (begins[1:] == ends[:-1])
    )
    firsts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    lasts = np.append(firsts[1:], len(ends))
    wire_firsts, wire_lasts = wire.ends[firsts], wire.ends[lasts]
    slice_of = wire.data.slice
    crcs = [
        crc32c(slice_of(first, last - first))
        for first, last in zip(wire_firsts.tolist(), wire_lasts.tolist(), strict=True)
    ]
    times = int64s(columns["append_ms"].view(pa.int64()))
    return list(
        map(
            Run,
            stream_ids[firsts].tolist(),
            ordinals[firsts].tolist(),
            begins[firsts].tolist(),
            (lasts - firsts).tolist(),
            (wire_lasts - wire_firsts).tolist(),
            [row_group] * len(crcs),
            firsts.tolist(),
            crcs,
            times[firsts].tolist(),
            times[lasts - 1].tolist(),
            _key_filters(columns["key"], firsts, lasts),
        )
    )


def _key_filters(keys: pa.Array, firsts: Int64s, lasts: Int64s) -> list[bytes]:
    """Of the rows from each of `firsts` up to its one of `lasts`."""
    if keys.null_count == len(keys):
        return [NO_KEYS] * len(firsts)
    hashes, is_keyed = _key_hashes(keys)
    before = np.concatenate(([0], np.cumsum(is_keyed)))  # of each row, how many of these hashes
    bounds = zip(before[firsts].tolist(), before[lasts].tolist(), strict=True)
    return [make_filter(hashes[first:last]) for first, last in bounds]


def _key_hashes(keys: pa.Array) -> tuple[Hashes, Bools]:
    """Of the rows that have a key, and which these are. Every key is hashed once."""
    encoded = keys.drop_null().dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
    hashes = np.array([hash_key(key) for key in distinct], np.uint64)
    is_keyed = _is_keyed(keys)
    return hashes[encoded.indices.to_numpy()], is_keyed


def _is_keyed(keys: pa.Array) -> Bools:
    is_keyed: Bools = keys.is_valid().to_numpy(zero_copy_only=False)
    return is_keyed


def _bools(column: pa.ChunkedArray) -> Bools:
    bools: Bools = column.to_numpy()
    return bools
