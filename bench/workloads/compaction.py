"""Compaction on a local Spark session: many small segments of many streams become few large ones.

Timed by the pipeline itself, job by job, from the plan to the commit; the start of the session,
once in its life, is not in it. A core is one of the session's; the server works beside them.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.own_server import OwnServer
from bench.payloads import Payloads, in_turn
from bench.plan import Plan
from bench.servers import REPO, ServerKind
from bench.wire import BINARY, HOST, encode_request, send_all, send_bulk

BUCKET = "benchmark"
FLUSH = "/__millstream/flush"
RECORD_BYTES = 256
RECORDS = 16  # in one request
CORES = 2
FLAGS = ("--flush-age", "1s", "--pipeline", "external")
SECONDS_MAX = 1800


@dataclass(frozen=True)
class CompactionCase:
    streams: int
    bytes_in_all: int
    flags: tuple[str, ...]
    parts: int = 1  # each is flushed before the next comes, so that segments are many

    workload: ClassVar[str] = "compaction"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True
    repeats_max: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return label(self.streams, self.bytes_in_all)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        with OwnServer(kind, work_dir, *FLAGS, *self.flags) as own:
            own.start()
            send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
            send_bulk(
                own.port,
                (encode_request("PUT", _stream(n), BINARY) for n in range(self.streams)),
            )
            appends = self._appends()
            for _ in range(self.parts - 1):
                send_bulk(own.port, islice(appends, self._requests // self.parts))
                send_all(own.port, [encode_request("POST", FLUSH)], connections=1)
            send_bulk(own.port, appends)
            own.wait_flushed()
            own.stop()  # with a checkpoint: what is compacted is what the catalog has
            own.start()
            began = time.monotonic()
            jobs = _run_pipeline(own.port)
            elapsed = time.monotonic() - began
            if not jobs:
                raise BenchError("the server had nothing to compact")
            seconds = sum(job["seconds"] for job in jobs)
            mebibytes = sum(job["mib"] for job in jobs)
            return {
                "megabytes_per_second_per_core": mebibytes * 2**20 / 1e6 / seconds / CORES,
                "jobs": len(jobs),
                "compacted_mib": mebibytes,
                "segments_before": sum(job["segments_before"] for job in jobs),
                "segments_after": sum(job["segments_after"] for job in jobs),
                "session_seconds": elapsed - seconds,
                "rss_after_mib": own.server.rss_mib(),
            }

    @property
    def _requests(self) -> int:
        return self.bytes_in_all // (RECORDS * RECORD_BYTES)

    def _appends(self) -> Iterator[bytes]:
        payloads = Payloads()
        for number in in_turn(self.streams, self._requests):
            body = payloads.records(RECORDS, RECORD_BYTES)
            yield encode_request("POST", f"{_stream(number)}/append-batch", BINARY, body)


def _run_pipeline(port: int) -> list[dict[str, Any]]:
    """What it said of every job it committed."""
    command = [sys.executable, "-m", "millstream", "pipeline", "run", "--once"]
    command += ["--server", f"http://{HOST}:{port}", "--master", f"local[{CORES}]"]
    finished = subprocess.run(
        [*command, "--log-format", "json"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    if finished.returncode:
        raise BenchError(f"the pipeline ended with {finished.returncode}: {finished.stderr[-800:]}")
    lines = [line for line in finished.stderr.splitlines() if line.startswith("{")]
    told = [json.loads(line) for line in lines]
    return [line for line in told if line.get("event") == "job committed"]


def _stream(number: int) -> str:
    return f"/{BUCKET}/stream-{number:05d}"


def label(streams: int, bytes_in_all: int) -> str:
    return f"{bytes_in_all / 2**20:g} MiB over {streams} streams"


def cases(plan: Plan) -> list[CompactionCase]:
    if plan.smoke and shutil.which("java") is None:
        return []
    if plan.smoke:
        return [CompactionCase(50, 2**22, ("--shards", "1"), parts=16)]
    return [CompactionCase(10_000, 2**30, ("--flush-bytes", "4MiB"))]
