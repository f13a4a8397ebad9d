"""The rows of a segment on their way back: from the bytes of a row group to the wire form.

The *wire form* is what readers of a stream get: the messages one behind the other, in JSON mode
each with a comma behind it.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.errors import DamagedSegment
from millstream.formats.blocks import Block, Ends, Keys, Times
from millstream.formats.runs import Run
from millstream.formats.segment_footer import SCHEMA, Footer
from millstream.formats.wal import crc32c

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_READ = ["stream_id", "ordinal", "byte_end", "append_ms", "is_json", "data"]
_KEY = SCHEMA.get_field_index("key")


class Wire(NamedTuple):
    """The wire form of consecutive rows."""

    data: pa.Buffer  # not bytes: it is made in Arrow's memory, and most of it is never asked for
    ends: Int64s  # one more than rows: where each begins, and the end of the last


def wire_form(columns: pa.RecordBatch) -> Wire:
    """From the columns `is_json` and `data` of some rows."""
    data, is_json = columns["data"], columns["is_json"]
    json_rows = is_json.true_count
    if json_rows == len(data):
        return _json_wire_form(data)
    if json_rows:
        comma, nothing = pa.scalar(b",", pa.binary()), pa.scalar(b"", pa.binary())
        data = pc.binary_join_element_wise(data, pc.if_else(is_json, comma, nothing), nothing)
    ends = _ends(data)
    return Wire(_bytes_of(data, ends), ends - ends[0])


def _wire_ends(data: pa.Array, is_json: pa.BooleanArray) -> Int64s:
    """As in `Wire`, without making it."""
    ends = _ends(data)
    ends -= ends[0]
    if is_json.true_count:
        ends[1:] += np.cumsum(is_json.to_numpy(zero_copy_only=False))
    return ends


def _json_wire_form(data: pa.Array) -> Wire:
    """Three times as fast as what mixed rows need: the whole column is joined at once, with
    nothing as one more value, so that there is a comma behind the last one too."""
    ends = _ends(data)
    one_more = pa.py_buffer(np.append(ends, ends[-1]).astype(np.int32))
    values = pa.Array.from_buffers(
        pa.binary(), len(data) + 1, [None, one_more, data.buffers()[2]], null_count=0
    )
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined = pc.binary_join(whole, pa.scalar(b",", pa.binary()))
    wire = _bytes_of(joined, _ends(joined))
    return Wire(wire, ends - ends[0] + np.arange(len(ends)))


def _ends(data: pa.Array) -> Int64s:
    """Where each value begins in the array's bytes, and the end of the last."""
    offsets = np.frombuffer(data.buffers()[1], np.int32)
    return offsets[data.offset : data.offset + len(data) + 1].astype(np.int64)


def _bytes_of(data: pa.Array, ends: Int64s) -> pa.Buffer:
    buffer = data.buffers()[2]
    start, end = int(ends[0]), int(ends[-1])
    return pa.py_buffer(b"") if buffer is None else buffer.slice(start, end - start)


def int64s(column: pa.Array | pa.ChunkedArray) -> Int64s:
    integers: Int64s = column.to_numpy()
    return integers


def decode_columns(
    name: str,
    footer: Footer,
    row_group: int,
    data: pa.Buffer,
    columns: Sequence[str] = SCHEMA.names,
) -> pa.RecordBatch:
    """Some columns of a row group, from all its bytes, which are checked."""
    return _Columns(name, footer, row_group, data).decode(columns)


