"""How much of everything a run does; the workloads turn it into cases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.figures import Figures
from bench.servers import Server, ServerKind


@dataclass(frozen=True)
class Plan:
    """`seconds` is the length of one timed measurement; a smoke run only proves that all works."""

    seconds: int
    repeat: int
    smoke: bool

    @property
    def warm_up_seconds(self) -> int:
        """Time for Node's compiler and everybody's caches before the clock starts."""
        return 0 if self.smoke else 1


class Row(Protocol):
    """One row of the report: a workload at one size.

    `ours_only` (the reference has no such thing), `durable_only` (needs a disk) and `repeats_max`
    (takes minutes) may be said as class variables.
    """

    @property
    def workload(self) -> str: ...

    @property
    def label(self) -> str: ...


class SimpleCase(Row, Protocol):
    def measure(self, server: Server) -> Figures:
        """Take every figure once, on a server that was started for this alone."""
        ...


@runtime_checkable
class LifecycleCase(Row, Protocol):
    """A case about starting, stopping or flags: it runs its servers itself."""

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures: ...


Case = SimpleCase | LifecycleCase
