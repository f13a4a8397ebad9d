from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from millstream.errors import DamagedSegment, ObjectMissing
from millstream.formats.blocks import Block
from millstream.formats.layout import StreamId
from millstream.formats.segment import SCHEMA, Content, EncodedSegment
from millstream.formats.segment_footer import Footer, decode_footer
from millstream.formats.segment_rows import FoundRow
from millstream.limits import KIB, MIB
from millstream.tier import segments
from millstream.tier.segments import SegmentReader
from tests.unit.formats.segment_contents import NOON_MS, content, encode
from tests.unit.tier.segment_folder import SegmentFolder

FEW = [content(number, [b'{"n":%d}' % number] * (number % 3 + 1)) for number in range(40)]
LARGE = content(3, [b"%0200d" % number for number in range(40_000)], first_byte=7)  # 8 MB


@pytest.fixture
def store(tmp_path: Path) -> SegmentFolder:
    return SegmentFolder(tmp_path)


def footer_of(encoded: EncodedSegment) -> Footer:
    return decode_footer("name", encoded.data[-encoded.footer_bytes :], len(encoded.data))


def test_runs_are_loaded_in_the_order_asked_for(store: SegmentFolder) -> None:
    encoded = encode(*FEW)
    segment = store.store(encoded)
    blocks = SegmentReader(store, MIB).load_runs(segment, [encoded.runs[7], encoded.runs[2]])
    assert blocks[0] == Block(b'{"n":7},{"n":7},', array("I", [8, 16]), NOON_MS + 7)
    assert blocks[1].data == b'{"n":2},' * 3
    assert SegmentReader(store, MIB).load_runs(segment, [encoded.runs[0]])[0].ends is None