class _Columns:
    """The bytes of a row group, checked; columns are decoded when they are asked for."""

    def __init__(self, name: str, footer: Footer, row_group: int, data: pa.Buffer) -> None:
        self._name, self._footer, self._row_group = name, footer, row_group
        crc = crc32c(data)
        if crc != footer.crcs[row_group]:
            place, expected = f"row group {row_group}", f"{footer.crcs[row_group]:08x}"
            raise DamagedSegment(name, f"the CRC32C of {place}", expected, f"{crc:08x}")
        piece = _Piece(data, footer.borders[row_group], footer.borders[-1])
        self._source = pa.PythonFile(piece, mode="r")
        self._file: pq.ParquetFile | None = None

    def decode(self, columns: Sequence[str]) -> pa.RecordBatch:
        try:
            if self._file is None:
                self._file = pq.ParquetFile(
                    self._source,
                    metadata=self._footer.metadata,
                    page_checksum_verification=True,
                    pre_buffer=False,
                )
            table = self._file.read_row_group(
                self._row_group, columns=list(columns), use_threads=False
            )
        except (pa.ArrowException, OSError) as error:
            place = f"row group {self._row_group}"
            raise DamagedSegment(self._name, place, "sound Parquet", str(error)) from error
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        assert len(batches) == 1  # a row group is never empty and never near 2 GiB
        return batches[0]


class _Piece(io.RawIOBase):
    """The bytes of one row group at their place in an object that is otherwise not here."""

    def __init__(self, data: pa.Buffer, start: int, object_bytes: int) -> None:
        self._data = data
        self._start = start
        self._object_bytes = object_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._object_bytes}
        self._position = base[whence] + offset
        return self._position

    def read_buffer(self, size: int) -> pa.Buffer:
        """Arrow asks for this by name, and copies nothing then."""
        inside = self._position - self._start
        if inside < 0 or inside + size > len(self._data):
            raise OSError(f"a page lies outside of its row group: {size} bytes at {inside}")
        self._position += size
        return self._data.slice(inside, size)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.read_buffer(size).to_pybytes()
        return data


class FoundRow(NamedTuple):
    """One message, as on the wire, and where it begins in its stream."""

    ordinal: int
    byte: int
    time_ms: int
    data: bytes


class RowGroup:
    """A decoded row group, and what tells whose rows these are.

    Without its wire form it is one for single rows; that is made when the first run is asked for.
    """

    __slots__ = (
        "_columns",
        "_wire",
        "byte_ends",
        "ends",
        "keys",
        "nbytes",
        "ordinals",
        "stream_ids",
        "times",
    )
    nbytes: int

    def __init__(self, columns: pa.RecordBatch, keys: pa.Array | None, wire: Wire | None) -> None:
        """`keys` are None when no message has one."""
        self._columns: pa.RecordBatch | None = None
        self._wire: pa.Buffer | None = None
        if wire is not None:
            self._wire, self.ends = wire
        else:
            self._columns = columns.select(["is_json", "data"])
            self.ends = _wire_ends(columns["data"], columns["is_json"])
        self.stream_ids = int64s(columns["stream_id"])
        self.ordinals = int64s(columns["ordinal"])
        self.byte_ends = int64s(columns["byte_end"])
        self.times = int64s(columns["append_ms"].view(pa.int64()))
        self.keys = keys
        self.nbytes = int(self.ends[-1]) + 40 * len(self.times)
        if keys is not None:
            self.nbytes += keys.nbytes

    def block(self, name: str, run: Run) -> Block:
        """One run, checked against what the catalog knows of it."""
        first, last = run.row, run.row + run.count
        self._check_rows(name, run, first, last)
        start, end = self.ends[[first, last]].tolist()
        data = self._wire_data().slice(start, end - start).to_pybytes()
        crc = crc32c(data)
        if crc != run.crc:
            place = f"the CRC32C of {_place(run)}"
            raise DamagedSegment(name, place, f"{run.crc:08x}", f"{crc:08x}")
        ends, times = self._ends(first, last), self._times(first, last)
        return Block(data, ends, times, self._keys(first, last))

    def rows_of(self, name: str, run: Run, key: bytes) -> list[FoundRow]:
        """The run's messages that have exactly this key; it is checked that they are the run's."""
        if self.keys is None:
            return []
        self._check_rows(name, run, run.row, run.row + run.count)
        found = pc.equal(self.keys.slice(run.row, run.count), pa.scalar(key, pa.binary()))
        indexes = np.flatnonzero(found.fill_null(False).to_numpy(zero_copy_only=False)) + run.row
        return [self._found_row(name, run, index) for index in indexes.tolist()]

    def _found_row(self, name: str, run: Run, index: int) -> FoundRow:
        ordinal = run.first_ordinal + index - run.row
        found = (int(self.stream_ids[index]), int(self.ordinals[index]))
        if found != (run.stream_id, ordinal):
            expected = f"stream {run.stream_id}, message {ordinal}"
            place = f"row {index} of row group {run.row_group}"
            raise DamagedSegment(name, place, expected, "stream {}, message {}".format(*found))
        data = self._message(index)
        return FoundRow(
            ordinal, int(self.byte_ends[index]) - len(data), int(self.times[index]), data
        )

    def _message(self, index: int) -> bytes:
        columns = self._columns
        if columns is not None:
            message: bytes = columns["data"][index].as_py()
            return message + b"," if columns["is_json"][index].as_py() else message
        start, end = self.ends[index : index + 2].tolist()
        wire: bytes = self._wire_data().slice(start, end - start).to_pybytes()
        return wire

    def _wire_data(self) -> pa.Buffer:
        """Threads may come at once; then it is made twice."""
        columns = self._columns
        if columns is not None:
            self._wire = wire_form(columns).data
            self._columns = None  # after the other is there
        return self._wire

    def _check_rows(self, name: str, run: Run, first: int, last: int) -> None:
        rows = len(self.times)
        if last > rows:
            raise DamagedSegment(name, _place(run), "there", f"a row group of {rows} rows")
        expected = (
            *(run.stream_id, run.stream_id),
            *(run.first_ordinal, run.end_ordinal - 1),
            *(run.end_byte, run.size),
        )
        found = (
            *(int(self.stream_ids[first]), int(self.stream_ids[last - 1])),
            *(int(self.ordinals[first]), int(self.ordinals[last - 1])),
            *(int(self.byte_ends[last - 1]), int(self.ends[last] - self.ends[first])),
        )
        if found != expected:
            raise DamagedSegment(name, _place(run), _describe(*expected), _describe(*found))

    def _ends(self, first: int, last: int) -> Ends | None:
        if last - first == 1:
            return None
        ends = self.ends[first + 1 : last + 1] - self.ends[first]
        return array("I", ends.astype(np.uint32).tobytes())

    def _times(self, first: int, last: int) -> Times:
        times = self.times[first:last]
        if (times == times[0]).all():
            return int(times[0])
        return array("Q", times.tobytes())

    def _keys(self, first: int, last: int) -> Keys:
        if self.keys is None:
            return None
        keys = self.keys.slice(first, last - first).to_numpy(zero_copy_only=False).tolist()
        return keys[0] if keys.count(keys[0]) == len(keys) else tuple(keys)


