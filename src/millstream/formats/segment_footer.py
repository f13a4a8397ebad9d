"""The columns of a segment and its footer, with the checksums that Parquet does not have.

Parquet has a checksum for the content of a page, but none for the headers of pages and none for
the footer. Ours are in the key-value metadata: `millstream.crc32c` is
"footer:XXXXXXXX row_groups:XXXXXXXXXXXXXXXX…", eight hexadecimal digits each. The first is of
the footer with these eight digits as zeros; then one of all bytes of each row group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import DamagedSegment
from millstream.formats.wal import crc32c

FORMAT = 1
SCHEMA = pa.schema(
    [
        pa.field("stream_id", pa.int64(), nullable=False),
        pa.field("stream", pa.utf8(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("byte_end", pa.int64(), nullable=False),
        pa.field("append_ms", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("is_json", pa.bool_(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)

_MAGIC = b"PAR1"
_FIRST_ROW_GROUP = len(_MAGIC)
_TAIL_BYTES = 8  # length of the footer and magic
_KEY = b"millstream.crc32c"
_FOOTER_MARK = b"footer:"
_ROW_GROUPS_MARK = b"row_groups:"
_DIGITS = 8
_UNKNOWN = b"0" * _DIGITS


class Footer(NamedTuple):
    metadata: pq.FileMetaData
    crcs: list[int]  # of the bytes of each row group
    borders: list[int]  # where each row group begins, and the end of the last


def unsealed_metadata(store_id: str, shard: int, writer: str, row_groups: int) -> dict[str, str]:
    """What goes into the key-value metadata, with zeros where `seal_footer` puts checksums."""
    crcs = f"footer:{_UNKNOWN.decode()} row_groups:{_UNKNOWN.decode() * row_groups}"
    return {
        "millstream.format": str(FORMAT),
        "millstream.store_id": store_id,
        "millstream.shard": str(shard),
        "millstream.writer": writer,
        _KEY.decode(): crcs,
    }


def seal_footer(unsealed: pa.Buffer, borders: Sequence[int]) -> bytes:
    """The whole segment with its checksums. `borders` are as in `Footer`."""
    footer = bytearray(unsealed.slice(borders[-1]))
    crcs = [crc32c(unsealed.slice(a, b - a)) for a, b in pairwise(borders)]
    _put_digits(footer, footer.rindex(_ROW_GROUPS_MARK) + len(_ROW_GROUPS_MARK), crcs)
    _put_digits(footer, footer.rindex(_FOOTER_MARK) + len(_FOOTER_MARK), [crc32c(bytes(footer))])
    return b"".join((memoryview(unsealed)[: borders[-1]], footer))


def _put_digits(footer: bytearray, position: int, crcs: Iterable[int]) -> None:
    digits = b"".join(b"%08x" % crc for crc in crcs)
    assert not footer[position : position + len(digits)].strip(b"0")
    footer[position : position + len(digits)] = digits


def decode_footer(name: str, footer: bytes, object_bytes: int) -> Footer:
    """From the bytes of the footer of object `name`, which is `object_bytes` long in all."""
    _check_frame(name, footer)
    _check_seal(name, footer)
    try:
        file = pq.ParquetFile(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowException, OSError) as error:
        raise DamagedSegment(name, "the footer", "Parquet's", str(error)) from error
    metadata = file.metadata
    values = metadata.metadata or {}
    if values.get(b"millstream.format") != b"%d" % FORMAT:
        found = values.get(b"millstream.format", b"none").decode(errors="replace")
        raise DamagedSegment(name, "the format", f"{FORMAT}, which this version reads", found)
    schema = file.schema_arrow  # not metadata.schema: that and the metadata would hold each other
    if not schema.equals(SCHEMA):
        raise DamagedSegment(name, "the schema", "that of a segment", str(schema))
    digits = values[_KEY].partition(_ROW_GROUPS_MARK)[2]
    crcs = [int(digits[at : at + _DIGITS], 16) for at in range(0, len(digits), _DIGITS)]
    borders = [_row_group_start(metadata, index) for index in range(metadata.num_row_groups)]
    return Footer(metadata, crcs, [*borders, object_bytes - len(footer)])


def _check_frame(name: str, footer: bytes) -> None:
    if footer[-4:] != _MAGIC:
        raise DamagedSegment(name, "its end", repr(_MAGIC), repr(footer[-4:]))
    length = int.from_bytes(footer[-_TAIL_BYTES:-4], "little")
    if length != len(footer) - _TAIL_BYTES:
        expected = f"of {len(footer) - _TAIL_BYTES} bytes"
        raise DamagedSegment(name, "the footer", expected, f"{length} bytes")


def _check_seal(name: str, footer: bytes) -> None:
    position = footer.rfind(_FOOTER_MARK) + len(_FOOTER_MARK)
    expected = footer[position : position + _DIGITS]
    found = b"%08x" % crc32c(footer[:position] + _UNKNOWN + footer[position + _DIGITS :])
    if expected != found:
        raise DamagedSegment(
            name, "the CRC32C of the footer", expected.decode(errors="replace"), found.decode()
        )


def _row_group_start(metadata: pq.FileMetaData, row_group: int) -> int:
    column = metadata.row_group(row_group).column(0)
    start: int = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start
