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
    "events_per_second": Figure("events/s written", "higher"),
    "p50_us": Figure("p50 µs", "lower"),
    "p99_us": Figure("p99 µs", "lower"),
    "p50_ms": Figure("p50 ms", "lower"),
    "p99_ms": Figure("p99 ms", "lower"),
    "last_ms": Figure("last of all, ms", "lower"),
    "server_cpu_us_per_append": Figure("server CPU µs/append", "lower"),
    "server_cpu_us_per_message": Figure("server CPU µs/message", "lower"),
    "server_cpu_us_per_megabyte": Figure("server CPU µs/MB", "lower"),
    "server_cpu_us_per_delivery": Figure("server CPU µs/delivery", "lower"),
    "reader_cpu_us_per_delivery": Figure("our readers' CPU µs/delivery", "neither"),
    "fdatasync_p50_us": Figure("bare fdatasync p50 µs", "neither"),
    "stream_megabytes": Figure("stream size, MB", "neither"),
    "deliveries_expected": Figure("deliveries expected", "neither"),
    "deliveries": Figure("deliveries", "neither"),
    "rss_before_mib": Figure("server RSS before, MiB", "lower"),
    "rss_after_mib": Figure("server RSS after, MiB", "lower"),
    "not_2xx": Figure("answers not 2xx", "lower"),
    "socket_errors": Figure("socket errors", "lower"),
    "deliveries_missing": Figure("deliveries missing", "lower"),
    "answers_missing": Figure("answers missing", "lower"),
}

FAULTS = frozenset({"not_2xx", "socket_errors", "deliveries_missing", "answers_missing"})
"""Figures that should be zero."""
