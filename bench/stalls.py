"""Runs the server and tells of every moment its event loop stood still, and what ran then.

    python -m bench.stalls serve --data-dir DIR ...        as `millstream serve ...`

A timer on the loop leaves a mark every few milliseconds; a thread looks whether it came. When it is
late, the thread writes down where the loop's thread is and what the other threads do. A stall is a
callback that takes long (then `loop_cpu_ms` is high), or somebody else who does not let go of the
interpreter (`others_cpu_ms`), or a machine that has other things to do: `machine_ms` is how long
threads of ours were ready to run and got no processor, `held_ms` is what is left of the stall
without that. Each is one JSON line on standard error, and so is every long garbage collection.
SIGUSR1 prints what the process holds, SIGUSR2 makes malloc return what it can and tells how much
that was. For tests: SIGALRM holds the loop up for a moment, SIGVTALRM is answered with a line once
every stall before it has been told.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any, NamedTuple

from millstream.cli.main import main
from millstream.engine.timings import Timings

# isort: split
import pyarrow as pa

from bench.processes import rss_bytes
from millstream import assemble
from millstream.cold_tier import ColdTier
from millstream.config import Config
from millstream.storage import Stop

MARK_SECONDS = 0.004
STALL_SECONDS = 0.02
FRAMES = 6
SAMPLES_MAX = 4


class Used(NamedTuple):
    """Seconds since the start."""

    loop_cpu: float
    all_cpu: float
    queued: float  # threads of ours that wanted a processor and had none, all together


class Queues:
    """How long our threads stood in the scheduler's queues. Ended ones count no more."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._threads = 0

    def seconds(self) -> float:
        if self._threads != threading.active_count():
            self._threads = threading.active_count()
            self._open()
        total = 0
        for name, file in list(self._files.items()):
            try:
                total += int(os.pread(file, 64, 0).split()[1])
            except (OSError, IndexError):
                os.close(self._files.pop(name))
        return total / 1e9

    def _open(self) -> None:
        for name in os.listdir("/proc/self/task"):
            if name not in self._files:
                with contextlib.suppress(OSError):
                    path = f"/proc/self/task/{name}/schedstat"
                    self._files[name] = os.open(path, os.O_RDONLY)


class Watch:
    def __init__(self) -> None:
        self.marked = time.monotonic()
        self.loop_thread = threading.get_ident()
        self._collecting = 0.0
        self.asked = self._answered = 0  # how often somebody wanted to know that all is told

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.loop_thread = threading.get_ident()
        self._loop_clock = time.pthread_getcpuclockid(self.loop_thread)
        self._queues = Queues()
        self._mark()
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._look, name="stalls", daemon=True).start()

    def _mark(self) -> None:
        self._used_marked = self._used()
        self.marked = time.monotonic()
        self._loop.call_later(MARK_SECONDS, self._mark)

    def _used(self) -> Used:
        return Used(
            time.clock_gettime(self._loop_clock), time.process_time(), self._queues.seconds()
        )

    def _look(self) -> None:
        while True:
            time.sleep(MARK_SECONDS)
            asked = self.asked
            if time.monotonic() - self.marked > STALL_SECONDS:
                self._watch_stall(self.marked)
            if asked != self._answered:
                self._answered = asked
                say({"told_of_all": asked})

    def _watch_stall(self, began: float) -> None:
        before = self._used_marked
        samples: list[dict[str, list[str]]] = []
        while self.marked == began:
            if len(samples) < SAMPLES_MAX:
                samples.append(self._sample())
            time.sleep(MARK_SECONDS)
        used = Used(*(b - a for a, b in zip(before, self._used_marked, strict=True)))
        seconds = self.marked - began - MARK_SECONDS
        blamed = min(seconds - used.queued, used.all_cpu)  # who holds anything up is at work
        say(
            {
                "stall_ms": round(seconds * 1000, 1),
                "held_ms": round(max(used.loop_cpu, blamed) * 1000, 1),
                "loop_cpu_ms": round(used.loop_cpu * 1000, 1),
                "others_cpu_ms": round((used.all_cpu - used.loop_cpu) * 1000, 1),
                "machine_ms": round(used.queued * 1000, 1),
                "at": round(time.time(), 3),
                "samples": samples,
            }
        )

    def _sample(self) -> dict[str, list[str]]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = {}
        for ident, frame in sys._current_frames().items():
            if ident == threading.get_ident():
                continue
            stack = [
                f"{os.path.basename(summary.filename)}:{summary.lineno} {summary.name}"
                for summary in traceback.extract_stack(frame)[-FRAMES:]
            ]
            if ident == self.loop_thread:
                found["loop"] = stack
            elif not _waits(stack):
                found[names.get(ident, str(ident))] = stack
        return found

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.monotonic()
        elif (seconds := time.monotonic() - self._collecting) > 0.005:
            say({"gc_ms": round(seconds * 1000, 1), **info})


