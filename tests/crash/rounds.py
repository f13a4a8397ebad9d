"""One round: a seed, a data folder, several lives of a server, each ended while it is busy."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.history import History, Incarnation, Request
from tests.crash.injection import Injection
from tests.crash.plan import LOGS, WRITERS, Ending, Generation, plan_generations
from tests.crash.readers import Reader
from tests.crash.verify import Verifier
from tests.crash.writers import Writer, send_request
from tests.support.server import ServerProcess
from tests.support.waiting import let_work

JOIN_SECONDS = 60.0
CHANGES_SECONDS_MAX = 3.0
ACKNOWLEDGED_MIN, SHOWN_MIN = 20, 2  # per life


class DrainedServer(ServerProcess):
    """Reads the server's output while it runs, so that a full pipe never stops it."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        port: int | None = None,
        wait: bool = True,
        module: str = "millstream",
    ) -> None:
        super().__init__(data_dir, *flags, port=port, wait=False, module=module)
        self.drain = threading.Thread(target=self.drain_output, daemon=True)
        self.drain.start()
        if wait:
            self.wait_ready()

    def drain_output(self) -> None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while chunk := os.read(descriptor, 65536):
            self.output += chunk

    def finish_output(self) -> str:
        self.drain.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.output.decode(errors="replace")


@dataclass
class RoundReport:
    seed: int
    kills: int = 0
    start_up_kills: int = 0
    stops: int = 0
    acknowledged: int = 0
    shown: int = 0
    unanswered: int = 0
    waits: int = 0  # for the cold store, because the hot budget was used up


class RoundFailed(AssertionError):
    """Names the seed, the generation and the folder that was kept for looking at."""


def run_round(
    seed: int,
    folder: Path,
    generations: int,
    *,
    flags: tuple[str, ...] = (),
    tamper: Callable[[Path], None] = lambda _: None,
    injection: Injection | None = None,
) -> RoundReport:
    """Runs every generation of a seed on one data folder; raises RoundFailed at the first wrong.

    `flags` come after those of the plan, see variants.py.
    `injection` makes the server fail in other ways than by being killed, see injection.py.
    `tamper` may change the data folder after a kill: that is how this program is tested itself.
    """
    report = RoundReport(seed)
    history = History()
    data_dir = folder / "data"
    plan = plan_generations(seed, generations, flags)
    with injection.running() if injection is not None else contextlib.nullcontext():
        _run_generations(seed, plan, history, folder, report, tamper, injection)
    final = DrainedServer(data_dir, *plan[-1].flags)
    try:
        _verify(final, history, seed, generations)
    except Exception as error:
        raise RoundFailed(f"seed {seed}, after the last generation: {error}") from error
    finally:
        final.kill()
    return report


def _run_generations(
    seed: int,
    plan: list[Generation],
    history: History,
    folder: Path,
    report: RoundReport,
    tamper: Callable[[Path], None],
    injection: Injection | None,
) -> None:
    data_dir = folder / "data"
    for generation in plan:
        try:
            _run_generation(seed, generation, history, data_dir, report, injection)
            tamper(data_dir)
        except Exception as error:
            kept = shutil.copytree(data_dir, folder / "failed", dirs_exist_ok=True)
            raise RoundFailed(
                f"seed {seed}, generation {generation.number} ({generation.flags}): {error}\n"
                f"data folder as it is: {kept}"
            ) from error


def _run_generation(
    seed: int,
    generation: Generation,
    history: History,
    data_dir: Path,
    report: RoundReport,
    injection: Injection | None,
) -> None:
    module = "millstream" if injection is None else injection.module
    for moment in generation.start_up_kills:
        _kill_during_start(data_dir, generation, moment, module)
        report.start_up_kills += 1
        report.kills += 1
    server = DrainedServer(data_dir, *generation.flags, module=module)
    try:
        if generation.number == 0:
            _create_logs(server, history)
        else:
            _verify(server, history, seed, generation.number)
        if injection is None:
            _write_until_the_end(server, seed, generation, history, report)
        else:
            _write_in_trouble(server, seed, generation, history, report, injection)
    finally:
        server.kill()
    output = server.output.decode(errors="replace")
    if injection is None:
        assert "Traceback" not in output, f"the server logged an exception: {output[-3000:]}"
    else:
        injection.check_output(output)
    assert not history.violations, "\n".join(history.violations[:10])


