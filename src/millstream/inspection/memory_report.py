"""What the server can tell of its memory, under the names of another server's report.

Its parts are not ours in all places. Where there is nothing like it here the number is 0: the
catalog is read through SQLite, but there are no index caches, no mapped files and no disk caches.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any, NamedTuple

from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.heap import ProcessMemory
from millstream.http.server import Server
from millstream.limits import CATALOG_MERGE_CACHE_BYTES, CATALOG_READ_CACHE_BYTES

Document = dict[str, Any]


class ColdState(NamedTuple):
    """What the cold tier holds and does at this moment."""

    held_bytes: int = 0  # content that is in segments and in memory still
    cache_bytes: int = 0  # decoded content kept for the next reader
    cache_entries: int = 0
    arrow_bytes: int = 0  # memory of Arrow, which encodes and decodes segments
    uploads: int = 0  # segments on their way into the store
    upload_bytes: int = 0  # of the content in them
    loads: int = 0  # cold reads under way
    catalog_files: int = 0


NO_COLD = ColdState()

_MAPPED = (
    *("segment_cache_mapped_bytes", "routing_run_disk_cache_mapped_bytes"),
    *("exact_run_disk_cache_mapped_bytes", "lexicon_index_mapped_bytes"),
    "companion_bundle_mapped_bytes",
)
_DISK_CACHES = (
    *("segment_disk_cache_bytes", "routing_run_disk_cache_bytes", "exact_run_disk_cache_bytes"),
    *("lexicon_disk_cache_bytes", "companion_disk_cache_bytes"),
)
_BUDGETS = (
    *("sqlite_cache_budget_bytes", "worker_sqlite_cache_budget_bytes"),
    *("segment_cache_budget_bytes", "routing_run_cache_budget_bytes"),
    *("routing_run_disk_cache_budget_bytes", "exact_run_cache_budget_bytes"),
    *("exact_run_disk_cache_budget_bytes", "lexicon_disk_cache_budget_bytes"),
    "companion_disk_cache_budget_bytes",
)
_SQLITE_RUNTIME = (
    *("sqlite_memory_used_bytes", "sqlite_memory_highwater_bytes"),
    *("sqlite_pagecache_overflow_bytes", "sqlite_pagecache_overflow_highwater_bytes"),
)
_COUNTS = (
    *("ingest_queue_requests", "segment_disk_cache_entries", "segment_mapped_files"),
    *("segment_pinned_files", "routing_run_cache_entries", "routing_run_disk_cache_entries"),
    *("routing_run_disk_cache_mapped_entries", "routing_run_disk_cache_pinned_entries"),
    *("exact_run_cache_entries", "exact_run_disk_cache_entries"),
    *("exact_run_disk_cache_mapped_entries", "exact_run_disk_cache_pinned_entries"),
    *("secondary_index_stream_idle_ticks", "lexicon_cached_files", "lexicon_mapped_files"),
    *("lexicon_pinned_files", "companion_cached_files", "companion_mapped_files"),
    *("companion_pinned_files", "mock_r2_object_count", "mock_r2_in_memory_bytes"),
    *("pending_upload_segments", "uploader_inflight_segments"),
    *("uploader_manifest_inflight_streams", "segmenter_active_builds"),
    *("segmenter_active_streams", "segmenter_active_rows", "sqlite_pagecache_used_slots"),
    *("sqlite_pagecache_used_slots_highwater", "sqlite_malloc_count"),
    *("sqlite_malloc_count_highwater", "sqlite_open_connections", "sqlite_prepared_statements"),
)
_LEAK_CANDIDATES = (
    *("segment_cache.pinned_entries", "lexicon_file_cache.pinned_entries"),
    *("companion_file_cache.pinned_entries", "routing_run_disk_cache.pinned_entries"),
    *("exact_run_disk_cache.pinned_entries", "touch.journals.active_count"),
    *("touch.journals.created_total", "touch.journals.filter_bytes_total"),
    *("touch.journal.default_filter_bytes", "touch.maps.fine_lag_coarse_only_streams"),
    *("touch.maps.touch_mode_streams", "touch.maps.fine_token_bucket_streams"),
    *("touch.maps.hot_fine_streams", "touch.maps.lag_source_offset_streams"),
    *("touch.maps.restricted_template_bucket_streams", "touch.maps.runtime_totals_streams"),
    *("touch.maps.zero_row_backlog_streams", "live_template.last_seen_entries"),
    *("live_template.dirty_last_seen_entries", "live_template.rate_state_streams"),
    *("live_metrics.counter_streams", "notifier.latest_seq_streams"),
    *("notifier.details_version_streams", "metrics.series"),
    *("secondary_index.stream_idle_ticks_streams", "mock_r2.in_memory_bytes"),
    "mock_r2.object_count",
)


def process_document(memory: ProcessMemory, cold: ColdState) -> Document:
    """The interpreter does not tell how much of its heap is in use."""
    return {
        "rss_bytes": memory.resident,
        "heap_total_bytes": memory.anonymous,
        "heap_used_bytes": 0,
        "external_bytes": cold.arrow_bytes,
        "array_buffers_bytes": 0,
    }


def breakdown_document(memory: ProcessMemory, known_bytes: int) -> Document:
    """`known_bytes`: what the server can account for."""
    return {
        "source": "linux_proc_status" if memory.resident else "unavailable",
        "rss_anon_bytes": memory.anonymous,
        "rss_file_bytes": memory.mapped_files,
        "rss_shmem_bytes": memory.shared,
        "js_managed_bytes": 0,
        "js_external_non_array_buffers_bytes": 0,
        "mapped_file_bytes": memory.mapped_files,
        "sqlite_runtime_bytes": 0,
        "unattributed_anon_bytes": max(0, memory.anonymous - known_bytes),
        "unattributed_rss_bytes": max(0, memory.resident - memory.mapped_files - known_bytes),
    }


def sqlite_document(cold: ColdState) -> Document:
    """Python's SQLite does not tell what its allocator does."""
    return {
        "available": False,
        "source": "unavailable",
        "memory_used_bytes": 0,
        "memory_highwater_bytes": 0,
        "pagecache_used_slots": 0,
        "pagecache_used_slots_highwater": 0,
        "pagecache_overflow_bytes": 0,
        "pagecache_overflow_highwater_bytes": 0,
        "malloc_count": 0,
        "malloc_count_highwater": 0,
        "open_connections": cold.catalog_files,
        "prepared_statements": 0,
    }


