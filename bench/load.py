"""POST load on many streams over many connections, and what came of it.

wrk is the generator that counts: it leaves the machine to the server. Its latencies are corrected
for coordinated omission (`stats_correct` in wrk's source), so a stall weighs in p99 as if requests
had kept arriving during it. Where wrk is missing, a Python client keeps `--smoke` alive; its
figures mean nothing.
"""

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.measure import percentile
from bench.servers import Server
from bench.wire import HOST, Connection, encode_request, stream_path

SCRIPT = Path(__file__).with_name("lua") / "append.lua"
WRK_MISSING = "wrk is not installed: apt-get install wrk"
WRK_TIMEOUT_SECONDS = 20
WRK_GRACE_SECONDS = 30


@dataclass(frozen=True)
class Load:
    """Bodies POSTed in turn to the streams `{prefix}0`, `{prefix}1`, ..."""

    prefix: str
    streams: int
    connections: int
    content_type: str
    bodies: Sequence[bytes]
    root: str = stream_path("")
    below: str = ""  # what follows the stream's name in the path

    def stream_names(self) -> list[str]:
        return [f"{self.prefix}{index}" for index in range(self.streams)]


@dataclass(frozen=True)
class LoadOutcome:
    requests: int
    elapsed_us: int
    p50_us: float
    p99_us: float
    not_2xx: int
    socket_errors: int
    server_cpu_us: float

    @property
    def accepted(self) -> int:
        return self.requests - self.not_2xx

    @property
    def accepted_per_second(self) -> float:
        return self.accepted / self.elapsed_us * 1e6

    @property
    def server_cpu_us_per_request(self) -> float:
        return self.server_cpu_us / max(1, self.accepted)


def wrk_installed() -> bool:
    return shutil.which("wrk") is not None


def run_load(server: Server, load: Load, seconds: int) -> LoadOutcome:
    """Put `load` on a server whose streams exist already."""
    generate = _run_wrk if wrk_installed() else _run_python
    cpu_before = server.cpu_seconds()
    counts = generate(server, load, seconds)
    cpu_seconds = server.cpu_seconds() - cpu_before
    outcome = LoadOutcome(**counts, server_cpu_us=cpu_seconds * 1e6)
    if not outcome.accepted:
        raise BenchError(f"no append was accepted: {counts}")
    return outcome


def _run_wrk(server: Server, load: Load, seconds: int) -> dict[str, int]:
    bodies_path = server.work_dir / "bodies"
    sizes = "".join(f"{len(body)}\n" for body in load.bodies)
    bodies_path.write_bytes(sizes.encode() + b"".join(load.bodies))
    options = ["-t1", f"-c{load.connections}", f"-d{seconds}s", f"--timeout={WRK_TIMEOUT_SECONDS}s"]
    script = ["-s", str(SCRIPT), f"http://{HOST}:{server.port}/", "--"]
    arguments = [load.root + load.prefix, str(load.streams), load.content_type, str(bodies_path)]
    arguments += [str(len(load.bodies)), *([load.below] if load.below else [])]
    finished = subprocess.run(
        ["wrk", *options, *script, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds + WRK_GRACE_SECONDS,
    )
    last_line = finished.stdout.strip().rpartition("\n")[2]
    if finished.returncode or not last_line.startswith("{"):
        raise BenchError(f"wrk failed: {finished.stderr.strip() or finished.stdout.strip()}")
    counts: dict[str, int] = json.loads(last_line)
    return counts


def _run_python(server: Server, load: Load, seconds: int) -> dict[str, int]:
    paths = [f"{load.root}{name}{load.below}" for name in load.stream_names()]
    bodies = itertools.cycle(load.bodies)
    requests = [encode_request("POST", path, load.content_type, next(bodies)) for path in paths]
    started = time.monotonic()
    deadline = started + seconds
    with ThreadPoolExecutor(load.connections) as pool:
        posters = [
            pool.submit(_post_until, deadline, server.port, requests, first)
            for first in range(load.connections)
        ]
        outcomes = [outcome for poster in posters for outcome in poster.result()]
    elapsed_us = round((time.monotonic() - started) * 1e6)
    latencies_us = sorted(latency_us for latency_us, _ in outcomes)
    return {
        "requests": len(outcomes),
        "elapsed_us": elapsed_us,
        "p50_us": round(percentile(latencies_us, 50)),
        "p99_us": round(percentile(latencies_us, 99)),
        "not_2xx": sum(not ok for _, ok in outcomes),
        "socket_errors": 0,
    }


def _post_until(
    deadline: float, port: int, requests: list[bytes], first: int
) -> list[tuple[float, bool]]:
    """Latency in microseconds and success of every request of one connection."""
    outcomes = []
    turn = first
    with Connection(port) as connection:
        while (sent_at := time.monotonic()) < deadline:
            ok = connection.exchange(requests[turn % len(requests)]).ok
            outcomes.append(((time.monotonic() - sent_at) * 1e6, ok))
            turn += 1
    return outcomes