def _kill_during_start(data_dir: Path, generation: Generation, moment: float, module: str) -> None:
    server = DrainedServer(data_dir, *generation.flags, wait=False, module=module)
    try:
        if moment > 0:
            time.sleep(moment)
        else:
            _wait_for_changes(data_dir, int(-moment))
        code = server.process.poll()
        assert code is None, f"start-up ended by itself with {code}: {server.finish_output()}"
    finally:
        server.kill()


def _wait_for_changes(data_dir: Path, changes: int) -> None:
    """Until recovery has changed the folder so many times: the moments that are worth a kill."""
    deadline = time.monotonic() + CHANGES_SECONDS_MAX
    before = _list_files(data_dir)
    while changes > 0 and time.monotonic() < deadline:
        now = _list_files(data_dir)
        if now != before:
            before, changes = now, changes - 1


def _list_files(data_dir: Path) -> list[tuple[str, int]]:
    found = list[tuple[str, int]]()
    for name in ("wal", "checkpoints", "catalog"):
        try:
            with os.scandir(data_dir / name) as entries:
                found += sorted((entry.name, entry.stat().st_size) for entry in entries)
        except FileNotFoundError:
            continue
    return found


def _create_logs(server: ServerProcess, history: History) -> None:
    client = server.client()
    try:
        for stream, kind in LOGS.items():
            request = Request(
                f"create-{stream}", "PUT", stream, kind, kind.nothing, {"Content-Type": kind.value}
            )
            reply = send_request(client, history, request)
            assert reply.status == 201, f"{request}: {reply.body!r}"
            history.streams[stream] = [Incarnation(stream, kind, request)]
    finally:
        client.close()


def _verify(server: ServerProcess, history: History, seed: int, generation: int) -> None:
    client = server.client()
    try:
        dice = random.Random(f"verify {seed} {generation}")
        Verifier(history, client, dice, f"v{generation}").run()
    finally:
        client.close()


def _begin_to_write(
    server: DrainedServer,
    seed: int,
    generation: Generation,
    history: History,
    ending: threading.Event,
) -> list[threading.Thread]:
    threads: list[threading.Thread] = [
        Writer(history, seed, generation.number, index, server.port, ending)
        for index in range(WRITERS)
    ]
    threads += [Reader(history, dice, server.port, ending) for dice in generation.readers]
    for thread in threads:
        thread.start()
    return threads


def _has_done_more(history: History) -> Callable[[], bool]:
    """Than now, by what makes a life worth ending."""
    enough = history.acknowledged + ACKNOWLEDGED_MIN
    return lambda: (
        bool(history.violations)
        or (history.acknowledged >= enough and len(history.observations) >= SHOWN_MIN)
    )


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive(), f"{thread.name} hangs"


def _count(history: History, report: RoundReport) -> None:
    report.acknowledged, report.waits = history.acknowledged, history.waits
    report.shown += len(history.observations)
    report.unanswered += sum(request.answered == float("inf") for request in history.pending)


def _write_until_the_end(
    server: DrainedServer,
    seed: int,
    generation: Generation,
    history: History,
    report: RoundReport,
) -> None:
    ending = threading.Event()
    threads = _begin_to_write(server, seed, generation, history, ending)
    let_work(generation.active_seconds, _has_done_more(history))
    died = server.process.poll()
    ending.set()
    if generation.ending is Ending.KILL:
        server.kill()
        report.kills += 1
    else:
        code = server.stop()
        report.stops += 1
        assert code == 0, f"SIGTERM ended with {code}: {server.output[-2000:]!r}"
    _join(threads)
    assert died is None, f"the server died by itself with {died}: {server.output[-2000:]!r}"
    _count(history, report)


def _write_in_trouble(
    server: DrainedServer,
    seed: int,
    generation: Generation,
    history: History,
    report: RoundReport,
    injection: Injection,
) -> None:
    """As above, while anything may fail; then killed amid it, or asked to get over it first."""
    with contextlib.closing(server.client()) as client:
        injection.subscribe(client)
    ending, history.is_faulty = threading.Event(), True
    injection.on()
    try:
        with injection.traffic(server):
            threads = _begin_to_write(server, seed, generation, history, ending)
            time.sleep(generation.active_seconds)
            if injection.wants_progress():
                ending.set()
                _join(threads)
                injection.check_progress(server)
            ending.set()
            if not injection.has_stopped(server):
                server.kill()
                report.kills += 1
        _join(threads)
    finally:
        ending.set()
        injection.off()
        history.is_faulty = False
    _count(history, report)