def gc_document() -> Document:
    """Collections are never forced; those that the interpreter makes are counted by generation."""
    stats = gc.get_stats()
    return {
        "forced_gc_count": 0,
        "forced_gc_reclaimed_bytes_total": 0,
        "last_forced_gc_at_ms": None,
        "last_forced_gc_before_bytes": None,
        "last_forced_gc_after_bytes": None,
        "last_forced_gc_reclaimed_bytes": None,
        "heap_snapshots_written": 0,
        "last_heap_snapshot_at_ms": None,
        "collections": [generation["collections"] for generation in stats],
        "collected_objects": sum(generation["collected"] for generation in stats),
        "uncollectable_objects": sum(generation["uncollectable"] for generation in stats),
    }


def budgets_of(config: Config, cold: ColdState) -> dict[str, int]:
    return dict.fromkeys(_BUDGETS, 0) | {
        "sqlite_cache_budget_bytes": cold.catalog_files * CATALOG_READ_CACHE_BYTES,
        "worker_sqlite_cache_budget_bytes": CATALOG_MERGE_CACHE_BYTES if cold.catalog_files else 0,
        "segment_cache_budget_bytes": 0 if config.memory else config.cold_cache_bytes,
    }


def subsystems_of(config: Config, server: Server, engine: Engine, cold: ColdState) -> Document:
    return {
        "heap_estimates": {
            "ingest_queue_payload_bytes": server.body_budget.held_bytes,
            "routing_run_cache_bytes": 0,
            "exact_run_cache_bytes": 0,
            "mock_r2_in_memory_bytes": 0,
            "hot_content_bytes": sum(engine.machine.changes.hot_bytes),
            "published_content_bytes": cold.held_bytes,
            "cold_cache_bytes": cold.cache_bytes,
        },
        "mapped_files": dict.fromkeys(_MAPPED, 0),
        "disk_caches": dict.fromkeys(_DISK_CACHES, 0),
        "configured_budgets": budgets_of(config, cold),
        "pipeline_buffers": {
            "segmenter_active_payload_bytes": cold.upload_bytes,
            "segmenter_active_segment_bytes_estimate": 0,
            "uploader_inflight_segment_bytes": 0,  # it is the same step here
        },
        "sqlite_runtime": dict.fromkeys(_SQLITE_RUNTIME, 0),
        "counts": _counts(server, engine, cold),
    }


def _counts(server: Server, engine: Engine, cold: ColdState) -> Document:
    machine = engine.machine
    return dict.fromkeys(_COUNTS, 0) | {
        "ingest_queue_requests": engine.journal.depth,
        "pending_upload_segments": cold.uploads,
        "uploader_inflight_segments": cold.uploads,
        "segmenter_active_builds": cold.uploads,
        "sqlite_open_connections": cold.catalog_files,
        "cold_cache_entries": cold.cache_entries,
        "connections": len(server.connections),
        "resident_streams": len(machine.by_id),
        "changed_streams": machine.changes.dirty_count,
        "watched_streams": len(engine.watchers),
        "waiting_readers": engine.watcher_count,
        "buckets": len(machine.names.buckets),
        "threads": threading.active_count(),
        "allocated_blocks": sys.getallocatedblocks(),
    }


def totals_of(subsystems: Document) -> dict[str, int]:
    return {
        "heap_estimate_bytes": sum(subsystems["heap_estimates"].values()),
        "mapped_file_bytes": sum(subsystems["mapped_files"].values()),
        "disk_cache_bytes": sum(subsystems["disk_caches"].values()),
        "configured_budget_bytes": sum(subsystems["configured_budgets"].values()),
        "pipeline_buffer_bytes": sum(subsystems["pipeline_buffers"].values()),
        "sqlite_runtime_bytes": sum(subsystems["sqlite_runtime"].values()),
    }


def leak_candidates(engine: Engine) -> dict[str, int]:
    """What could grow without an end if the program had a fault; most of it cannot exist here."""
    counters = dict.fromkeys(_LEAK_CANDIDATES, 0) | {
        "notifier.latest_seq_streams": len(engine.watchers),
        "notifier.details_version_streams": len(engine.observers),
    }
    return {f"tieredstore.mem.leak_candidate.{name}": value for name, value in counters.items()}