def test_only_the_footer_and_the_row_groups_needed_are_read(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    borders = footer_of(encoded).borders
    SegmentReader(store, 64 * MIB).load_runs(segment, [encoded.runs[4]])
    assert [read[1:] for read in store.reads] == [
        (segment.size - segment.footer_bytes, segment.footer_bytes),
        (borders[4], borders[5] - borders[4]),
    ]


def test_neighbouring_row_groups_come_in_one_request(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    borders = footer_of(encoded).borders
    wanted = [encoded.runs[number] for number in (1, 2, 3, 5)]
    SegmentReader(store, 64 * MIB).load_runs(segment, wanted)
    assert [read[1:] for read in store.reads[1:]] == [
        (borders[1], borders[4] - borders[1]),
        (borders[5], borders[6] - borders[5]),
    ]


def test_one_request_is_never_too_large(
    store: SegmentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    limit = 3 * (len(encoded.data) // len(encoded.runs))
    monkeypatch.setattr(segments, "COLD_FETCH_BYTES_MAX", limit)
    blocks = SegmentReader(store, 64 * MIB).load_runs(segment, encoded.runs)
    assert b"".join(block.data for block in blocks) == LARGE.blocks[0].data
    assert len(store.reads) > 3
    assert all(length <= limit for _, _, length in store.reads)


def test_what_is_in_the_cache_is_not_read_again(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    reader = SegmentReader(store, 64 * MIB)
    first = reader.load_runs(segment, encoded.runs)
    reads = len(store.reads)
    assert reader.load_runs(segment, encoded.runs) == first
    assert len(store.reads) == reads
    assert reader.load_runs(segment, encoded.runs[:1]) == first[:1]
    assert len(store.reads) == reads


def test_the_cache_stays_within_its_bytes(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    reader = SegmentReader(store, 3 * MIB)
    for run in encoded.runs:
        reader.load_runs(segment, [run])
        assert reader.cached_bytes <= 3 * MIB
    assert reader.cached_bytes > MIB


def test_threads_that_want_the_same_load_it_once(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    reader = SegmentReader(store, 64 * MIB)
    with ThreadPoolExecutor(8) as threads:
        loads = [threads.submit(reader.load_runs, segment, encoded.runs[:2]) for _ in range(8)]
        assert len({load.result(60)[1].data for load in loads}) == 1
    starts = [start for _, start, _ in store.reads]
    assert len(starts) == len(set(starts))


def keyed_streams() -> list[Content]:
    return [content(n, [b"1", b"2"], keys=(b"key %d" % (n % 3), None)) for n in range(6)]


@pytest.mark.parametrize("is_json", [True, False])
def test_the_messages_of_a_key_are_found_with_their_places(
    store: SegmentFolder, is_json: bool
) -> None:
    streams = [
        content(1, [b"a", b"bc", b"d"], is_json=is_json, first_ordinal=5, first_byte=70, keys=b"k"),
        content(2, [b"e", b"f", b"g"], is_json=is_json, keys=(b"k", None, b"k")),
        content(3, [b"h"], is_json=is_json),
    ]
    encoded = encode(*streams)
    segment, reader = store.store(encoded), SegmentReader(store, MIB)
    comma, wide = (b",", 2) if is_json else (b"", 1)
    expected = [
        [
            FoundRow(5, 70, NOON_MS + 1, b"a" + comma),
            FoundRow(6, 70 + wide, NOON_MS + 1, b"bc" + comma),
            FoundRow(7, 71 + 2 * wide, NOON_MS + 1, b"d" + comma),
        ],
        [
            FoundRow(0, 0, NOON_MS + 2, b"e" + comma),
            FoundRow(2, 2 * wide, NOON_MS + 2, b"g" + comma),
        ],
        [],
    ]
    assert reader.load_rows_of(segment, encoded.runs, b"k") == expected
    assert reader.load_rows_of(segment, encoded.runs, b"k") == expected  # out of the cache
    blocks = reader.load_runs(segment, encoded.runs)
    assert reader.load_rows_of(segment, encoded.runs, b"k") == expected  # out of the wire form
    assert SegmentReader(store, MIB).load_runs(segment, encoded.runs) == blocks


def test_a_row_group_without_the_key_is_not_decoded_and_not_kept(store: SegmentFolder) -> None:
    encoded = encode(*keyed_streams())
    segment, reader = store.store(encoded), SegmentReader(store, MIB)
    assert reader.load_rows_of(segment, encoded.runs, b"another") == [[]] * 6
    assert reader.cached_bytes == 0
    reads = len(store.reads)
    reader.load_rows_of(segment, encoded.runs, b"key 0")
    reader.load_rows_of(segment, encoded.runs, b"key 2")
    assert (len(store.reads) - reads, reader.cached_bytes > 0) == (1, True)


def test_a_key_is_not_found_in_what_is_damaged(store: SegmentFolder) -> None:
    encoded = encode(*keyed_streams())
    damaged = bytearray(encoded.data)
    damaged[20] ^= 1
    segment = store.store(encoded._replace(data=bytes(damaged)))
    with pytest.raises(DamagedSegment, match="the CRC32C of row group 0"):
        SegmentReader(store, MIB).load_rows_of(segment, encoded.runs, b"another")
    segment = store.store(encoded)
    moved = msgspec.structs.replace(encoded.runs[1], first_byte=7)
    with pytest.raises(DamagedSegment, match="should be stream 1"):
        SegmentReader(store, MIB).load_rows_of(segment, [moved], b"key 1")
    bent = encode(content(1, [b"1"] * 3, keys=b"k"), content(2, [b"2"] * 3, keys=b"k"))
    wrong = msgspec.structs.replace(bent.runs[0], count=6, size=12)
    segment = store.store(bent)
    with pytest.raises(DamagedSegment, match="found streams 1 to 2"):
        SegmentReader(store, MIB).load_rows_of(segment, [wrong], b"k")


def test_a_table_has_all_columns_of_the_row_groups_asked_for(store: SegmentFolder) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded)
    reader = SegmentReader(store, MIB)
    table = reader.load_table(segment, [2, 0])
    assert table.schema.equals(SCHEMA)
    ordinals = table["ordinal"].to_pylist()
    runs = (encoded.runs[0], encoded.runs[2])
    assert ordinals == [n for run in runs for n in range(run.first_ordinal, run.end_ordinal)]
    assert reader.cached_bytes == 0
    assert reader.load_table(segment, []).num_rows == 0


def test_a_missing_object_is_told_apart_from_a_damaged_one(store: SegmentFolder) -> None:
    encoded = encode(*FEW)
    segment = store.store(encoded)
    (store.folder / segment.name).unlink()
    with pytest.raises(ObjectMissing):
        SegmentReader(store, MIB).load_runs(segment, encoded.runs)


# Damage


def test_no_flipped_byte_ever_changes_what_is_read(store: SegmentFolder) -> None:
    encoded = encode(*FEW[:6])
    segment = store.store(encoded)
    sound = SegmentReader(store, MIB).load_runs(segment, encoded.runs)
    for position in range(4, len(encoded.data), 2):  # what comes before is Parquet's magic
        damaged = bytearray(encoded.data)
        damaged[position] ^= 1 << position % 8
        store.store(encoded._replace(data=bytes(damaged)))
        with pytest.raises(DamagedSegment, match=segment.name):
            SegmentReader(store, MIB).load_runs(segment, encoded.runs)
        with pytest.raises(DamagedSegment, match=segment.name):
            SegmentReader(store, MIB).load_table(segment, [0])
    store.store(encoded)
    assert SegmentReader(store, MIB).load_runs(segment, encoded.runs) == sound


def test_a_damaged_page_is_reported_by_name_and_the_others_are_served(
    store: SegmentFolder,
) -> None:
    encoded = encode(LARGE)
    footer = footer_of(encoded)
    damaged = bytearray(encoded.data)
    damaged[footer.borders[3] - 1000] ^= 1
    segment = store.store(encoded._replace(data=bytes(damaged)))
    reader = SegmentReader(store, 64 * MIB)
    with pytest.raises(DamagedSegment) as error:
        reader.load_runs(segment, encoded.runs)
    assert error.value.name == segment.name
    assert error.value.place == "the CRC32C of row group 2"
    assert error.value.expected == f"{footer.crcs[2]:08x}"
    for run in encoded.runs:
        if run.row_group != 2:
            start = run.first_byte - LARGE.first_byte
            wire = LARGE.blocks[0].data[start : start + run.size]
            assert reader.load_runs(segment, [run])[0].data == wire


@pytest.mark.parametrize("lost", [1, 100, 100_000])
def test_a_truncated_object_is_damaged(store: SegmentFolder, lost: int) -> None:
    encoded = encode(LARGE)
    segment = store.store(encoded._replace(data=encoded.data[:-lost]))
    segment = msgspec.structs.replace(segment, size=len(encoded.data))
    with pytest.raises(DamagedSegment, match=f"of {len(encoded.data)} bytes"):
        SegmentReader(store, MIB).load_runs(segment, encoded.runs)


def test_another_segment_under_the_same_name_is_not_served(store: SegmentFolder) -> None:
    expected = encode(*FEW)
    other = encode(*[stream._replace(stream_id=StreamId(stream.stream_id + 100)) for stream in FEW])
    segment = store.store(other)
    with pytest.raises(DamagedSegment, match=r"should be stream 0, .* found stream 100"):
        SegmentReader(store, MIB).load_runs(segment, expected.runs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stream_id": 6}, "should be stream 6"),
        ({"row": 0}, "found streams 0 to 1"),
        ({"count": 100}, "row group of 79 rows"),
        ({"first_ordinal": 1}, "messages 1 to 2"),
        ({"first_byte": 8}, "16 bytes up to 24"),
        ({"crc": 1}, "should be 00000001"),
        ({"row_group": 1}, "row groups 1 to 1"),
    ],
)
def test_a_run_that_is_not_in_the_segment_is_not_served(
    store: SegmentFolder, wrong: dict[str, int], message: str
) -> None:
    encoded = encode(*FEW)
    segment = store.store(encoded)
    run = msgspec.structs.replace(encoded.runs[1], **wrong)
    with pytest.raises(DamagedSegment, match=message):
        SegmentReader(store, MIB).load_runs(segment, [run])


def test_a_segment_with_another_number_of_rows_is_not_served(store: SegmentFolder) -> None:
    encoded = encode(*FEW)
    segment = msgspec.structs.replace(store.store(encoded), rows=80)
    with pytest.raises(DamagedSegment, match="of 80 rows, found 79 rows"):
        SegmentReader(store, MIB).load_runs(segment, encoded.runs)


def test_a_large_message_is_read_though_it_does_not_fit_the_cache(store: SegmentFolder) -> None:
    encoded = encode(content(3, [b"x" * (5 * MIB)], is_json=False))
    segment = store.store(encoded)
    reader = SegmentReader(store, 64 * KIB)
    assert reader.load_runs(segment, encoded.runs)[0].data == b"x" * (5 * MIB)
    assert reader.cached_bytes == 0
