"""The server of faulty_server.py with a fault of its own: once a flush has failed, none ends.

For the test of the hunt. Run as `python -m tests.crash.frozen_server serve …`.
"""

from __future__ import annotations

import asyncio
import sys

from millstream.cli.main import main
from millstream.cold.flusher import Flusher
from tests.crash import faulty_server

_flush_shard = Flusher._flush_shard
_frozen: set[Flusher] = set()


async def _freezing(self: Flusher, shard: int) -> None:
    if self in _frozen:
        await asyncio.Event().wait()
    failures = self._upkeep.failures
    await _flush_shard(self, shard)
    if self._upkeep.failures > failures:
        _frozen.add(self)


if __name__ == "__main__":
    faulty_server.APPLY_SHARE = 0.0  # a process that ends by itself is not frozen
    faulty_server.arm()
    Flusher._flush_shard = _freezing  # type: ignore[method-assign]
    sys.exit(main(timings=faulty_server.HASTY))
