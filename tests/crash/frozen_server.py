"""The server of faulty_server.py with a fault of its own: a flush that failed is never over.

For the test of the hunt. Run as `python -m tests.crash.frozen_server serve …`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from millstream.cli.main import main
from millstream.cold.flusher import Flusher, _Flush
from tests.crash import faulty_server


def _careless(self: Flusher, flush: _Flush, step: Callable[[], None]) -> None:
    step()


if __name__ == "__main__":
    Flusher._guard = _careless  # type: ignore[method-assign]
    faulty_server.APPLY_SHARE = 0.0  # a process that ends by itself is not frozen
    faulty_server.arm()
    sys.exit(main())
