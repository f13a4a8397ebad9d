"""What we promised ourselves, checked against a run. A missed target is reported, not an error."""

from dataclasses import dataclass

from bench.results import Results
from bench.workloads import (
    append,
    append_batch,
    append_flushing,
    catch_up,
    cold_catch_up,
    cold_lookups,
    compaction,
    fan_out,
    idle_streams,
    ingest_cost,
    json_batch,
    listing,
    touch_wake,
    validated_json,
)

MILLSTREAM = "millstream"
APPENDS_128 = ("append", append.label(128))
APPENDS_1 = ("append", append.label(1))
RATE = "appends_per_second"
CPU = "server_cpu_us_per_append"
MESSAGES = "messages_per_second"
MEGABYTES = "megabytes_per_second"
PER_CORE = "megabytes_per_second_per_core"
RSS_STARTED = "rss_after_start_mib"


@dataclass(frozen=True)
class TargetCheck:
    target: str
    measured: float | None
    bound: float | None
    at_least: bool

    @property
    def verdict(self) -> str:
        if self.measured is None or self.bound is None:
            return "not measured"
        met = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return "met" if met else "MISSED"


def check_targets(results: Results) -> list[TargetCheck]:
    json_1000 = ("json_batch", json_batch.label(1000))
    read_64 = ("catch_up", catch_up.label(64 * 2**20, 64 * 1024))
    fan_out_1000 = ("fan_out", fan_out.label(1000))
    batch_500 = ("append_batch", append_batch.label(500))
    list_1000 = ("listing", listing.label(1_000_000, 1000))

    def ours(case: tuple[str, str], figure: str) -> float | None:
        return results.median(*case, MILLSTREAM, figure)

    return [
        _at_most("appends, 128 connections: server CPU µs each", ours(APPENDS_128, CPU), 20),
        _at_least("appends, 128 connections: per second", ours(APPENDS_128, RATE), 40_000),
        _single_append(results),
        _at_least("JSON in arrays of 1000: messages/s", ours(json_1000, MESSAGES), 1_000_000),
        _at_least("catch-up of 64 MiB: MB/s", ours(read_64, "megabytes_per_second"), 1000),
        _at_most("fan-out to 1000: p99 ms", ours(fan_out_1000, "p99_ms"), 25),
        _at_least("append-batch of 500: records/s", ours(batch_500, MESSAGES), 400_000),
        _at_most("listing 1000 of 1,000,000: p99 ms", ours(list_1000, "p99_ms"), 20),
        _times_reference(results, "reference-file", append.MANY_STREAMS, 50),
        _times_reference(results, "reference-file", append.FEW_STREAMS, 50),
        _times_reference(results, "reference-memory", append.MANY_STREAMS, 4),
        *_cold_targets(results),
        *_rules_targets(results),
    ]


def _cold_targets(results: Results) -> list[TargetCheck]:
    million = ("idle_streams", idle_streams.label(1_000_000, 2**30))
    compacted = ("compaction", compaction.label(10_000, 2**30))
    read_fs = ("cold_catch_up", cold_catch_up.label("fs", False, 1))
    read_fs_json = ("cold_catch_up", cold_catch_up.label("fs", True, 1))

    def ours(case: tuple[str, str], figure: str) -> float | None:
        return results.median(*case, MILLSTREAM, figure)

    return [
        _at_most("1,000,000 idle streams: RSS in all, MiB", ours(million, "rss_idle_mib"), 300),
        _at_most("the same after a start: RSS in all, MiB", ours(million, RSS_STARTED), 300),
        _at_most("start with them and 1 GiB of history, s", ours(million, "start_seconds"), 5),
        _at_most("the same after kill -9, s", ours(million, "start_after_kill_seconds"), 5),
        _at_least("cold catch-up from fs, binary: MB/s", ours(read_fs, MEGABYTES), 300),
        _at_least("cold catch-up from fs, JSON: MB/s", ours(read_fs_json, MEGABYTES), 300),
        _at_least("compaction on Spark: MB/s per core", ours(compacted, PER_CORE), 20),
        *(
            _at_most(
                f"PUTs per GiB, {ingest_cost.label(10_000, size)}",
                ours(("ingest_cost", ingest_cost.label(10_000, size)), "puts_per_gib"),
                300,
            )
            for size in (256, 1024)
        ),
        *(
            _at_most(
                f"append p99 while flushing, {streams} streams: times that without",
                ours(("append_flushing", append_flushing.label(128, streams)), "p99_times_still"),
                2,
            )
            for streams in (1000, 10_000)
        ),
    ]


def _rules_targets(results: Results) -> list[TargetCheck]:
    validated = ("validated_json", validated_json.label(1000))
    lookups = ("cold_lookups", cold_lookups.label(1_000_000, 100_000))
    one, many = (("touch_wake", touch_wake.label(waiters, 1)) for waiters in (1, 10_000))

    def ours(case: tuple[str, str], figure: str) -> float | None:
        return results.median(*case, MILLSTREAM, figure)

    return [
        _at_least("validated JSON in arrays of 1000: messages/s", ours(validated, MESSAGES), 1e5),
        _at_most("one key of 100,000, cold: p99 ms", ours(lookups, "key_p99_ms"), 50),
        _at_most("one moment of the same: p99 ms", ours(lookups, "since_p99_ms"), 20),
        _at_most("touch wake, 1 waiter: p99 ms", ours(one, "p99_ms"), 20),
        _at_most("touch wake, 1 of 10,000 waiters: p99 ms", ours(many, "p99_ms"), 100),
    ]


def _at_most(target: str, measured: float | None, bound: float | None) -> TargetCheck:
    return TargetCheck(target, measured, bound, at_least=False)


def _at_least(target: str, measured: float | None, bound: float | None) -> TargetCheck:
    return TargetCheck(target, measured, bound, at_least=True)


def _single_append(results: Results) -> TargetCheck:
    fdatasync_us = results.median(*APPENDS_1, MILLSTREAM, "fdatasync_p50_us")
    return _at_most(
        "appends, 1 connection: p50 µs within 2 fdatasyncs + 250",
        results.median(*APPENDS_1, MILLSTREAM, "p50_us"),
        None if fdatasync_us is None else 2 * fdatasync_us + 250,
    )


def _times_reference(results: Results, reference: str, streams: int, times: float) -> TargetCheck:
    case = append.label(128, streams)
    ours = results.median("append", case, MILLSTREAM, RATE)
    theirs = results.median("append", case, reference, RATE)
    ratio = ours / theirs if ours is not None and theirs else None
    return _at_least(f"appends, {case}: times {reference}", ratio, times)
