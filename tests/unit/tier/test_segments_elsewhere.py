"""Programs that are not ours read the segments as the Parquet files they are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest

from tests.unit.formats.segment_contents import NOON_MS, content, encode
from tests.unit.tier.segment_folder import SegmentFolder


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A folder of two segments: an orders stream in both, a text stream in one."""
    store = SegmentFolder(tmp_path / "cold")
    orders = [b'{"amount":%d}' % amount for amount in range(100, 200)]
    older = content(3, orders[:60])
    newer = content(3, orders[60:], first_ordinal=60, first_byte=60 * 15)
    text = content(19, [b"one", b"two"], is_json=False)
    store.store(encode(older, text), "segments/0003/older.parquet")
    store.store(encode(newer), "segments/0003/newer.parquet")
    return store.folder


def test_duckdb_counts_the_messages_of_every_stream(cold: Path) -> None:
    query = f"""
        select stream, count(*), max(ordinal), max(byte_end), epoch_ms(max(append_ms))
        from '{cold}/**/*.parquet' group by stream order by stream
    """
    assert duckdb.execute(query).fetchall() == [
        ("bucket/stream-19", 2, 1, 6, NOON_MS + 19),
        ("bucket/stream-3", 100, 99, 1500, NOON_MS + 3),
    ]


def test_duckdb_reads_fields_of_json_messages(cold: Path) -> None:
    query = f"""
        select ordinal, (decode(data)::json->>'amount')::int
        from '{cold}/**/*.parquet' where stream = 'bucket/stream-3' and ordinal >= 98
        order by ordinal
    """
    assert duckdb.execute(query).fetchall() == [(98, 198), (99, 199)]


def test_pyarrow_reads_a_stream_out_of_the_folder(cold: Path) -> None:
    dataset = ds.dataset(cold, format="parquet")
    table = dataset.to_table(filter=ds.field("stream_id") == 3).sort_by("ordinal")
    assert table["ordinal"].to_pylist() == list(range(100))
    assert table["data"][99].as_py() == b'{"amount":199}'
    assert table["append_ms"][0].as_py() == datetime.fromtimestamp((NOON_MS + 3) / 1000, UTC)
