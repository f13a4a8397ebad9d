from __future__ import annotations

import gc
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamagedSegment
from millstream.formats import segment
from millstream.formats.blocks import Block, Keys
from millstream.formats.key_filters import NO_KEYS, hash_key, may_hold
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, index_problem
from millstream.formats.segment import SCHEMA, Content, EncodedSegment, SegmentBuilder
from millstream.formats.segment_footer import decode_footer
from millstream.formats.segment_rows import decode_columns, decode_row_group
from millstream.formats.wal import crc32c
from millstream.limits import (
    KIB,
    MIB,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS_MAX,
    SHARED_ROW_GROUP_BYTES,
)
from tests.support import blocks
from tests.support.blocks import Message
from tests.unit.effort import brief
from tests.unit.formats.segment_contents import (
    NOON_MS,
    STORE_ID,
    content,
    contents,
    encode,
    messages_of,
    messages_of_run,
)


def table_of(encoded: EncodedSegment) -> pa.Table:
    return pq.read_table(pa.BufferReader(encoded.data), page_checksum_verification=True)


def built(table: pa.Table, rows_per_table: int) -> EncodedSegment:
    builder = SegmentBuilder(STORE_ID, 3)
    for first in range(0, table.num_rows, rows_per_table):
        builder.add(table.slice(first, rows_per_table))
    return builder.finish()


def decoded_block(encoded: EncodedSegment, run: Run) -> Block:
    """A run the way readers get it."""
    footer = decode_footer("name", encoded.data[-encoded.footer_bytes :], len(encoded.data))
    start, end = footer.borders[run.row_group : run.row_group + 2]
    row_group = decode_row_group(
        "name", footer, run.row_group, pa.py_buffer(encoded.data[start:end])
    )
    return row_group.block("name", run)


def decoded_messages(encoded: EncodedSegment, run: Run) -> list[Message]:
    return blocks.messages_of(decoded_block(encoded, run))


@given(contents())
@brief
def test_runs_decode_to_messages_times_and_keys_that_were_encoded(
    streams: list[Content],
) -> None:
    encoded = encode(*streams)
    by_id = {stream.stream_id: stream for stream in streams}
    for run in encoded.runs:
        expected = messages_of_run(by_id[run.stream_id], run)
        assert decoded_messages(encoded, run) == expected
        wire = b"".join(message for message, _, _ in expected)
        assert (run.count, run.size, run.crc) == (len(expected), len(wire), crc32c(wire))


@given(contents())
@brief
def test_a_run_knows_its_times_and_may_hold_every_key_it_has(streams: list[Content]) -> None:
    encoded = encode(*streams)
    by_id = {stream.stream_id: stream for stream in streams}
    for run in encoded.runs:
        expected = messages_of_run(by_id[run.stream_id], run)
        assert (run.first_ms, run.last_ms) == (expected[0].time, expected[-1].time)
        keys = {message.key for message in expected if message.key is not None}
        assert all(may_hold(run.keys, hash_key(key)) for key in keys)
        assert (run.keys == NO_KEYS) == (not keys)
        assert index_problem(run, decoded_block(encoded, run)) is None


@given(contents())
@brief
def test_the_runs_of_a_stream_are_its_content_without_gaps(streams: list[Content]) -> None:
    encoded = encode(*streams)
    assert encoded.rows == sum(len(messages_of(stream)) for stream in streams)
    for stream in streams:
        ordinal, byte = stream.first_ordinal, stream.first_byte
        for run in encoded.runs:
            if run.stream_id == stream.stream_id:
                assert (run.first_ordinal, run.first_byte) == (ordinal, byte)
                ordinal, byte = run.end_ordinal, run.end_byte
        assert ordinal == stream.first_ordinal + len(messages_of(stream))
        assert byte == stream.first_byte + sum(len(block.data) for block in stream.blocks)


@given(contents(), st.integers(1, 50))
@brief
def test_a_builder_writes_the_same_segment_from_rows(streams: list[Content], rows: int) -> None:
    encoded = encode(*streams)
    assert built(table_of(encoded), rows) == encoded