def decode_row_group(name: str, footer: Footer, row_group: int, data: pa.Buffer) -> RowGroup:
    """With its wire form, which is half of the work for JSON: made here, where threads decode."""
    have_keys = _have_keys(footer, row_group)
    read = [*_READ, "key"] if have_keys else _READ
    columns = decode_columns(name, footer, row_group, data, read)
    return RowGroup(columns, columns["key"] if have_keys else None, wire_form(columns))


def _have_keys(footer: Footer, row_group: int) -> bool:
    """To decode a column of nothing takes a tenth of the whole."""
    statistics = footer.metadata.row_group(row_group).column(_KEY).statistics
    return statistics is None or statistics.num_values > 0


def decode_row_group_of(
    name: str, footer: Footer, row_group: int, data: pa.Buffer, key: bytes
) -> RowGroup | None:
    """None when no row has this key: then nothing but the keys is decoded."""
    columns = _Columns(name, footer, row_group, data)
    keys = columns.decode(["key"])
    if pc.index(keys["key"], pa.scalar(key, pa.binary())).as_py() < 0:
        return None
    return RowGroup(columns.decode(_READ), keys["key"], None)


def _place(run: Run) -> str:
    return f"rows {run.row} to {run.row + run.count - 1} of row group {run.row_group}"


def _describe(
    stream: int, last_stream: int, ordinal: int, last_ordinal: int, end_byte: int, size: int
) -> str:
    streams = f"stream {stream}" if stream == last_stream else f"streams {stream} to {last_stream}"
    return f"{streams}, messages {ordinal} to {last_ordinal}, {size} bytes up to {end_byte}"
