"""The whole server and the whole pipeline, each a process: what clients see of a compaction."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.spark.pipeline_process import Pipeline
from tests.support.http import Client
from tests.support.seaweed import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SeaweedFS
from tests.support.server import ServerProcess, running_server

TEXT = {"Content-Type": "text/plain"}
# Most is cold, in many small segments that the catalog soon knows; no pipeline but the test's.
SMALL = (
    *("--hot-bytes", "1MiB", "--shards", "1", "--checkpoint-wal-bytes", "512KiB"),
    *("--pipeline", "external", "--idle-timeout", "15m", "--log-level", "warning"),
)
GET_REQUESTS = re.compile(rb'millstream_cold_requests_total\{kind="get"\} ([0-9.]+)')


@contextlib.contextmanager
def cold_server(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """The server, and what the pipeline's environment needs to reach its store."""
    flags, keys = list(SMALL), dict[str, str]()
    if kind == "s3":
        seaweed: SeaweedFS = request.getfixturevalue("seaweed")
        flags += seaweed.flags(f"end-to-end-{random.randrange(2**32):08x}")
        keys["MILLSTREAM_COLD_ACCESS_KEY_ID"] = ACCESS_KEY_ID
        keys["MILLSTREAM_COLD_SECRET_ACCESS_KEY"] = SECRET_ACCESS_KEY
    with running_server(folder / "data", *flags) as server:
        yield server, keys


class Streams:
    """Clients' own memory of what they wrote: bytes, and the offset behind each append."""

    def __init__(self, client: Client, count: int, seed: int) -> None:
        print(f"seed {seed}")
        self._numbers = random.Random(seed)
        self._client = client
        self.content: dict[str, bytearray] = {}
        self.offsets: dict[str, list[tuple[str, int]]] = {}
        for number in range(count):
            path = f"/v1/stream/spark/s{number}"
            assert client.put(path, headers=TEXT).status == 201
            self.content[path], self.offsets[path] = bytearray(), []

    def append(self, path: str, data: bytes) -> None:
        reply = self._client.post(path, data, headers=TEXT)
        assert reply.status in (200, 204)
        self.content[path] += data
        self.offsets[path].append((reply.next_offset, len(self.content[path])))

    def append_round(self, message_bytes: int) -> None:
        for path in self.content:
            self.append(path, self._numbers.randbytes(self._numbers.randint(1, message_bytes)))

    def check(self, client: Client, sample: int | None = None) -> None:
        """From the start, and from an offset that was handed out long ago."""
        paths = list(self.content)
        for path in paths if sample is None else self._numbers.sample(paths, sample):
            content = bytes(self.content[path])
            assert read_from(client, path, "-1", len(content)) == content
            offset, byte = self._numbers.choice(self.offsets[path])
            assert read_from(client, path, offset, len(content) - byte) == content[byte:]


def read_from(client: Client, path: str, offset: str, size: int) -> bytes:
    data = b""
    while len(data) < size:
        reply = client.get(f"{path}?offset={offset}")
        assert reply.status == 200
        assert reply.body
        data, offset = data + reply.body, reply.next_offset
    return data


def compact(server: ServerProcess, keys: dict[str, str]) -> str:
    """Runs the pipeline until a job was committed; segments become known by checkpoints."""
    deadline = time.monotonic() + 120
    while True:
        code, output = Pipeline(server.url, "--once", environment=keys).wait()
        assert code == 0, output
        if "job committed" in output:
            return output
        assert time.monotonic() < deadline, output


@pytest.mark.parametrize("kind", ["fs", "s3"])
def test_streams_read_back_the_same_before_during_and_after(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with cold_server(kind, tmp_path, request) as (server, keys):
        streams = Streams(server.client(), 200, random.randrange(2**32))
        for _ in range(60):
            streams.append_round(2000)
        streams.check(server.client())
        stopped = threading.Event()

        def read() -> int:
            rounds = 0
            while not stopped.is_set():
                streams.check(server.client(), sample=10)
                rounds += 1
            return rounds

        with ThreadPoolExecutor(1) as readers:
            reading = readers.submit(read)
            try:
                compact(server, keys)
            finally:
                stopped.set()
            assert reading.result() > 0
        streams.append_round(2000)
        streams.check(server.client())
        assert server.stop() == 0
        again = ServerProcess(server.data_dir, *server.flags)
        try:
            streams.check(again.client())
        finally:
            again.kill()


def test_a_pipeline_killed_at_random_points_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    with cold_server("fs", tmp_path, request) as (server, keys):
        streams = Streams(server.client(), 200, seed)
        for _ in range(60):
            streams.append_round(2000)
        for _ in range(4):
            pipeline = Pipeline(server.url, "--interval", "0.2", environment=keys)
            try:
                time.sleep(5 + 10 * numbers.random())
                pipeline.kill()
                pipeline.wait_all_gone()
            finally:
                pipeline.end()
            streams.check(server.client(), sample=20)
            streams.append_round(2000)
        code, output = Pipeline(server.url, "--once", environment=keys).wait()
        assert code == 0, output
        streams.check(server.client())


@pytest.mark.timeout(900)
def test_ten_thousand_small_appends_are_read_with_a_tenth_of_the_requests(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with cold_server("fs", tmp_path, request) as (server, keys):
        client = server.client()
        streams = Streams(client, 10_001, random.randrange(2**32))
        one, *others = streams.content
        for number in range(10_000):
            streams.append(one, b"%099d\n" % number)
            streams.append(others[number], b"%0999d\n" % number)
        before = requests_to_read(server, streams, one)
        compact(server, keys)
        after = requests_to_read(server, streams, one)
        print(f"{before} requests before, {after} after")
        assert after <= before / 10


def requests_to_read(server: ServerProcess, streams: Streams, path: str) -> float:
    """Reads other streams first, so that little of this one is in the cache."""
    client = server.client()
    for other in list(streams.content)[1:2000]:
        read_from(client, other, "-1", len(streams.content[other]))
    counted = get_requests(client)
    content = bytes(streams.content[path])
    assert read_from(client, path, "-1", len(content)) == content
    return get_requests(client) - counted


def get_requests(client: Client) -> float:
    found = GET_REQUESTS.search(client.get("/metrics").body)
    assert found is not None
    return float(found[1])
