"""The whole server as a process: what clients see of a compaction.

The pipeline is a process of its own where that matters; elsewhere its jobs run on the session that
all tests share.
Garbage goes at once here, so what was replaced is soon missing under whoever still reads it.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from tests.spark.server_world import BYTES_MAX, POINTS, ROUNDS, STREAMS, World, run_once, seeded
from tests.spark.written_streams import WrittenStreams, again_and_again
from tests.support.http import Client

GET_REQUESTS = re.compile(rb'millstream_cold_requests_total\{kind="get"\} ([0-9.]+)')


@contextlib.contextmanager
def reading_and_writing(streams: WrittenStreams, numbers: random.Random) -> Iterator[None]:
    """Two readers and a writer are at it throughout, and none of them sees anything wrong."""
    stopped = threading.Event()
    chances = [random.Random(numbers.randrange(2**32)) for _ in range(3)]

    def write() -> None:
        """So little that it does not make work for a pipeline again and again."""
        streams.append_rounds(chances[2], 1, BYTES_MAX // 20)
        stopped.wait(0.5)

    def read(number: int) -> None:
        streams.check(chances[number], sample=5)
        stopped.wait(0.1)

    with ThreadPoolExecutor(3) as clients:
        working = [
            clients.submit(again_and_again, functools.partial(read, 0), stopped.is_set),
            clients.submit(again_and_again, functools.partial(read, 1), stopped.is_set),
            clients.submit(again_and_again, write, stopped.is_set),
        ]
        try:
            yield
        finally:
            stopped.set()
        assert all(done.result() > 0 for done in working)


@pytest.mark.parametrize("kind", ["fs", "s3"])
def test_streams_read_back_the_same_before_during_and_after(
    kind: str, request: pytest.FixtureRequest, session: SparkSession
) -> None:
    world: World = request.getfixturevalue(f"{kind}_world")
    numbers = seeded()
    streams = WrittenStreams(world.start(), STREAMS)
    streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
    streams.check(numbers)
    with reading_and_writing(streams, numbers):
        world.compact(session)
    streams.check(numbers)
    streams.server = world.restart()
    streams.check(numbers)


@pytest.mark.timeout(900)  # where others use the machine, too
def test_a_pipeline_killed_at_random_points_loses_nothing(
    fs_world: World, session: SparkSession
) -> None:
    world, numbers = fs_world, seeded()
    streams = WrittenStreams(world.start(), STREAMS)
    points = numbers.sample(sorted(POINTS), 3)
    print(f"killed at {points}")
    for point in points:
        streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
        with reading_and_writing(streams, numbers):
            kill_at(world, point, numbers.random() * 0.2)
        streams.check(numbers, sample=10)
    streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
    world.compact(session)
    streams.check(numbers)


def kill_at(world: World, point: str, seconds_later: float) -> None:
    seen = len(world.requests())
    pipeline = world.pipeline("--interval", "0.2")
    try:
        world.wait_for(point, seen)
        time.sleep(seconds_later)
        pipeline.kill()
        pipeline.wait_all_gone()
    finally:
        pipeline.end()
    world.server.process.send_signal(signal.SIGUSR1)  # the lease of the job it had


def test_two_pipelines_at_once_do_no_harm(fs_world: World) -> None:
    world, numbers = fs_world, seeded()
    streams = WrittenStreams(world.start(), STREAMS)
    streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
    with reading_and_writing(streams, numbers):
        output = run_once(world.pipeline("--once"), world.pipeline("--once"))
    assert "job committed" in output
    streams.check(numbers)


def test_ten_thousand_small_appends_are_read_with_a_tenth_of_the_requests(
    fs_world: World, session: SparkSession
) -> None:
    world = fs_world
    streams = WrittenStreams(world.start(), 10_001)
    one, *others = streams.content
    streams.append(
        append
        for number, other in enumerate(others)
        for append in ((one, b"%099d\n" % number), (other, b"%0999d\n" % number))
    )
    before = requests_to_read(world, streams, one)
    world.compact(session)
    after = requests_to_read(world, streams, one)
    print(f"{before} requests before, {after} after")
    assert after <= before / 10


def requests_to_read(world: World, streams: WrittenStreams, path: str) -> float:
    """By a new server, which has nothing in its memory."""
    streams.server = world.restart()
    with contextlib.closing(streams.server.client()) as client:
        counted = get_requests(client)
        streams.check_from(client, path, "-1", 0)
        return get_requests(client) - counted


def get_requests(client: Client) -> float:
    found = GET_REQUESTS.search(client.get("/metrics").body)
    assert found is not None
    return float(found[1])
