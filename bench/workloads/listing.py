"""One page of a bucket's listing, when the bucket holds very many streams."""

import json
import random
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.errors import BenchError
from bench.figures import Figures
from bench.load import wrk_installed
from bench.measure import percentile
from bench.plan import Plan
from bench.servers import Server
from bench.wire import HOST, Connection, encode_request, send_all

BUCKET = "benchmark"
SCRIPT = Path(__file__).parent.parent / "lua" / "create.lua"
PAGES = 300
CREATE_SECONDS = 5
CREATE_SECONDS_MAX = 600


@dataclass(frozen=True)
class ListingCase:
    streams: int
    page: int

    workload: ClassVar[str] = "listing"
    ours_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.streams, self.page)

    def measure(self, server: Server) -> Figures:
        send_all(server.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
        rss_before = server.rss_mib()
        self._create(server)
        taken = sorted(self._list_pages(server.port))
        return {
            "p50_ms": percentile(taken, 50),
            "p99_ms": percentile(taken, 99),
            "rss_before_mib": rss_before,
            "rss_after_mib": server.rss_mib(),
        }

    def _create(self, server: Server) -> None:
        if not wrk_installed():
            names = (f"/{BUCKET}/stream-{number:08d}" for number in range(self.streams))
            send_all(server.port, [encode_request("PUT", name, "text/plain") for name in names])
            return
        deadline = time.monotonic() + CREATE_SECONDS_MAX
        while (count := _stream_count(server.port)) < self.streams:
            if time.monotonic() > deadline:
                raise BenchError(f"only {count} streams after {CREATE_SECONDS_MAX} s")
            seconds = CREATE_SECONDS if self.streams > 10_000 else 1
            options = ["-t1", "-c128", f"-d{seconds}s", "-s", str(SCRIPT)]
            url = f"http://{HOST}:{server.port}/"
            arguments = ["--", f"/{BUCKET}/stream-", str(count)]
            subprocess.run(["wrk", *options, url, *arguments], check=True, capture_output=True)

    def _list_pages(self, port: int) -> list[float]:
        dice = random.Random(1)
        taken = []
        with Connection(port) as connection:
            for _ in range(PAGES):
                after = f"stream-{dice.randrange(self.streams - self.page):08d}"
                path = f"/{BUCKET}/streams?after={after}&limit={self.page}"
                began = time.monotonic()
                connection.expect_ok(encode_request("GET", path))
                taken.append((time.monotonic() - began) * 1000)
        return taken


def _stream_count(port: int) -> int:
    with urllib.request.urlopen(f"http://{HOST}:{port}/{BUCKET}") as reply:
        count: int = json.load(reply)["streams"]
        return count


def label(streams: int, page: int) -> str:
    return f"{page} of {streams} streams"


def cases(plan: Plan) -> list[ListingCase]:
    return [ListingCase(500, 100)] if plan.smoke else [ListingCase(1_000_000, 1000)]
