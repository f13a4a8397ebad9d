"""What each number is called, what it is measured in, and which direction is better."""

from dataclasses import dataclass
from typing import Literal

Figures = dict[str, float]
"""One repeat of one case: figure name to value. The unit is the end of the name."""


@dataclass(frozen=True)
class Figure:
    title: str
    better: Literal["higher", "lower", "neither"]


FIGURES = {
    "appends_per_second": Figure("appends/s", "higher"),
    "messages_per_second": Figure("messages/s", "higher"),
    "megabytes_per_second": Figure("MB/s", "higher"),
    "megabytes_per_second_from_disk": Figure("MB/s, page cache empty", "higher"),
    "bare_disk_megabytes_per_second": Figure("bare disk, MB/s of object bytes", "neither"),
    "megabytes_per_second_per_core": Figure("MB/s per core", "higher"),
    "jobs": Figure("jobs", "neither"),
    "compacted_mib": Figure("compacted, MiB", "neither"),
    "segments_before": Figure("segments before", "neither"),
    "segments_after": Figure("segments after", "neither"),
    "session_seconds": Figure("session start and planning, s", "neither"),
    "gets_per_gib": Figure("object-store GETs per GiB", "lower"),
    "puts_per_gib": Figure("object-store PUTs per GiB", "lower"),
    "put_mib_per_gib": Figure("MiB written to the store per GiB", "lower"),
    "worker_cpu_us_per_megabyte": Figure("Python workers' CPU µs/MB", "lower"),
    "flushes": Figure("flushes", "neither"),
    "checkpoints": Figure("checkpoints", "neither"),
    "start_seconds": Figure("start after a stop, s", "lower"),
    "start_after_kill_seconds": Figure("start after kill -9, s", "lower"),
    "stop_seconds": Figure("stop, s", "lower"),
    "log_mib": Figure("log on disk at the kill, MiB", "neither"),
    "events_per_second": Figure("events/s written", "higher"),
    "creates_per_second": Figure("creates/s", "higher"),
    "appends_per_second_fixed": Figure("appends/s, bodies of one length", "neither"),
    "appends_per_second_still": Figure("appends/s without flushes", "neither"),
    "p50_us": Figure("p50 µs", "lower"),
    "p99_us": Figure("p99 µs", "lower"),
    "p50_still_us": Figure("p50 µs without flushes", "neither"),
    "p99_still_us": Figure("p99 µs without flushes", "neither"),
    "p99_times_still": Figure("p99, times that without flushes", "lower"),
    "flushes_per_second": Figure("flushes/s", "neither"),
    "p50_ms": Figure("p50 ms", "lower"),
    "p99_ms": Figure("p99 ms", "lower"),
    "last_ms": Figure("last of all, ms", "lower"),
    "server_cpu_us_per_append": Figure("server CPU µs/append", "lower"),
    "server_cpu_us_per_append_fixed": Figure("server CPU µs/append, one length", "neither"),
    "cpu_times_fixed": Figure("server CPU, times that of one length", "lower"),
    "server_cpu_us_per_message": Figure("server CPU µs/message", "lower"),
    "server_cpu_us_per_megabyte": Figure("server CPU µs/MB", "lower"),
    "server_cpu_us_per_delivery": Figure("server CPU µs/delivery", "lower"),
    "reader_cpu_us_per_delivery": Figure("our readers' CPU µs/delivery", "neither"),
    "constant_cpu_us_per_request": Figure("a constant answer's CPU µs", "neither"),
    "fdatasync_p50_us": Figure("bare fdatasync p50 µs", "neither"),
    "stream_megabytes": Figure("stream size, MB", "neither"),
    "deliveries_expected": Figure("deliveries expected", "neither"),
    "deliveries": Figure("deliveries", "neither"),
    "rss_before_mib": Figure("server RSS before, MiB", "lower"),
    "rss_after_mib": Figure("server RSS after, MiB", "lower"),
    "rss_empty_mib": Figure("RSS without streams, MiB", "lower"),
    "rss_idle_mib": Figure("RSS, all idle, MiB", "lower"),
    "rss_bytes_per_stream": Figure("RSS per stream, bytes", "lower"),
    "streams_resident": Figure("streams in memory", "neither"),
    "rss_with_history_mib": Figure("RSS after the history, MiB", "lower"),
    "rss_after_start_mib": Figure("RSS after a start, MiB", "lower"),
    "rss_after_kill_mib": Figure("RSS after the start after kill -9, MiB", "lower"),
    "rss_peak_mib": Figure("RSS at its peak, MiB", "lower"),
    "answers_full": Figure("answers 503 (full)", "neither"),
    "not_2xx": Figure("answers not 2xx", "lower"),
    "socket_errors": Figure("socket errors", "lower"),
    "deliveries_missing": Figure("deliveries missing", "lower"),
    "answers_missing": Figure("answers missing", "lower"),
}

FAULTS = frozenset({"not_2xx", "socket_errors", "deliveries_missing", "answers_missing"})
"""Figures that should be zero."""
