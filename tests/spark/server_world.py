"""A whole server with many small segments and its pipelines, each a process."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.tier.objects import ColdSettings
from tests.spark import hasty_server
from tests.spark.pipeline_process import Pipeline
from tests.spark.shared_session import runner_for
from tests.support.seaweed import cold_flags
from tests.support.server import ServerProcess
from tests.support.waiting import wait_until

# Most is cold, in many small segments that the catalog soon knows; no pipeline but the test's.
SMALL = (
    *("--hot-bytes", "1MiB", "--flush-bytes", "128KiB", "--shards", "1"),
    *("--checkpoint-wal-bytes", "512KiB", "--catalog-upload-interval", "500ms"),
    *("--pipeline", "external", "--log-level", "warning"),
)
POINTS = {
    "asked": r"POST .*/compact",
    "task": r"GET .*/tasks/0",
    "result": r"PUT .*/tasks/0",
    "commit": r"POST .*/commit",
}
STREAMS, ROUNDS, BYTES_MAX = 50, 40, 2000


class World:
    """A server, what the environment of its pipelines needs, and who asked for which jobs."""

    def __init__(self, folder: Path, cold: ColdSettings | None = None) -> None:
        """`cold` is an S3 store; without one segments are files in the folder."""
        self._folder = folder / "data"
        self.requests_file = folder / "requests"
        self._started: list[ServerProcess] = []
        self._flags, self.keys = list[str](), dict[str, str]()
        self.cold = cold or ColdSettings(f"fs:{self._folder}/cold")
        if cold is not None:
            self._flags = cold_flags(cold)
            self.keys = {
                "MILLSTREAM_COLD_ACCESS_KEY_ID": cold.access_key_id,
                "MILLSTREAM_COLD_SECRET_ACCESS_KEY": cold.secret_access_key,
            }

    @property
    def server(self) -> ServerProcess:
        return self._started[-1]

    def start(self, *flags: str) -> ServerProcess:
        """`flags` win over what is said otherwise."""
        every = (*SMALL, *self._flags, *flags)
        self._started.append(ServerProcess(self._folder, *every, module=hasty_server.MODULE))
        return self.server

    def end(self) -> None:
        for server in self._started:
            server.kill()

    def restart(self, *flags: str) -> ServerProcess:
        assert self.server.stop() == 0, self.server.finish_output()
        return self.start(*flags)

    def pipeline(self, *flags: str) -> Pipeline:
        return Pipeline(self.server.url, *flags, environment=self.keys)

    def compact(self, session: SparkSession) -> None:
        """All there is to do, once there is something: segments become known by checkpoints."""
        runner = runner_for(self.server.url, self.cold, session)
        wait_until(runner.run_one, "there is a job")
        while runner.run_one():
            pass

    def requests(self) -> list[str]:
        return self.requests_file.read_text().splitlines() if self.requests_file.exists() else []

    def wait_for(self, point: str, seen: int) -> None:
        deadline = time.monotonic() + 120
        while not any(re.fullmatch(POINTS[point], line) for line in self.requests()[seen:]):
            assert time.monotonic() < deadline, self.requests()[seen:]
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


def seeded() -> random.Random:
    seed = int(os.environ.get("MILLSTREAM_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    return random.Random(seed)
