"""POST /__ursula/flush-cold/{bucket}/{stream}: takes a stream's oldest hot content to the store."""

from __future__ import annotations

from millstream.api.arguments import Query
from millstream.api.headers import NO_STORE
from millstream.api.paths import bucketed_key, unescape_all
from millstream.api.slow_requests import Answer, SlowRequests, json_answer
from millstream.cold.flusher import Flusher
from millstream.engine.engine import Engine
from millstream.errors import ColdUnavailable, InvalidRequest
from millstream.http.message import Request
from millstream.limits import MIB
from millstream.protocol.offsets import encode_offset
from millstream.state.stream import Stream

BYTES_MAX_DEFAULT = 8 * MIB


class FlushCold:
    """`cold` is None for a server that keeps everything in memory."""

    def __init__(self, engine: Engine, cold: tuple[Flusher, SlowRequests] | None) -> None:
        self._engine = engine
        self._cold = cold

    def handle(self, request: Request, raw_bucket: bytes, raw_stream: bytes) -> None:
        query = Query(request.query)
        bytes_min = _size(query, b"min_hot_bytes", 1)
        bytes_max = _size(query, b"max_bytes", BYTES_MAX_DEFAULT)
        key = bucketed_key(unescape_all(raw_bucket), raw_stream)
        stream = self._engine.find(key, self._engine.clock.now_ms())
        if self._cold is None:
            raise InvalidRequest("this server has no cold store; start it without --memory")
        if stream.log.tail_byte - stream.log.cold_byte < max(bytes_min, 1):
            request.respond(204, NO_STORE)
            return
        flusher, requests = self._cold
        requests.begin(request, self._flush(flusher, stream, bytes_max))

    async def _flush(self, flusher: Flusher, stream: Stream, bytes_max: int) -> Answer:
        await flusher.flush_stream(stream, bytes_max)
        return json_answer(
            {
                "hot_start_offset": encode_offset(stream.log.cold_ordinal, stream.log.cold_byte),
                "group_commit_index": self._engine.applied_lsn,
            }
        )


def explain_flush(error: Exception) -> ColdUnavailable:
    return ColdUnavailable(f"the cold store took nothing: {error}")


def _size(query: Query, name: bytes, default: int) -> int:
    text = query.one(name)
    if text is None:
        return default
    if not text.isdigit() or not 0 < len(text) < 16:
        raise InvalidRequest(f"{name.decode()} must be a whole number of bytes")
    return int(text)
