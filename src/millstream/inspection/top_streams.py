"""Which streams take most, of those that were written last and those that are waited for.

All streams are never looked at: there may be millions.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import Any

from millstream.engine.engine import Engine
from millstream.limits import TOP_STREAMS, TOP_STREAMS_SAMPLED
from millstream.protocol.patterns import text_of
from millstream.state.stream import Stream

Entry = dict[str, Any]


def top_streams(engine: Engine, *, has_log: bool) -> dict[str, list[Entry]]:
    sample = engine.machine.changes.changed_lately(TOP_STREAMS_SAMPLED)
    held = nlargest(TOP_STREAMS, sample, key=_held_bytes)
    pending = nlargest(TOP_STREAMS, sample if has_log else (), key=_pending_bytes)
    return {
        "local_storage_bytes": [_held(stream, has_log) for stream in held if _held_bytes(stream)],
        "pending_wal_bytes": [_pending(stream) for stream in pending if _pending_bytes(stream)],
        "touch_journal_filter_bytes": [],
        "notifier_waiters": _waited_for(engine),
    }


def _held_bytes(stream: Stream) -> int:
    """In memory, in segments too or not."""
    return stream.log.tail_byte - stream.log.held_byte


def _pending_bytes(stream: Stream) -> int:
    return stream.log.tail_byte - stream.log.cold_byte


def _held(stream: Stream, has_log: bool) -> Entry:
    return {
        "stream": text_of(stream.path),
        "bytes": _held_bytes(stream),
        "wal_retained_bytes": _pending_bytes(stream) if has_log else 0,
        "segment_cache_bytes": 0,
        "index_cache_bytes": 0,
    }


def _pending(stream: Stream) -> Entry:
    return {
        "stream": text_of(stream.path),
        "pending_wal_bytes": _pending_bytes(stream),
        "pending_rows": stream.log.tail_ordinal - stream.log.cold_ordinal,
    }


def _waited_for(engine: Engine) -> list[Entry]:
    sample = islice(engine.watchers.items(), TOP_STREAMS_SAMPLED)
    found = nlargest(TOP_STREAMS, sample, key=lambda item: len(item[1]))
    entries = []
    for stream_id, watching in found:
        stream = engine.machine.find_by_id(stream_id)
        if stream is not None:
            observing = len(engine.observers.get(stream_id, ()))
            entries.append(
                {
                    "stream": text_of(stream.path),
                    "waiters": len(watching) - observing,
                    "details_waiters": observing,
                    "total_waiters": len(watching),
                }
            )
    return entries
