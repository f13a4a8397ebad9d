"""The loop of a run: every case, every repeat, every server, each on a server of its own."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.errors import BenchError
from bench.figures import Figures
from bench.plan import Case, LifecycleCase, Plan
from bench.results import Result
from bench.servers import ServerKind, running, work_folder


def run_cases(
    cases: Sequence[Case], kinds: Sequence[ServerKind], plan: Plan, work_root: Path
) -> Iterator[Result]:
    for case in cases:
        yield from _run_case(case, [kind for kind in kinds if _suits(case, kind)], plan, work_root)


def _suits(case: Case, kind: ServerKind) -> bool:
    if kind.reference and getattr(case, "ours_only", False):
        return False
    return kind.durable or not getattr(case, "durable_only", False)


def _run_case(
    case: Case, kinds: Sequence[ServerKind], plan: Plan, work_root: Path
) -> Iterator[Result]:
    taken: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    errors: dict[str, list[str]] = {kind.name: [] for kind in kinds}
    # Servers take turns within a repeat, so a slow minute of the machine hits all of them.
    for number in range(min(plan.repeat, getattr(case, "repeats_max", plan.repeat))):
        for kind in kinds:
            _say(f"{case.workload}, {case.label}, {kind.name}, repeat {number + 1}")
            try:
                taken[kind.name].append(_measure(case, kind, work_root))
            except (BenchError, OSError, subprocess.SubprocessError) as error:
                errors[kind.name].append(f"{type(error).__name__}: {error}")
                _say(errors[kind.name][-1])
    for kind in kinds:
        name = kind.name
        yield Result.over(case.workload, case.label, name, taken[name], errors[name])


def _measure(case: Case, kind: ServerKind, work_root: Path) -> Figures:
    if isinstance(case, LifecycleCase):
        with work_folder(kind, work_root) as work_dir:
            return case.measure_in(kind, work_dir)
    with running(kind, work_root) as server:
        return case.measure(server)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