@given(contents(), st.integers(1, 50), st.integers(1, 100), st.integers(1, 8), st.integers(1, 8))
@brief
def test_row_groups_are_the_same_however_rows_come(
    streams: list[Content], rows: int, shared_bytes: int, shared_rows: int, times_larger: int
) -> None:
    limits = {
        "SHARED_ROW_GROUP_BYTES": shared_bytes,
        "SHARED_ROW_GROUP_ROWS_MAX": shared_rows,
        "ROW_GROUP_BYTES": shared_bytes * times_larger,
        "ROW_GROUP_ROWS_MAX": shared_rows * times_larger,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(segment, name, value)
        encoded = encode(*streams)
        assert built(table_of(encoded), rows) == encoded
    assert sum(run.count for run in encoded.runs) == sum(map(len, map(messages_of, streams)))
    for run in encoded.runs:
        assert run.count <= shared_rows * times_larger
        assert run.count == 1 or run.size <= shared_bytes * times_larger


def test_a_row_is_as_documented() -> None:
    encoded = encode(
        content(3, [b'{"a":1}', b"22"], first_ordinal=5, first_byte=100),
        content(19, [b"\x00\xff"], is_json=False),
    )
    table = table_of(encoded)
    assert table.schema.equals(SCHEMA)
    times = table["append_ms"].cast(pa.int64()).to_pylist()
    assert times == [NOON_MS + 3, NOON_MS + 3, NOON_MS + 19]
    assert table.drop_columns("append_ms").to_pydict() == {
        "stream_id": [3, 3, 19],
        "stream": ["bucket/stream-3", "bucket/stream-3", "bucket/stream-19"],
        "ordinal": [5, 6, 0],
        "byte_end": [108, 111, 2],
        "key": [None, None, None],
        "is_json": [True, True, False],
        "data": [b'{"a":1}', b"22", b"\x00\xff"],
    }
    assert encoded.runs == [
        Run(
            *(StreamId(3), 5, 100, 2, 11, 0, 0, crc32c(b'{"a":1},22,')),
            *(NOON_MS + 3, NOON_MS + 3, NO_KEYS),
        ),
        Run(
            *(StreamId(19), 0, 0, 1, 2, 0, 2, crc32c(b"\x00\xff")),
            *(NOON_MS + 19, NOON_MS + 19, NO_KEYS),
        ),
    ]


def test_the_footer_says_where_a_segment_comes_from() -> None:
    metadata = pq.read_metadata(pa.BufferReader(encode(content(3, [b"1"])).data))
    values = metadata.metadata
    assert values[b"millstream.format"] == b"1"
    assert values[b"millstream.store_id"] == STORE_ID.encode()
    assert values[b"millstream.shard"] == b"3"
    assert b"millstream.writer" in values
    assert metadata.row_group(0).column(7).compression == "ZSTD"
    assert [metadata.row_group(0).column(i).is_stats_set for i in range(8)] == [
        name in ("stream_id", "ordinal", "append_ms", "key") for name in SCHEMA.names
    ]


def test_a_segment_of_nothing_has_no_rows_and_no_runs() -> None:
    encoded = encode()
    assert (encoded.runs, encoded.rows, table_of(encoded).num_rows) == ([], 0, 0)
    assert SegmentBuilder(STORE_ID, 3).finish() == encoded


def test_a_large_stream_has_a_run_for_each_mebibyte() -> None:
    encoded = encode(content(3, [b"x" * 1023] * 4096))
    assert [run.size for run in encoded.runs] == [ROW_GROUP_BYTES] * 4
    assert [run.row_group for run in encoded.runs] == [0, 1, 2, 3]


def test_a_large_stream_with_keys_has_small_runs() -> None:
    """A reader of one key decodes a run for each message that has it."""
    plain = content(3, [b"x" * 1023] * 1024)
    blocks = [
        Block(block.data, block.ends, block.times, tuple(b"%d" % row for row in range(block.count)))
        for block in plain.blocks
    ]
    encoded = encode(plain._replace(blocks=blocks))
    assert [run.size for run in encoded.runs] == [SHARED_ROW_GROUP_BYTES] * 4
    assert built(table_of(encoded), 100) == encoded


def test_a_message_larger_than_a_row_group_has_its_own() -> None:
    encoded = encode(content(3, [b"a", b"b" * (5 * MIB), b"c"]))
    assert [(run.row_group, run.count) for run in encoded.runs] == [(0, 1), (1, 1), (2, 1)]
    assert decoded_messages(encoded, encoded.runs[1])[0][0] == b"b" * (5 * MIB) + b","


def test_a_message_of_64_mebibytes_goes_through_and_back() -> None:
    large = b"0123456789abcdef" * (4 * MIB)
    encoded = encode(content(3, [large], is_json=False), content(4, [b"small"]))
    assert decoded_messages(encoded, encoded.runs[0])[0][0] == large
    assert built(table_of(encoded), 1) == encoded


def test_row_groups_are_cut_between_streams_when_that_leaves_them_half_full() -> None:
    streams = [content(number, [b"x" * (300 * KIB)] * 2) for number in range(3)]
    runs = encode(*streams).runs
    assert [(run.stream_id, run.row_group, run.count) for run in runs] == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 2, 2),
    ]


def test_small_streams_share_row_groups_that_are_small() -> None:
    streams = [content(number, [b"x" * (10 * KIB - 1)] * 2) for number in range(100)]
    encoded = encode(*streams)
    sizes = Counter[int]()
    for run in encoded.runs:
        sizes[run.row_group] += run.size
    assert len(encoded.runs) == 100  # none of them is cut in two
    assert len(sizes) == 9
    assert max(sizes.values()) <= SHARED_ROW_GROUP_BYTES


