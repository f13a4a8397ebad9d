from __future__ import annotations

import pytest

from millstream.formats.jobs import (
    ColdPlace,
    JobInput,
    JobOffer,
    TaskInput,
    TaskResult,
    cut_runs,
    decode_offer,
    decode_result,
    decode_task,
    encode_offer,
    encode_task,
)
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment, segment_name

RUN = Run(StreamId(5), 10, 100, 3, 30, 1, 7, 0xFFFFFFFF)
SEGMENT = Segment("segments/0005/a.parquet", 5, 1000, 100, 50, 1)


def test_offers_tasks_and_results_survive_their_encoding() -> None:
    cold = ColdPlace("s3", "s3://b/p", "http://127.0.0.1:1", "eu")
    inputs = [JobInput("a", 1, 2, 3, 4)]
    offer = JobOffer("id", "compact", "store", 5, inputs, 2, 64, 32, 7, 600.0, cold, "why")
    task, result = TaskInput([SEGMENT], [(0, RUN)]), TaskResult([SEGMENT], [[RUN]])
    assert decode_offer(encode_offer(offer)) == offer
    assert decode_task(encode_task(task)) == task
    assert decode_result(encode_task(result)) == result


@pytest.mark.parametrize("data", [b"", b"{}", b"\x91\x01", b"nonsense"])
def test_what_is_none_of_them_is_a_value_error(data: bytes) -> None:
    for decode in (decode_offer, decode_task, decode_result):
        with pytest.raises(ValueError):
            decode(data)


def test_segments_are_named_by_shard_and_time() -> None:
    name = "segments/0003/1750000000000-0badcafe.parquet"
    assert segment_name(3, 1_750_000_000_000, "0badcafe") == name


def test_a_piece_that_is_full_goes_on_to_the_end_of_its_stream_but_not_for_long() -> None:
    runs = [
        ("s", Run(StreamId(stream), k, k * 10, 1, 10, 0, 0, 0))
        for stream in range(3)
        for k in range(4)
    ]
    assert [len(piece) for piece in cut_runs(runs, 25, 1000)] == [4, 4, 4]
    assert [len(piece) for piece in cut_runs(runs, 15, 1000)] == [3, 3, 2, 3, 1]
    assert list(cut_runs([], 15, 1000)) == []
