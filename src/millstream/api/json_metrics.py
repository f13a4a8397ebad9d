"""/__ursula/metrics: the numbers of /metrics as one JSON object, under the names of Ursula.

Only what exists here. A shard stands where Ursula has a Raft group; there is one core, and no
leader nor term because nothing is elected. docs/operations.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from millstream.engine.engine import Engine
from millstream.heap import resident_bytes
from millstream.http.server import Server
from millstream.journal.contract import COMMIT_SECONDS_BUCKETS, JournalStats


class ColdNumbers(NamedTuple):
    """What the cold tier has done since the start, and what it holds now."""

    requests: Mapping[str, int]  # to the object store, by kind
    bytes_read: int
    bytes_written: int
    segments: int
    checkpoints: int
    uploads: int
    held_bytes: int
    windows: int
    cache_bytes: int
    dead_bytes: int = 0  # of objects, about: what no reader may see and is not rewritten yet
    dead_bytes_overdue: int = 0  # of that, what --erase-within promised to be gone


def json_metrics(
    server: Server, engine: Engine, polls: int, subscribers: int, cold: ColdNumbers | None
) -> dict[str, object]:
    machine, stats = engine.machine, engine.journal.stats
    hot_bytes = list(machine.changes.hot_bytes)
    return {
        "accepted_appends": engine.appends,
        "applied_mutations": stats.commands,
        "active_cores": 1,
        "active_groups": machine.shards,
        "raft_group_count": machine.shards,
        "raft_groups": [
            {"id": shard, "last_applied": engine.applied_lsn, "hot_bytes_total": size}
            for shard, size in enumerate(hot_bytes)
        ],
        "cores": [
            {
                "core_id": 0,
                "mailbox_pending": engine.journal.depth,
                "live_read_watchers_active": engine.watcher_count,
            }
        ],
        "live_read_waiters": polls + subscribers,
        "streams": len(machine.names),
        "buckets": len(machine.names.buckets),
        "cold_hot_bytes": sum(hot_bytes),
        "cold_backpressure_events_total": engine.hot_budget.refused,
        "cold_backpressure_waiting": engine.hot_budget.waiting,
        "wal_batches": stats.batches,
        "wal_records": stats.commands,
        "wal_written_bytes": stats.bytes_written,
        "wal_bytes": engine.journal.log_bytes,
        "commit_seconds": _histogram(stats),
        "http": {
            "connections": len(server.connections),
            "responses_by_status": _by_status(server.counts),
        },
        "process_rss_bytes": resident_bytes(),
        **({} if cold is None else _cold_metrics(cold)),
    }


def _histogram(stats: JournalStats) -> dict[str, object]:
    """How many batches took no longer than each bound, like a Prometheus histogram."""
    bounds = [*map(str, COMMIT_SECONDS_BUCKETS), "+Inf"]
    counts, total = dict[str, int](), 0
    for bound, count in zip(bounds, stats.commit_seconds, strict=True):
        total += count
        counts[bound] = total
    return {"count": total, "sum": stats.commit_seconds_sum, "buckets": counts}


def _by_status(counts: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    total: Counter[int] = Counter()
    for by_status in counts.values():
        total.update(by_status)
    return {str(status): count for status, count in sorted(total.items())}


def _cold_metrics(cold: ColdNumbers) -> dict[str, object]:
    return {
        "cold_flush_uploads": cold.segments,
        "cold_flush_upload_bytes": cold.bytes_written,
        "cold_requests": dict(cold.requests),
        "cold_read_bytes": cold.bytes_read,
        "cold_held_bytes": cold.held_bytes,
        "cold_cache_bytes": cold.cache_bytes,
        "cold_reads": cold.windows,
        "checkpoints": cold.checkpoints,
    }
