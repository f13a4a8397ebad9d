"""`millstream serve` in which anything may raise at any moment: for the hunt with injected faults.

Run as `python -m tests.crash.faulty_server serve …`. The file that CRASH_FAULTS names says how:
a seed and how often a step fails, in percent; 0 or no file: nothing fails. It may change at any
time, and what recovery does is left alone. Every error says "injected", so that others stand out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
import importlib
import inspect
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from millstream import cold_tier
from millstream.cli.main import main
from millstream.engine.engine import Engine
from millstream.engine.timings import Backoff
from millstream.http.message import Request
from millstream.jobs.compaction import Policy
from millstream.journal.contract import Entry
from millstream.journal.wal import WalJournal
from millstream.limits import KIB
from tests.cold.impatient import IMPATIENT

MODULE = "tests.crash.faulty_server"
PLAN_FILE = "CRASH_FAULTS"  # a variable of the environment
APPLY_SHARE = 0.002  # of the plan's rate: each one ends the process
REPLY_SHARE = 0.01  # each one ends a writer's work for this life of the server
HASTY_RETRY = Backoff(0.02, 0.2)
HASTY = dataclasses.replace(  # back-offs that a test can wait for
    IMPATIENT,
    flush_retry=HASTY_RETRY,
    checkpoint_retry=HASTY_RETRY,
    eviction_retry=HASTY_RETRY,
    upload_retry=HASTY_RETRY,
    garbage_retry=HASTY_RETRY,
    retention_retry=HASTY_RETRY,
    subscription_retry=HASTY_RETRY,
    subscription_refused=0.02,
)

# Module, what in it, and whether it may also fail when its work is done.
STEPS = [
    ("cold.flusher", "plan_flushes", False),
    ("cold.flusher", "_content", False),
    ("cold.flusher", "encode_segment", False),
    ("cold.flusher", "Flusher._gather", True),
    ("cold.flusher", "Flusher._upload", True),
    ("cold.flusher", "Flusher._publish", True),
    ("cold.checkpointer", "take_records", False),
    ("cold.checkpointer", "encode_checkpoint", False),
    ("cold.checkpointer", "store_checkpoint", True),
    ("cold.checkpointer", "Checkpointer._settle", True),
    ("state.changes", "OpenChanges.begin_capture", False),
    ("state.changes", "Capture.take_some", True),
    ("state.changes", "Capture.encode", False),
    ("state.changes", "OpenChanges.settle", True),
    ("tier.catalog", "Catalog.merge", True),
    ("tier.catalog", "Catalog.back_up", True),
    ("tier.catalog", "Catalog.segments", True),
    ("tier.catalog", "Catalog.garbage", True),
    ("tier.catalog", "Catalog.forget_garbage", True),
    ("cold.catalog_uploads", "store_file", True),
    ("cold.catalog_uploads", "store_manifest", True),
    ("cold.catalog_uploads", "delete_unused", True),
    ("cold.catalog_uploads", "CatalogUploads._store_newest", True),
    ("cold.garbage", "Garbage.look", True),
    ("cold.garbage", "Garbage._delete_some", True),
    ("cold.garbage", "Garbage.find_orphans", True),
    ("cold.retention", "RetentionSweeps._find", True),
    ("tier.objects", "ObjectStore.put", True),
    ("tier.objects", "ObjectStore.delete", True),
    ("jobs.segment_swaps", "SegmentSwaps.swap", False),
    ("jobs.segment_swaps", "ReplaceSegments", False),
    ("jobs.rewrites", "SegmentRewrites.plan", True),
    ("jobs.rewrites", "SegmentRewrites.check", True),
    ("jobs.rewrites", "SegmentRewrites.commit", False),
    ("subscriptions.webhooks", "WebhookSender._post", True),
    ("subscriptions.driver", "Driver._take_up", False),
    ("subscriptions.driver", "Driver._command", False),
    ("subscriptions.driver", "Driver._delivery", False),
    ("subscriptions.driver", "Driver._report", False),
    ("subscriptions.driver", "issue_token", False),
    ("cold.eviction", "Eviction._evict_some", True),
    ("api.entry_writes", "_admitted", True),
    ("api.entry_writes", "EntryWrites._append", False),
    ("api.rules", "RulesRoutes._change", True),
    ("cold.lookups", "Lookups.seek", True),
    ("cold.lookups", "Lookups.page_of_key", True),
    ("touch.service", "TouchService._look_at", True),
    ("touch.service", "TouchService._flush", True),
    ("system.service", "SystemStreamService._keep", True),
    ("system.service", "SystemStreamService._write_metrics", True),
]


class Faults:
    """How often what fails, as the file says at this moment."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.is_armed = False  # once the server serves
        self._dice = random.Random()
        self._lock = threading.Lock()
        self._plan = b""

    def follow(self, path: Path) -> None:
        while True:
            try:
                plan = path.read_bytes()
            except OSError:
                plan = b""
            if plan != self._plan:
                self._plan = plan
                seed, _, percent = plan.decode().partition(" ")
                self._dice = random.Random(seed)
                self.rate = float(percent or 0) / 100
            time.sleep(0.005)

    def maybe(self, where: str, share: float = 1.0) -> None:
        if not self.is_armed or not self.rate:
            return
        with self._lock:
            if self._dice.random() >= self.rate * share:
                return
            kind = self._dice.choice([RuntimeError, KeyError, MemoryError, OSError])
        text = f"injected into {where}"
        raise OSError(errno.EIO, text) if kind is OSError else kind(text)


