"""What a run found: one Result per case and server, and the facts of the machine beside them."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import FAULTS, Figures
from bench.measure import Spread, filesystem_of


@dataclass(frozen=True)
class Result:
    workload: str
    case: str
    server: str
    repeats: int
    figures: dict[str, Spread]
    errors: tuple[str, ...]

    @classmethod
    def over(
        cls, workload: str, case: str, server: str, taken: Sequence[Figures], errors: Sequence[str]
    ) -> "Result":
        names = taken[0] if taken else ()
        figures = {name: Spread.over([figures[name] for figures in taken]) for name in names}
        return cls(workload, case, server, len(taken), figures, tuple(errors))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def faults(self) -> dict[str, float]:
        """Figures that should be zero and are not."""
        return {
            name: spread.max
            for name, spread in self.figures.items()
            if name in FAULTS and spread.max > 0
        }


class Results:
    """All results of a run, found again by what they are about."""

    def __init__(self) -> None:
        self.all: list[Result] = []

    def add(self, result: Result) -> None:
        self.all.append(result)

    def cases(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((result.workload, result.case) for result in self.all))

    def servers(self) -> list[str]:
        return list(dict.fromkeys(result.server for result in self.all))

    def find(self, workload: str, case: str, server: str, figure: str) -> Spread | None:
        for result in self.all:
            if (result.workload, result.case, result.server) == (workload, case, server):
                return result.figures.get(figure)
        return None

    def median(self, workload: str, case: str, server: str, figure: str) -> float | None:
        spread = self.find(workload, case, server, figure)
        return None if spread is None else spread.median


def describe_machine(work_root: Path) -> dict[str, str]:
    """What a reader needs to know before comparing two tables."""
    load = "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "kernel": platform.release(),
        "filesystem": filesystem_of(work_root),
        "load_average_at_start": load,
        "python": platform.python_version(),
        "node": _version("node", "--version"),
        "wrk": _version("wrk", "-v").partition(" [")[0].removeprefix("wrk "),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(program: str, option: str) -> str:
    if shutil.which(program) is None:
        return "not installed"
    finished = subprocess.run([program, option], capture_output=True, text=True, check=False)
    return finished.stdout.partition("\n")[0].strip()
