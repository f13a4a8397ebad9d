"""The other side of the hunt with injected faults: turns them on and off, and asks for progress.

While faults are on, everything may be refused or left unanswered; what is acknowledged counts as
always. When they are off again, every service must get on by itself, or the process must have ended
with code 1 and said why.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.pipeline.compaction import KIND, Rewrite
from millstream.pipeline.job_client import JobClient
from millstream.tier.objects import ColdSettings
from tests.conformance.subscribers import Control, Receiver, finish
from tests.crash.faulty_server import MODULE, PLAN_FILE
from tests.support.http import Client
from tests.support.server import ServerProcess

PROGRESS_SECONDS_MAX = 60.0
PERCENT = (2, 10, 30)
FLAGS = ("--catalog-upload-interval", "0.05", "--log-format", "console", "--log-level", "info")
SAID_WHY = "could not be applied; stopping"
HOOKED = "hooked/stream"


class Injection:
    """For one round, on one data folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.module = MODULE
        self.injected = 0
        self._stopped: set[int] = set()
        self.progress_checks = 0
        self.swaps = 0
        self.wakes = 0
        self._dice = random.Random(f"injection {seed}")
        self._plan = folder / "faults"
        self._data_dir = folder / "data"

    @property
    def fail_stops(self) -> int:
        """Servers that ended by themselves."""
        return len(self._stopped)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The servers started meanwhile are faulty ones, and somebody takes their webhooks."""
        self.off()
        os.environ[PLAN_FILE] = str(self._plan)
        self._receiver = Receiver(finish)
        try:
            yield
        finally:
            self.wakes = len(self._receiver.received)
            self._receiver.close()
            del os.environ[PLAN_FILE]

    def on(self) -> None:
        percent = self._dice.choice(PERCENT)
        self._write(f"{self._dice.randrange(10**9)} {percent}")

    def off(self) -> None:
        self._write("")

    def _write(self, plan: str) -> None:
        new = self._plan.with_suffix(".new")
        new.write_text(plan)
        new.rename(self._plan)
        time.sleep(0.02)  # the server looks every few milliseconds

    def wants_progress(self) -> bool:
        """Of half the lives: the others are killed amid their troubles."""
        return self._dice.random() < 0.5

    # What the server does meanwhile

    def subscribe(self, client: Client) -> None:
        """A stream of its own: the record of the round knows nothing of it."""
        assert client.put(f"/v1/stream/{HOOKED}", content_type="text/plain").status in (200, 201)
        reply = Control(client).webhook("hunt", self._receiver.url, streams=[HOOKED])
        assert reply.status in (200, 201), reply

    @contextlib.contextmanager
    def traffic(self, server: ServerProcess) -> Iterator[None]:
        """Compactions and appends that wake, as long as the block runs."""
        ending = threading.Event()
        threads = [
            threading.Thread(target=self._compact, args=(server, ending), daemon=True),
            threading.Thread(target=self._wake, args=(server, ending), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive(), "a client of the hunt hangs"

    def _compact(self, server: ServerProcess, ending: threading.Event) -> None:
        while not ending.is_set():
            with contextlib.suppress(Exception):  # whatever befalls it, the job is asked for again
                self.compact_once(server, ending)
            ending.wait(0.05)

    def compact_once(self, server: ServerProcess, stopped: threading.Event | None = None) -> bool:
        """Whether there was a job, and it is committed."""
        client = JobClient(server.url, stopped or threading.Event())
        offer = client.ask(KIND)
        if offer is None:
            return False
        rewrite = Rewrite(server.url, offer, ColdSettings(f"fs:{self._data_dir / 'cold'}"))
        for number in range(offer.tasks):
            rewrite._rewrite(number)
        client.commit(offer.job)
        self.swaps += 1
        return True

    def _wake(self, server: ServerProcess, ending: threading.Event) -> None:
        while not ending.wait(0.02):
            with contextlib.suppress(Exception), contextlib.closing(server.client()) as client:
                client.post(f"/v1/stream/{HOOKED}", b"wake up", content_type="text/plain")

    # Afterwards

    def check_progress(self, server: ServerProcess) -> None:
        """With the faults off: everything gets on, without a restart."""
        self.off()
        if self.has_stopped(server):
            return
        self.progress_checks += 1
        with contextlib.closing(server.client()) as client:

            def is_ready() -> bool:
                return client.get("/readyz").status == 200

            def why() -> str:
                return client.get("/readyz").body.decode()

            wait_for("/readyz", server, is_ready, why)
            before, wakes = self._counts(client), len(self._receiver.received)
            path = "/v1/stream/progress"
            assert client.put(path, content_type="text/plain").status in (200, 201)

            def all_moved() -> bool:
                assert client.post(path, bytes(2000), content_type="text/plain").status == 204
                client.post(f"/v1/stream/{HOOKED}", b"wake up", content_type="text/plain")
                now = self._counts(client)
                return all(now[name] > before[name] for name in before) and (
                    len(self._receiver.received) > wakes
                )

            def describe() -> str:
                return f"{before} became {self._counts(client)}, wakes {wakes}"

            wait_for("progress", server, all_moved, describe)
            wait_for("compaction", server, lambda: self._can_compact(server))
            wait_for("/readyz", server, is_ready, why)

    def _can_compact(self, server: ServerProcess) -> bool:
        """There is a job and it gets done, or there is none to do (the hunt's own may have it)."""
        try:
            self.compact_once(server)
        except Exception:
            return False
        return True

    @staticmethod
    def _counts(client: Client) -> dict[str, float]:
        text = client.get("/metrics").body.decode()
        found = {}
        for name in ("flushes", "checkpoints", "catalog_uploads"):
            match = re.search(rf"^millstream_{name}_total (\S+)$", text, re.MULTILINE)
            assert match, name
            found[name] = float(match[1])
        return found

    def has_stopped(self, server: ServerProcess) -> bool:
        """By itself, as it has to after an error in apply; and it says why."""
        with contextlib.suppress(Exception):
            server.process.wait(0.05)
        code = server.process.poll()
        if code is None and SAID_WHY.encode() in server.output:
            server.process.wait(30)
            code = server.process.returncode
        if code is None:
            return False
        output = server.output.decode(errors="replace")
        assert code == 1, f"ended with {code}: {output[-3000:]}"
        assert SAID_WHY in output, f"ended without a word: {output[-3000:]}"
        self._stopped.add(server.process.pid)
        return True

    def check_output(self, output: str) -> None:
        """Every traceback is one that was asked for."""
        blocks = output.split("Traceback (most recent call last):")
        self.injected += len(blocks) - 1
        for block in blocks[1:]:
            assert "injected into" in block, f"an error of its own: {block[:3000]}"


def wait_for(
    what: str,
    server: ServerProcess,
    is_so: Callable[[], bool],
    describe: Callable[[], str] = lambda: "",
) -> None:
    deadline = time.monotonic() + PROGRESS_SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            output = server.output.decode(errors="replace")
            raise AssertionError(f"dead in silence: no {what}; {describe()}: {output[-4000:]}")
        time.sleep(0.05)
