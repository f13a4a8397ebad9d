"""The documents of `/v1/server/_details` and `/v1/server/_mem`: what the server may take, takes and
does. Numbers that are kept up anyway are read; nothing is counted through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.heap import load_process_memory
from millstream.http.server import Server
from millstream.inspection.high_water import HighWater
from millstream.inspection.memory_report import (
    NO_COLD,
    ColdState,
    Document,
    breakdown_document,
    budgets_of,
    gc_document,
    leak_candidates,
    process_document,
    sqlite_document,
    subsystems_of,
    totals_of,
)
from millstream.inspection.top_streams import top_streams
from millstream.limits import (
    APPEND_WAIT_SECONDS,
    COMMIT_COMMANDS_MAX,
    FLUSH_THREADS,
    FOOTER_CACHE_BYTES,
    SEGMENT_FLUSH_BYTES_MAX,
    WINDOW_THREADS,
)
from millstream.protocol.durations import encode_timestamp


class _Memory(NamedTuple):
    """What both documents tell of memory."""

    common: Document  # process, process_breakdown, sqlite, gc, high_water
    subsystems: Document
    totals: dict[str, int]
    resident_bytes: int
    resident_bytes_max: int


class ServerReport:
    def __init__(
        self,
        config: Config,
        server: Server,
        engine: Engine,
        cold: Callable[[], ColdState] | None,
    ) -> None:
        self._config = config
        self._server = server
        self._engine = engine
        self._cold = cold
        self._high_water = HighWater()

    def details(self) -> Document:
        cold = self._cold_state()
        return {
            "auto_tune": {
                "enabled": False,
                "requested_memory_mb": None,
                "preset_mb": None,
                "effective_memory_limit_mb": None,
            },
            "configured_limits": self._limits(cold),
            "runtime": self._runtime(cold),
        }

    def memory(self) -> Document:
        memory = self._memory(self._cold_state())
        subsystems = memory.subsystems
        return {
            "ts": encode_timestamp(self._engine.clock.now_ms()),
            **memory.common,
            "counters": leak_candidates(self._engine),
            "runtime_counts": subsystems["counts"],
            "runtime_bytes": {k: v for k, v in subsystems.items() if k != "counts"},
            "runtime_totals": memory.totals,
            "top_streams": self._top_streams(),
        }

    def _cold_state(self) -> ColdState:
        return NO_COLD if self._cold is None else self._cold()

    def _top_streams(self) -> dict[str, Any]:
        return top_streams(self._engine, has_log=self._cold is not None)

    # What it may take

    def _limits(self, cold: ColdState) -> Document:
        config, is_cold = self._config, self._cold is not None
        budgets = budgets_of(config, cold)
        return {
            "caches": {
                "sqlite_cache_bytes": budgets["sqlite_cache_budget_bytes"],
                "worker_sqlite_cache_bytes": budgets["worker_sqlite_cache_budget_bytes"],
                "index_run_memory_cache_bytes": 0,
                "index_run_disk_cache_bytes": 0,
                "lexicon_index_cache_bytes": 0,
                "segment_cache_bytes": budgets["segment_cache_budget_bytes"],
                "segment_footer_cache_bytes": FOOTER_CACHE_BYTES if is_cold else 0,
                "companion_toc_cache_bytes": 0,
                "companion_section_cache_bytes": 0,
                "companion_file_cache_bytes": 0,
            },
            "concurrency": {
                "ingest": 1,  # one log, written by one thread
                "read": WINDOW_THREADS if is_cold else 0,  # of what is not in memory
                "search": 0,
                "async_index": 0,
                "upload": FLUSH_THREADS if is_cold else 0,
                "index_build": 0,
                "index_compact": 0,
                "connections": config.max_connections,
            },
            "ingest": {
                "max_batch_requests": COMMIT_COMMANDS_MAX,
                "max_batch_bytes": config.max_inflight_body_bytes,
                "max_queue_requests": config.max_connections,
                "max_queue_bytes": config.max_inflight_body_bytes,
                "busy_timeout_ms": _milliseconds(APPEND_WAIT_SECONDS) if is_cold else 0,
                "local_backlog_max_bytes": config.hot_bytes if is_cold else 0,
                "max_body_bytes": config.max_body_bytes,
            },
            "search": {
                "companion_batch_segments": 0,
                "companion_yield_blocks": 0,
                "wal_overlay_quiet_period_ms": 0,
                "wal_overlay_max_bytes": 0,
            },
            "segmenting": {
                "segment_max_bytes": SEGMENT_FLUSH_BYTES_MAX if is_cold else 0,
                "segment_target_rows": 0,
                "segmenter_workers": FLUSH_THREADS if is_cold else 0,
                "flush_bytes": config.flush_bytes if is_cold else 0,
                "flush_age_ms": _milliseconds(config.flush_age) if is_cold else 0,
            },
            "timeouts": {
                "append_request_timeout_ms": 0,
                "search_request_timeout_ms": 0,
                "resolver_timeout_ms": 0,
                "object_store_timeout_ms": _milliseconds(config.cold_timeout) if is_cold else 0,
                "request_timeout_ms": _milliseconds(config.request_timeout),
                "body_timeout_ms": _milliseconds(config.body_timeout),
                "long_poll_timeout_ms": _milliseconds(config.long_poll_timeout),
            },
            "memory": {
                "pressure_limit_bytes": 0,
                "resident_streams": 0 if not is_cold else config.resident_streams,
            },
        }

    # What it takes and does

    def _runtime(self, cold: ColdState) -> Document:
        engine, memory = self._engine, self._memory(cold)
        budget, journal = engine.hot_budget, engine.journal
        return {
            "memory": {
                "pressure_active": False,
                "pressure_limit_bytes": 0,
                "last_rss_bytes": memory.resident_bytes,
                "max_rss_bytes": memory.resident_bytes_max,
                **memory.common,
                "subsystems": memory.subsystems,
                "totals": memory.totals,
            },
            "ingest_queue": {
                "requests": journal.depth + budget.waiting,
                "bytes": self._server.body_budget.held_bytes,
                "full": bool(budget.full_shards) or journal.is_full,
            },
            "local_backpressure": {
                "enabled": self._cold is not None,
                "current_bytes": sum(engine.machine.changes.hot_bytes),
                "max_bytes": self._config.hot_bytes if self._cold is not None else 0,
                "over_limit": bool(budget.full_shards),
            },
            "uploads": {"pending_segments": cold.uploads},
            "log": {"bytes": journal.log_bytes, "position": engine.applied_lsn},
            "concurrency": self._concurrency(cold),
            "top_streams": self._top_streams(),
        }

    def _concurrency(self, cold: ColdState) -> Document:
        depth, readers = self._engine.journal.depth, WINDOW_THREADS if self._cold else 0
        return {
            "ingest": _gate(1, depth),
            "read": _gate(readers, cold.loads),
            "search": _gate(0, 0),
            "async_index": _gate(0, 0),
        }

    def _memory(self, cold: ColdState) -> _Memory:
        memory = load_process_memory()
        subsystems = subsystems_of(self._config, self._server, self._engine, cold)
        totals = totals_of(subsystems)
        process = process_document(memory, cold)
        known = totals["heap_estimate_bytes"] + totals["pipeline_buffer_bytes"]
        breakdown, sqlite = breakdown_document(memory, known), sqlite_document(cold)
        common = {
            "process": process,
            "process_breakdown": breakdown,
            "sqlite": sqlite,
            "gc": gc_document(),
            "high_water": self._high_water.observe(
                self._engine.clock.now_ms(),
                {
                    "process": {**process, "rss_bytes": memory.resident_max},
                    "process_breakdown": breakdown,
                    "sqlite": sqlite,
                    "runtime_bytes": {k: v for k, v in subsystems.items() if k != "counts"},
                    "runtime_totals": totals,
                },
            ),
        }
        return _Memory(common, subsystems, totals, memory.resident, memory.resident_max)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _gate(limit: int, requests: int) -> Document:
    active = min(limit, requests)
    return {
        "configured_limit": limit,
        "current_limit": limit,
        "active": active,
        "queued": requests - active,
    }
