"""`make soak MINUTES=10`: very many streams, mixed writers and readers, a small hot budget.

With HOSTILE=1 there are clients among them who mean harm (soak_hostile.py), and the server has its
default settings but for those named behind `--`.

Memory must stay in bounds all the time, and in the end every stream must read back byte for byte.
Progress goes to standard error, a summary as one line of JSON to standard output. The exit code is
1 when a check failed. What was written follows from the seed; which of two requests came first
does not.
"""

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from bench.errors import BenchError
from bench.measure import require_real_disk
from bench.own_server import OwnServer
from bench.servers import KINDS
from bench.soak_clients import BUCKET, LONG_POLL, Progress, Reader, Writer, check_streams, path_of
from bench.soak_content import Content
from bench.soak_hostile import Hostile
from bench.wire import BINARY, JSON, encode_request, send_all, send_bulk
from millstream.formats.wal import crc32c

RESULTS_DIR = Path(__file__).with_name("results")
WRITERS = 4
READERS = 6
CHECKERS = 4
READ_PAUSE_SECONDS = 0.01
SAMPLE_SECONDS = 0.25
PROGRESS_SECONDS = 5.0
SHARDS = 16
RSS_MAX_MIB = 400
HOSTILE_RSS_MAX_MIB = 1200  # 512 MiB of bodies under way, 1.5 times 256 MiB of content, the rest
TIME_TO_WRITE = 0.8  # of the minutes; creating and checking take the rest


@dataclass(frozen=True)
class Soak:
    minutes: float
    streams: int
    bytes_in_all: int
    rss_max_mib: int
    seed: int
    flags: tuple[str, ...]
    is_hostile: bool = False


def small(seed: int, is_hostile: bool) -> Soak:
    flags = (
        *("--hot-bytes", "1MiB", "--flush-bytes", "64KiB", "--checkpoint-wal-bytes", "2MiB"),
        *("--resident-streams", "100"),
    )
    size, rss_max_mib = (2, HOSTILE_RSS_MAX_MIB) if is_hostile else (8, RSS_MAX_MIB)
    return Soak(0.1, 300, size * 2**20, rss_max_mib, seed, flags, is_hostile)


class Sampler:
    """Watches the server's memory and tells how far everything is."""

    def __init__(self, own: OwnServer, progress: Progress) -> None:
        self._own = own
        self._progress = progress
        self._pid = own.server.pid
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.rss_max_mib = 0.0
        self.phase = "create"
        self.history: list[tuple[float, float]] = []

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def rss_peak_mib(self) -> float:
        return processes.rss_peak_bytes(self._pid) / 2**20

    def _watch(self) -> None:
        told = 0.0
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                rss_mib = processes.rss_bytes(self._pid) / 2**20
            except OSError:
                return  # the server is gone, and those who talk to it say so
            self.rss_max_mib = max(self.rss_max_mib, rss_mib)
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                self.history.append((round(told - self._began, 1), round(rss_mib, 1)))
                self._tell(rss_mib)

    def _tell(self, rss_mib: float) -> None:
        progress = self._progress
        try:
            metrics = self._own.metrics()
        except OSError:
            metrics = {}

        def number(name: str) -> float:
            return metrics.get(f"millstream_{name}", 0.0)

        say(
            f"{time.monotonic() - self._began:6.1f} s {self.phase:7}"
            f" rss {rss_mib:5.1f} MiB (most {self.rss_max_mib:.1f})"
            f" written {progress.bytes_written / 2**20:7.1f} MiB in {progress.appends}"
            f" full {progress.full} read {progress.bytes_read / 2**20:.1f} MiB"
            f" in {sum(progress.reads.values())}"
            f" | hot {number('hot_bytes') / 2**20:.1f} held {number('held_bytes') / 2**20:.1f}"
            f" cache {number('cold_cache_bytes') / 2**20:.1f}"
            f" resident {number('resident_streams'):.0f} flushes {number('flushes_total'):.0f}"
            f" checkpoints {number('checkpoints_total'):.0f} windows {number('windows_total'):.0f}"
            f" wal {number('wal_bytes') / 2**20:.0f}"
        )


