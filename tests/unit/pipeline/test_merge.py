from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream.formats.blocks import Block
from millstream.formats.jobs import TaskInput
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.segment import Content, encode_segment
from millstream.pipeline import merge
from millstream.pipeline.merge import RowMerge
from millstream.tier.segments import SegmentReader
from tests.unit.tier.segment_folder import SegmentFolder


class Streams:
    """Messages of a few streams over several segments, and the task that takes all of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        print(f"seed {seed}")
        numbers = random.Random(seed)
        self.folder = SegmentFolder(folder)
        self.rows: list[tuple[int, int, bytes]] = []
        self.known: dict[tuple[int, int], tuple[int, bytes | None]] = {}  # time and key
        self.segments: list[Segment] = []
        self.runs: list[tuple[int, Run]] = []
        places = dict.fromkeys(range(1, 30), (0, 0))
        for index in range(6):
            contents = []
            for stream_id in sorted(numbers.sample(range(1, 30), 20)):
                ordinal, byte = places[stream_id]
                messages = [numbers.randbytes(numbers.randint(0, 20_000)) for _ in range(3)]
                keys = [numbers.choice([None, b"", b"key %d" % stream_id]) for _ in messages]
                blocks = [
                    Block(message, None, 1000 + index, key)
                    for message, key in zip(messages, keys, strict=True)
                ]
                self.known.update(
                    {(stream_id, ordinal + k): (1000 + index, key) for k, key in enumerate(keys)}
                )
                contents.append(Content(StreamId(stream_id), b"b/s", False, ordinal, byte, blocks))
                self.rows += [(stream_id, ordinal + k, data) for k, data in enumerate(messages)]
                places[stream_id] = (ordinal + 3, byte + sum(map(len, messages)))
            encoded = encode_segment(contents, store_id="x", shard=3)
            self.segments.append(self.folder.store(encoded, f"segments/0003/{index}.parquet"))
            self.runs += [(index, run) for run in encoded.runs]
        self.runs.sort(key=lambda item: (item[1].stream_id, item[1].first_ordinal))
        self.rows.sort()

    def merged(self, runs: list[tuple[int, Run]]) -> list[tuple[int, int, bytes]]:
        reader = SegmentReader(self.folder, 0)
        found = []
        for table in RowMerge(reader, TaskInput(self.segments, runs)):
            columns = (table[name].to_pylist() for name in ("stream_id", "ordinal", "data"))
            found += list(zip(*columns, strict=True))
        return found


@pytest.mark.parametrize("piece_bytes", [1, 100_000, 10**9])
def test_rows_come_in_the_order_of_stream_and_ordinal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(merge, "PIECE_BYTES", piece_bytes)
    streams = Streams(tmp_path, random.randrange(2**32))
    assert streams.merged(streams.runs) == streams.rows


def test_every_row_group_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "PIECE_BYTES", 100_000)
    streams = Streams(tmp_path, 4)
    streams.merged(streams.runs)
    assert len(streams.folder.reads) == len(set(streams.folder.reads))


def test_what_no_run_covers_is_left_behind(tmp_path: Path) -> None:
    streams = Streams(tmp_path, random.randrange(2**32))
    kept = [item for item in streams.runs if item[1].stream_id % 3 and item[0] != 2]
    expected = {
        (run.stream_id, ordinal)
        for _, run in kept
        for ordinal in range(run.first_ordinal, run.end_ordinal)
    }
    assert streams.merged(kept) == [row for row in streams.rows if row[:2] in expected]


def test_a_missing_segment_is_the_stores_own_error(tmp_path: Path) -> None:
    streams = Streams(tmp_path, 1)
    (tmp_path / streams.segments[3].name).unlink()
    with pytest.raises(OSError, match=r"no object segments/0003/3\.parquet"):
        streams.merged(streams.runs)