def _waits(stack: list[str]) -> bool:
    """Whether a thread only waits for work."""
    last = stack[-1]
    return any(name in last for name in ("_worker", " wait", "_write_batches", "_do_chores"))


def say(what: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps(what) + "\n")  # in one piece: others write too
    sys.stderr.flush()


def holdings(cold: ColdTier) -> dict[str, Any]:
    """What the process holds, as far as its parts can tell."""
    flusher, eviction = cold.flusher, cold.eviction
    machine = flusher._engine.machine
    pool = pa.default_memory_pool()
    return {
        "resident": len(machine.by_id),
        "hot_bytes": sum(machine.changes.hot_bytes),
        "held_bytes": flusher.held_bytes,
        "dirty": machine.changes.dirty_count,
        "candidates": len(eviction._candidates),
        "news": len(machine.names._news),
        "leaving": len(machine.residents._leaving),
        "removed": len(machine.residents.removed),
        "segments": flusher.segments,
        "checkpoints": cold.checkpointer.count,
        "arrow_pool": pool.backend_name,
        "arrow_bytes": pool.bytes_allocated(),
        "arrow_bytes_peak": pool.max_memory(),
        "gc_objects": len(gc.get_objects()),
    }


def trim(number: int, frame: FrameType | None) -> None:
    before, began = rss_bytes(os.getpid()), time.monotonic()
    ctypes.CDLL(None).malloc_trim(0)
    milliseconds = round((time.monotonic() - began) * 1000, 1)
    after = rss_bytes(os.getpid())
    say({"trim_ms": milliseconds, "rss_mib": [before >> 20, after >> 20]})


def watch() -> None:
    """From now on: every server this process runs."""
    tiers: list[ColdTier] = []
    build, running, watching = ColdTier.__init__, assemble.running, Watch()

    def remember(self: ColdTier, *arguments: Any) -> None:
        build(self, *arguments)
        tiers.append(self)

    @contextlib.asynccontextmanager
    async def watched(config: Config, stop: Stop, timings: Timings) -> AsyncIterator[str]:
        async with running(config, stop, timings) as url:
            watching.start(asyncio.get_running_loop())
            yield url

    def ask(number: int, frame: FrameType | None) -> None:
        watching.asked += 1

    def hold(number: int, frame: FrameType | None) -> None:
        """For tests of this program."""
        until = time.thread_time() + 0.12
        while time.thread_time() < until:
            pass

    def tell(number: int, frame: FrameType | None) -> None:
        for tier in tiers:
            say(holdings(tier))

    signal.signal(signal.SIGUSR1, tell)
    signal.signal(signal.SIGALRM, hold)
    signal.signal(signal.SIGVTALRM, ask)
    signal.signal(signal.SIGUSR2, trim)
    ColdTier.__init__ = remember  # type: ignore
    assemble.running = watched  # type: ignore[assignment]


if __name__ == "__main__":
    watch()
    raise SystemExit(main())