faults = Faults()


def make_faulty(module: str, name: str, *, also_after: bool) -> None:
    owner: Any = importlib.import_module(f"millstream.{module}")
    *path, attribute = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, attribute)

    def faulty(*args: Any, **fields: Any) -> Any:
        faults.maybe(name)
        result = original(*args, **fields)
        if also_after:
            faults.maybe(f"{name}, after it")
        return result

    async def faulty_coroutine(*args: Any, **fields: Any) -> Any:
        faults.maybe(name)
        result = await original(*args, **fields)
        if also_after:
            faults.maybe(f"{name}, after it")
        return result

    is_coroutine = inspect.iscoroutinefunction(original)
    setattr(owner, attribute, faulty_coroutine if is_coroutine else faulty)


def make_apply_faulty() -> None:
    """Only while a server runs: what recovery meets is damage, not a fault of this kind."""
    start = Engine.start

    def started(self: Engine, loop: asyncio.AbstractEventLoop, at_rest: Any = None) -> None:
        for name in ("apply", "apply_append"):
            setattr(self.machine, name, _faulty_apply(getattr(self.machine, name), name))
        start(self, loop, at_rest)
        faults.is_armed = True

    Engine.start = started  # type: ignore[method-assign]


def _faulty_apply(original: Any, name: str) -> Any:
    def faulty(command: Any, *entry: Any) -> Any:
        faults.maybe(name, APPLY_SHARE)
        outcome = original(command, *entry)
        faults.maybe(f"{name}, after it", APPLY_SHARE)
        return outcome

    return faulty


def make_replies_faulty() -> None:
    """Those to requests: a service's own reply is its own guard."""
    submit = WalJournal.submit

    def submitted(self: WalJournal, entry: Entry) -> None:
        command, reply, context = entry
        parts = context if isinstance(context, tuple) else (context,)
        if not any(isinstance(part, Request) for part in parts):
            submit(self, entry)
            return

        def faulty(context: Any, outcome: Any) -> None:
            faults.maybe("a reply", REPLY_SHARE)
            reply(context, outcome)
            faults.maybe("a reply, after it", REPLY_SHARE)

        submit(self, (command, faulty, context))

    WalJournal.submit = submitted  # type: ignore[method-assign]


def make_hasty() -> None:
    """Compactions of next to nothing."""
    patched: Any = cold_tier
    patched.Policy = functools.partial(
        Policy, target_bytes=256 * KIB, task_bytes=512 * KIB, small_min=3, depth_min=3
    )


def arm() -> None:
    make_hasty()
    for module, name, also_after in STEPS:
        make_faulty(module, name, also_after=also_after)
    make_apply_faulty()
    make_replies_faulty()
    plan = os.environ.get(PLAN_FILE)
    if plan:
        threading.Thread(target=faults.follow, args=(Path(plan),), daemon=True).start()


if __name__ == "__main__":
    arm()
    sys.exit(main(timings=HASTY))
