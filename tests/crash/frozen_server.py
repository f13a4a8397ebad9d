"""The server of faulty_server.py with a fault of its own: a flush that failed is never over.

For the test of the hunt. Run as `python -m tests.crash.frozen_server serve …`.
"""

from __future__ import annotations

import asyncio
import sys

from millstream.cli.main import main
from millstream.cold.flusher import Flusher
from millstream.formats.segment import Content
from tests.crash import faulty_server

_take_to_store = Flusher._take_to_store


async def _never_over(self: Flusher, shard: int, contents: list[Content]) -> None:
    try:
        await _take_to_store(self, shard, contents)
    except Exception:
        await asyncio.Event().wait()


if __name__ == "__main__":
    faulty_server.APPLY_SHARE = 0.0  # a process that ends by itself is not frozen
    faulty_server.arm()
    Flusher._take_to_store = _never_over  # type: ignore[method-assign]
    sys.exit(main(timings=faulty_server.HASTY))
