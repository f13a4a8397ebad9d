"""The whole server and the whole pipeline, each a process: what clients see of a compaction.

Garbage goes at once here, so what was replaced is soon missing under whoever still reads it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.spark import hasty_server
from tests.spark.pipeline_process import Pipeline
from tests.spark.written_streams import WrittenStreams, again_and_again
from tests.support.http import Client
from tests.support.seaweed import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SeaweedFS
from tests.support.server import ServerProcess

# Most is cold, in many small segments that the catalog soon knows; no pipeline but the test's.
SMALL = (
    *("--hot-bytes", "1MiB", "--flush-bytes", "256KiB", "--shards", "1"),
    *("--checkpoint-wal-bytes", "512KiB", "--catalog-upload-interval", "50ms"),
    *("--pipeline", "external", "--log-level", "warning"),
)
GET_REQUESTS = re.compile(rb'millstream_cold_requests_total\{kind="get"\} ([0-9.]+)')
POINTS = {
    "asked": r"POST .*/compact",
    "task": r"GET .*/tasks/0",
    "result": r"PUT .*/tasks/0",
    "commit": r"POST .*/commit",
}
STREAMS, ROUNDS, BYTES_MAX = 200, 40, 1000


class World:
    """A server, what the environment of its pipelines needs, and who asked for which jobs."""

    def __init__(self, folder: Path, flags: tuple[str, ...], keys: dict[str, str]) -> None:
        self._place = folder / "data", *SMALL, *flags
        self._requests = folder / "requests"
        self.keys = keys
        self.server = ServerProcess(*self._place, module=hasty_server.MODULE)

    def restart(self) -> ServerProcess:
        assert self.server.stop() == 0, self.server.finish_output()
        self.server = ServerProcess(*self._place, module=hasty_server.MODULE)
        return self.server

    def pipeline(self, *flags: str) -> Pipeline:
        return Pipeline(self.server.url, *flags, environment=self.keys)

    def compact(self) -> None:
        """Until a job was committed: segments become known by checkpoints."""
        deadline = time.monotonic() + 120
        while "job committed" not in (output := run_once(self.pipeline("--once"))):
            assert time.monotonic() < deadline, output

    def requests(self) -> list[str]:
        return self._requests.read_text().splitlines() if self._requests.exists() else []

    def wait_for(self, point: str, seen: int) -> None:
        deadline = time.monotonic() + 120
        while not any(re.fullmatch(POINTS[point], line) for line in self.requests()[seen:]):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def run_once(*pipelines: Pipeline) -> str:
    """What they said; all must end well and leave nobody behind."""
    try:
        ends = [pipeline.wait() for pipeline in pipelines]
        for pipeline in pipelines:
            pipeline.wait_all_gone()
    finally:
        for pipeline in pipelines:
            pipeline.end()
    output = "\n".join(output for _, output in ends)
    assert [code for code, _ in ends] == [0] * len(ends), output
    return output


@pytest.fixture
def fs_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from running_world(tmp_path, (), {}, monkeypatch)


@pytest.fixture
def s3_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seaweed: SeaweedFS
) -> Iterator[World]:
    flags = tuple(seaweed.flags(f"end-to-end-{random.randrange(2**32):08x}"))
    keys = {
        "MILLSTREAM_COLD_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "MILLSTREAM_COLD_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
    }
    yield from running_world(tmp_path, flags, keys, monkeypatch)


def running_world(
    folder: Path, flags: tuple[str, ...], keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv(hasty_server.REQUESTS_FILE, str(folder / "requests"))
    world = World(folder, flags, keys)
    try:
        yield world
    finally:
        world.server.kill()


def seeded() -> random.Random:
    seed = int(os.environ.get("MILLSTREAM_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    return random.Random(seed)


@contextlib.contextmanager
def reading_and_writing(streams: WrittenStreams, numbers: random.Random) -> Iterator[None]:
    """Two readers and a writer are at it throughout, and none of them sees anything wrong."""
    stopped = threading.Event()
    seeds = [numbers.randrange(2**32) for _ in range(3)]
    chances = [random.Random(seed) for seed in seeds]

    def write() -> None:
        streams.append_rounds(chances[2], 1, BYTES_MAX)
        stopped.wait(0.2)

    with ThreadPoolExecutor(3) as clients:
        working = [
            clients.submit(again_and_again, lambda: streams.check(chances[0], 5), stopped.is_set),
            clients.submit(again_and_again, lambda: streams.check(chances[1], 5), stopped.is_set),
            clients.submit(again_and_again, write, stopped.is_set),
        ]
        try:
            yield
        finally:
            stopped.set()
        assert all(done.result() > 0 for done in working)


@pytest.mark.parametrize("kind", ["fs", "s3"])
def test_streams_read_back_the_same_before_during_and_after(
    kind: str, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(f"{kind}_world")
    numbers = seeded()
    streams = WrittenStreams(world.server, STREAMS)
    streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
    streams.check(numbers)
    with reading_and_writing(streams, numbers):
        world.compact()
    streams.check(numbers)
    streams.server = world.restart()
    streams.check(numbers)


def test_a_pipeline_killed_at_random_points_loses_nothing(fs_world: World) -> None:
    world, numbers = fs_world, seeded()
    streams = WrittenStreams(world.server, STREAMS)
    points = numbers.sample(sorted(POINTS), 3)
    print(f"killed at {points}")
    for point in points:
        streams.append_rounds(numbers, ROUNDS // 2, BYTES_MAX)
        with reading_and_writing(streams, numbers):
            kill_at(world, point, numbers.random() * 0.2)
        streams.check(numbers, sample=50)
    world.compact()
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
    streams = WrittenStreams(world.server, STREAMS)
    streams.append_rounds(numbers, ROUNDS, BYTES_MAX)
    with reading_and_writing(streams, numbers):
        output = run_once(world.pipeline("--once"), world.pipeline("--once"))
    assert "job committed" in output
    streams.check(numbers)


def test_ten_thousand_small_appends_are_read_with_a_tenth_of_the_requests(fs_world: World) -> None:
    world = fs_world
    streams = WrittenStreams(world.server, 10_001)
    one, *others = streams.content
    streams.append(
        append
        for number, other in enumerate(others)
        for append in ((one, b"%099d\n" % number), (other, b"%0999d\n" % number))
    )
    before = requests_to_read(world, streams, one)
    world.compact()
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