def test_a_stream_that_fills_a_shared_row_group_gets_one_alone() -> None:
    small, large = [b"x" * KIB] * 100, [b"x" * KIB] * 600
    runs = encode(content(1, small), content(2, small), content(3, large), content(4, small)).runs
    assert [(run.stream_id, run.row_group, run.count) for run in runs] == [
        (1, 0, 100),
        (2, 0, 100),
        (3, 1, 600),
        (4, 2, 100),
    ]


def test_tiny_messages_do_not_make_endless_row_groups() -> None:
    encoded = encode(content(3, [b"1"] * (ROW_GROUP_ROWS_MAX + 1)))
    assert [run.count for run in encoded.runs] == [ROW_GROUP_ROWS_MAX, 1]
    assert built(table_of(encoded), 10_000) == encoded


def test_a_run_ends_where_messages_in_between_are_elsewhere() -> None:
    table = table_of(encode(content(3, [b"1", b"2", b"3", b"4"])))
    encoded = built(pa.concat_tables([table.slice(0, 1), table.slice(2)]), 2)
    assert [(run.first_ordinal, run.count, run.first_byte) for run in encoded.runs] == [
        (0, 1, 0),
        (2, 2, 4),
    ]


def test_two_streams_of_one_path_are_kept_apart() -> None:
    old, new = content(3, [b"old"]), content(19, [b"new"])._replace(path=b"bucket/stream-3")
    encoded = encode(old, new)
    assert [decoded_messages(encoded, run)[0][0] for run in encoded.runs] == [b"old,", b"new,"]


def test_a_builder_takes_the_types_that_spark_hands_out() -> None:
    encoded = encode(content(3, [b"1", b"2"]))
    spark = table_of(encoded).cast(
        pa.schema(
            [
                pa.field("stream_id", pa.int64()),
                pa.field("stream", pa.large_utf8()),
                pa.field("ordinal", pa.int64()),
                pa.field("byte_end", pa.int64()),
                pa.field("append_ms", pa.timestamp("us", "UTC")),
                pa.field("key", pa.large_binary()),
                pa.field("is_json", pa.bool_()),
                pa.field("data", pa.large_binary()),
            ]
        )
    )
    builder = SegmentBuilder(STORE_ID, 3)
    for batch in spark.to_batches():
        builder.add(batch)
    assert builder.finish() == encoded


@pytest.mark.parametrize("order", [[1, 0], [0, 0]])
def test_a_builder_refuses_rows_that_are_out_of_order(order: list[int]) -> None:
    table = table_of(encode(content(3, [b"1"]), content(4, [b"2"])))
    builder = SegmentBuilder(STORE_ID, 3)
    with pytest.raises(ValueError, match="sorted"):
        builder.add(table.take(order))
    one_by_one = SegmentBuilder(STORE_ID, 3)
    one_by_one.add(table.slice(order[0], 1))
    with pytest.raises(ValueError, match="sorted"):
        one_by_one.add(table.slice(order[1], 1))


@pytest.mark.parametrize("keys", [b"k", b"", (b"k", None), (None, b"")])
def test_keys_survive_a_rewrite(keys: Keys) -> None:
    encoded = encode(content(3, [b"1", b"2"], keys=keys))
    expected = list(keys) if isinstance(keys, tuple) else [keys] * 2
    again = built(table_of(encoded), 1)
    assert again == encoded
    assert table_of(again)["key"].to_pylist() == expected
    assert decoded_block(again, again.runs[0]).keys == keys


def test_streams_without_keys_beside_others_have_none() -> None:
    encoded = encode(content(3, [b"1"]), content(4, [b"2", b"3"], keys=b"k"), content(5, [b"4"]))
    assert [run.keys == NO_KEYS for run in encoded.runs] == [True, False, True]
    assert [decoded_block(encoded, run).keys for run in encoded.runs] == [None, b"k", None]


def test_parquets_own_checksums_find_a_damaged_page_too() -> None:
    encoded = encode(content(3, [b"%0100d" % number for number in range(100)]))
    footer = decode_footer("name", encoded.data[-encoded.footer_bytes :], len(encoded.data))
    data = bytearray(encoded.data[footer.borders[0] : footer.borders[1]])
    data[-10] ^= 1
    resealed = footer._replace(crcs=[crc32c(bytes(data))])
    with pytest.raises(DamagedSegment, match=r"name is damaged: row group 0 .* CRC"):
        decode_columns("name", resealed, 0, pa.py_buffer(bytes(data)))


def test_what_was_decoded_goes_when_nobody_holds_it() -> None:
    """Without waiting for the garbage collector, which comes late and counts objects, not bytes."""
    encoded = encode(content(3, [b"1", b"2"]))

    def decode() -> None:
        decoded_messages(encoded, encoded.runs[0])

    decode()  # what is made once and stays
    gc.collect()
    decode()
    assert gc.collect() == 0


def test_a_segment_of_another_format_is_refused() -> None:
    encoded = encode(content(3, [b"1"]))
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(encoded), sink)
    data = sink.getvalue().to_pybytes()
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    with pytest.raises(DamagedSegment, match="CRC32C of the footer"):
        decode_footer("name", data[-footer_bytes:], len(data))
