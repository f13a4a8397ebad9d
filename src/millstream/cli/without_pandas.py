"""Keeps pandas out of the server: 45 MiB and a second at start that it has no use for.

pyarrow loads it with the first value it converts, if it is installed, and Spark brings it along.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Refusal(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the server runs without pandas", name=name)


def refuse_pandas() -> None:
    """From now on, for this process: to every import, pandas is not installed."""
    if not any(isinstance(finder, _Refusal) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Refusal())