def run(soak: Soak, work_dir: Path) -> dict[str, Any]:
    """The summary; `problems` in it is empty when all is well."""
    content, progress = Content(soak.seed), Progress(array("Q", bytes(8 * soak.streams)))
    flags = (*soak.flags, "--long-poll-timeout", LONG_POLL, "--shards", str(SHARDS))
    with OwnServer(KINDS["millstream"], work_dir, *flags) as own:
        own.start()
        with Sampler(own, progress) as sampler:
            began = time.monotonic()
            _create(own, content, soak.streams)
            created = time.monotonic()
            sampler.phase = "mixed"
            _mix(own, soak, content, progress, created - began)
            mixed = time.monotonic()
            sampler.phase = "check"
            if not progress.mismatches:
                _check(own, content, progress, soak.streams)
            checked = time.monotonic()
        metrics = own.metrics()
        rss_peak_mib = sampler.rss_peak_mib
        stop_seconds = own.stop()
    problems = list(progress.mismatches)
    if rss_peak_mib > soak.rss_max_mib:
        problems.append(f"RSS reached {rss_peak_mib:.1f} MiB, more than {soak.rss_max_mib}")
    return {
        "soak": "failed" if problems else "ok",
        "seed": soak.seed,
        "streams": soak.streams,
        "written_mib": round(progress.bytes_written / 2**20, 1),
        "appends": progress.appends,
        "appends_full": progress.full,
        "harm": progress.harm,
        "read_mib": round(progress.bytes_read / 2**20, 1),
        "reads": dict(progress.reads),
        "rss_peak_mib": round(rss_peak_mib, 1),
        "rss_mib_over_seconds": sampler.history[:: max(1, len(sampler.history) // 40)],
        "create_seconds": round(created - began, 1),
        "mixed_seconds": round(mixed - created, 1),
        "check_seconds": round(checked - mixed, 1),
        "stop_seconds": round(stop_seconds, 1),
        "cold": {
            name.removeprefix("millstream_"): value
            for name, value in metrics.items()
            if name.startswith(("millstream_cold", "millstream_flush", "millstream_checkpoint"))
            and "created" not in name
        },
        "problems": problems,
    }


def _create(own: OwnServer, content: Content, streams: int) -> None:
    send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
    creates = (
        encode_request("PUT", path_of(stream), JSON if content.is_json(stream) else BINARY)
        for stream in range(streams)
    )
    send_bulk(own.port, creates)


def _mix(
    own: OwnServer, soak: Soak, content: Content, progress: Progress, used_seconds: float
) -> None:
    seconds = max(1.0, soak.minutes * 60 * TIME_TO_WRITE - used_seconds)
    writers = [
        Writer(own.port, content, progress, number, WRITERS, soak.seed) for number in range(WRITERS)
    ]
    readers = [Reader(own.port, content, progress, number, soak.seed) for number in range(READERS)]
    hostile = Hostile(own.port, progress, soak.streams, soak.seed)
    harm = hostile.workers() if soak.is_hostile else []
    with ThreadPoolExecutor(WRITERS + READERS + len(harm)) as pool:
        harming = [pool.submit(_guarded, progress, work) for work in harm]
        reading = [pool.submit(_guarded, progress, r.read, READ_PAUSE_SECONDS) for r in readers]
        share = soak.bytes_in_all // WRITERS
        writing = [pool.submit(_guarded, progress, w.write, share, seconds) for w in writers]
        _wait(writing)
        progress.ended.set()
        _wait(reading)
        _wait(harming)
    progress.harm = hostile.done
    if harm and len(hostile.done) < len(harm):
        progress.mismatches.append(f"some harm was never done: {hostile.done}")
    if not progress.mismatches:
        progress.ended.clear()


def _check(own: OwnServer, content: Content, progress: Progress, streams: int) -> None:
    """Shard by shard in the order of the streams: neighbours share what has to be decoded."""
    by_shard: list[list[int]] = [[] for _ in range(SHARDS)]
    for stream in range(streams):
        by_shard[crc32c(path_of(stream).encode()[1:]) % SHARDS].append(stream)
    with ThreadPoolExecutor(CHECKERS) as pool:
        checks = [
            pool.submit(_guarded, progress, check_streams, own.port, content, progress, numbers)
            for numbers in by_shard
        ]
        _wait(checks)


def _guarded(progress: Progress, work: Callable[..., None], *arguments: Any) -> None:
    """An error of one thread ends the others, too."""
    try:
        work(*arguments)
    except BaseException:
        progress.ended.set()
        raise


def _wait(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = _parse_options()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**32)
    say(f"seed {seed}")
    flags = () if options.hostile else ("--hot-bytes", options.hot_bytes or "64MiB")
    if options.hot_bytes:
        flags = ("--hot-bytes", options.hot_bytes)
    rss_max_mib = HOSTILE_RSS_MAX_MIB if options.hostile else RSS_MAX_MIB
    soak = Soak(
        options.minutes,
        options.streams,
        int(options.gib * 2**30),
        options.rss_max_mib or rss_max_mib,
        seed,
        (*flags, *options.server_flags),
        options.hostile,
    )
    RESULTS_DIR.mkdir(exist_ok=True)
    work_dir = Path(tempfile.mkdtemp(prefix="soak-", dir=options.work_dir or RESULTS_DIR))
    try:
        require_real_disk(work_dir)
        summary = run(small(seed, options.hostile) if options.smoke else soak, work_dir)
    except BenchError as error:
        say(f"soak: {error}")
        return 1
    finally:
        if options.keep:
            say(f"kept {work_dir}")
        else:
            shutil.rmtree(work_dir, ignore_errors=True)
    print(json.dumps(summary))
    return 1 if summary["problems"] else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--gib", type=float, default=2, help="to write in all")
    parser.add_argument("--hot-bytes", help="64MiB, or the server's default with --hostile")
    parser.add_argument("--rss-max-mib", type=int, help=f"{RSS_MAX_MIB}, or {HOSTILE_RSS_MAX_MIB}")
    parser.add_argument("--hostile", action="store_true", help="clients who mean harm among them")
    parser.add_argument("--seed", type=int, help="repeat the content of an earlier run")
    parser.add_argument("--smoke", action="store_true", help="a few seconds; must just work")
    parser.add_argument("--keep", action="store_true", help="leave the data folder behind")
    parser.add_argument("--work-dir", type=Path, help="a folder on a real disk (bench/results)")
    parser.add_argument("server_flags", nargs="*", help="behind --: further flags of the server")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
