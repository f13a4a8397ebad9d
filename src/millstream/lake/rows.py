"""Rows of segments as an Arrow dataset over any object store, and hot content as a table.

Arrow asks for the ranges that the wanted columns and row groups need, and only for those.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from millstream.errors import ObjectMissing
from millstream.formats.runs import Segment
from millstream.formats.segment import encode_segment
from millstream.formats.segment_footer import SCHEMA
from millstream.lake.live import HOT, Live
from millstream.tier.objects import ObjectStore

ROW_SCHEMA = SCHEMA.append(pa.field("segment", pa.int64()))


class SegmentFiles(pafs.FileSystemHandler):  # type: ignore[misc]
    """Objects of a cold store as Arrow wants files. `is_missing`: one was gone already."""

    def __init__(self, objects: ObjectStore, sizes: dict[str, int]) -> None:
        self._objects = objects
        self._sizes = sizes
        self.is_missing = False

    def get_type_name(self) -> str:
        return "millstream"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [pafs.FileInfo(p, pafs.FileType.File, size=self._sizes[p]) for p in paths]

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_Object(self, self._objects, path, self._sizes[path]), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any) -> Any:
        raise OSError("segments are only read")

    get_file_info_selector = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


class _Object(io.RawIOBase):
    def __init__(self, files: SegmentFiles, objects: ObjectStore, name: str, size: int) -> None:
        self._files = files
        self._objects = objects
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = base[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._position
        size = left if size < 0 else min(size, left)
        try:
            data = self._objects.get_range(self._name, self._position, size)
        except ObjectMissing:
            self._files.is_missing = True
            raise
        self._position += size
        return data


def segment_rows(files: SegmentFiles, segments: Sequence[Segment]) -> ds.Dataset | pa.Table:
    """All rows of the segments, live or not, with the index of the segment."""
    if not segments:
        return ROW_SCHEMA.empty_table()
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    filesystem = pafs.PyFileSystem(files)
    fragments = [
        parquet.make_fragment(
            segment.name, filesystem, partition_expression=ds.field("segment") == index
        )
        for index, segment in enumerate(segments)
    ]
    return ds.FileSystemDataset(fragments, ROW_SCHEMA, parquet, filesystem)


def hot_rows(live: Live) -> pa.Table:
    """What is in no segment yet, in the same columns. It was in a server's memory as well."""
    if not live.hot:
        return ROW_SCHEMA.empty_table()
    encoded = encode_segment(live.hot, store_id=live.store_id, shard=0)
    table = pq.read_table(pa.BufferReader(encoded.data))
    return table.append_column("segment", pa.array([HOT] * len(table), pa.int64()))
