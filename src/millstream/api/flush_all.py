"""POST /__millstream/flush: all hot content to the cold store, and the catalog told of it.

For programs that read segments and catalog beside the server, as `millstream lake` does: what was
acknowledged before the request is in them after the answer.
"""

from __future__ import annotations

from millstream.api.slow_requests import Answer, SlowRequests, json_answer
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.flusher import Flusher
from millstream.engine.engine import Engine
from millstream.errors import ColdUnavailable
from millstream.http.message import Request
from millstream.limits import SEGMENT_FLUSH_BYTES_MAX


class FlushAll:
    def __init__(
        self,
        engine: Engine,
        flusher: Flusher,
        checkpointer: Checkpointer,
        store_id: str,
        requests: SlowRequests,
    ) -> None:
        self._engine = engine
        self._hot_bytes = engine.machine.changes.hot_bytes
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._store_id = store_id
        self._requests = requests

    def handle(self, request: Request) -> None:
        self._requests.begin(request, self._flush())

    async def _flush(self) -> Answer:
        # A flush takes so much of a shard at once; one more for what was under way.
        for _ in range(2 + max(self._hot_bytes) // SEGMENT_FLUSH_BYTES_MAX):
            if any(self._hot_bytes) and self._flusher.error is None:
                await self._flusher.flush_floor(1)
        if self._flusher.error is not None:
            problem = f"the cold store takes nothing at the moment: {self._flusher.error}"
            raise ColdUnavailable(problem)
        await self._checkpointer.checkpoint()
        return json_answer(
            {
                "store_id": self._store_id,
                "lsn": self._engine.applied_lsn,
                "hot_bytes": sum(self._hot_bytes),
            }
        )
