"""POST /__millstream/flush: all hot content to the cold store, and the catalog told of it.

For programs that read segments and catalog beside the server, as `millstream lake` does: what was
acknowledged before the request is in them after the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.flusher import Flusher
from millstream.engine.engine import Engine
from millstream.errors import ColdUnavailable
from millstream.http.message import Request
from millstream.limits import SEGMENT_FLUSH_BYTES_MAX


class FlushAll:
    def __init__(
        self, engine: Engine, flusher: Flusher, checkpointer: Checkpointer, store_id: str
    ) -> None:
        self._engine = engine
        self._hot_bytes = engine.machine.changes.hot_bytes
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._store_id = store_id

    def handle(self, request: Request) -> None:
        # A flush takes so much of a shard at once; one more for what was under way.
        rounds = 2 + max(self._hot_bytes) // SEGMENT_FLUSH_BYTES_MAX
        self._flush(rounds, lambda: self._flushed(request))

    def _flush(self, rounds: int, done: Callable[[], None]) -> None:
        if rounds == 0 or not any(self._hot_bytes) or self._flusher.error is not None:
            done()
        else:
            self._flusher.flush_floor(1, lambda: self._flush(rounds - 1, done))

    def _flushed(self, request: Request) -> None:
        if self._flusher.error is not None:
            problem = f"the cold store takes nothing at the moment: {self._flusher.error}"
            respond_error(request, ColdUnavailable(problem))
        else:
            self._checkpointer.run(lambda: self._told(request))

    def _told(self, request: Request) -> None:
        respond_json(
            request,
            200,
            {
                "store_id": self._store_id,
                "lsn": self._engine.applied_lsn,
                "hot_bytes": sum(self._hot_bytes),
            },
        )
