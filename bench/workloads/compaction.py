"""Compaction on Spark: many small segments of a real server become few large ones.

Measured is what the pipeline says of its jobs: from the moment its session is there and the job is
handed out until the server has committed it. Starting Spark's session is not in it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench import processes
from bench.errors import BenchError
from bench.figures import Figures
from bench.own_server import OwnServer
from bench.payloads import Payloads, in_turn
from bench.plan import Plan
from bench.servers import REPO, ServerKind, log_tail
from bench.wire import BINARY, HOST, encode_request, send_all, send_bulk
from millstream.limits import MIB

BUCKET = "benchmark"
RECORD_BYTES = 256
RECORDS = 128  # in one request
CORES = 2
PIPELINE_SECONDS_MAX = 1800
FLAGS = ("--pipeline", "external", "--flush-age", "1s", "--shards", "1")
HOT_SEGMENTS = 8  # in memory at most, so that one flush does not take them all


@dataclass(frozen=True)
class CompactionCase:
    bytes_in_all: int
    segment_bytes: int
    streams: int

    workload: ClassVar[str] = "compaction"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True
    repeats_max: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return label(self.bytes_in_all)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        sizes = ["--flush-bytes", str(self.segment_bytes)]
        sizes += ["--hot-bytes", str(HOT_SEGMENTS * self.segment_bytes)]
        with OwnServer(kind, work_dir, *FLAGS, *sizes) as own:
            own.start()
            self._write(own)
            own.stop()
            own.start()  # the catalog knows every segment now
            jobs = _run_pipeline(own, work_dir)
        return self._figures(jobs)

    def _write(self, own: OwnServer) -> None:
        paths = [f"/{BUCKET}/compacted-{number}" for number in range(self.streams)]
        send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
        send_all(own.port, [encode_request("PUT", path, BINARY) for path in paths])
        send_bulk(own.port, self._appends(paths))
        own.wait_flushed()

    def _appends(self, paths: list[str]) -> Iterator[bytes]:
        payloads = Payloads()
        for number in in_turn(self.streams, self.bytes_in_all // (RECORDS * RECORD_BYTES)):
            body = payloads.records(RECORDS, RECORD_BYTES)
            yield encode_request("POST", f"{paths[number]}/append-batch", BINARY, body)

    def _figures(self, jobs: list[dict[str, Any]]) -> Figures:
        mib, seconds = (sum(job[name] for job in jobs) for name in ("mib", "seconds"))
        if mib * MIB < 0.9 * self.bytes_in_all:
            raise BenchError(f"{mib} MiB were compacted of {self.bytes_in_all / MIB:g}")
        cpu_seconds = sum(job["cpu_seconds"] for job in jobs)
        return {
            "megabytes_per_second_per_core": mib * MIB / 1e6 / seconds / CORES,
            "worker_cpu_us_per_megabyte": cpu_seconds * 1e12 / (mib * MIB),
            "jobs": len(jobs),
            "segments_before": sum(job["segments_before"] for job in jobs),
            "segments_after": sum(job["segments_after"] for job in jobs),
        }


def _run_pipeline(own: OwnServer, work_dir: Path) -> list[dict[str, Any]]:
    """What it says of each job that it committed."""
    log_path = work_dir / "pipeline.log"
    command = [sys.executable, "-m", "millstream", "pipeline", "run", "--once"]
    command += ["--log-format", "json"]
    command += ["--server", f"http://{HOST}:{own.port}", "--master", f"local[{CORES}]"]
    with log_path.open("wb") as log:
        process = processes.start(command, cwd=REPO, stdout=log)
    try:
        code = process.wait(PIPELINE_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"no end of compaction in {PIPELINE_SECONDS_MAX} s") from None
    finally:
        processes.stop(process)
    if code:
        raise BenchError(f"the pipeline ended with {code}: {log_tail(log_path)}")
    lines = [line for line in log_path.read_text().splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    return [event for event in events if event["event"] == "job committed"]


def label(bytes_in_all: int) -> str:
    return f"{bytes_in_all // MIB} MiB, records of {RECORD_BYTES} bytes"


def cases(plan: Plan) -> list[CompactionCase]:
    if plan.smoke:
        return [CompactionCase(16 * MIB, MIB // 8, 100)]
    return [CompactionCase(2**30, 4 * MIB, 1000)]
