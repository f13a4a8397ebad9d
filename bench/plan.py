"""How much of everything a run does; the workloads turn it into cases."""

from dataclasses import dataclass
from typing import Protocol

from bench.figures import Figures
from bench.servers import Server


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


class Case(Protocol):
    """One row of the report: a workload at one size."""

    @property
    def workload(self) -> str: ...

    @property
    def label(self) -> str: ...

    def measure(self, server: Server) -> Figures:
        """Take every figure once, on a server that was started for this alone."""
        ...
