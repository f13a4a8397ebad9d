"""What is measured: one module per workload, each turning a Plan into its cases."""

from collections.abc import Callable, Sequence

from bench.plan import Case, Plan
from bench.workloads import (
    append,
    append_batch,
    append_flushing,
    append_varied,
    bootstrap,
    catch_up,
    cold_catch_up,
    cold_lookups,
    compaction,
    fan_out,
    idle_streams,
    ingest_cost,
    json_batch,
    listing,
    long_poll,
    touch_wake,
    validated_json,
)

WORKLOADS: dict[str, Callable[[Plan], Sequence[Case]]] = {
    "append": append.cases,
    "append_varied": append_varied.cases,
    "json_batch": json_batch.cases,
    "catch_up": catch_up.cases,
    "fan_out": fan_out.cases,
    "long_poll": long_poll.cases,
    "append_batch": append_batch.cases,
    "bootstrap": bootstrap.cases,
    "listing": listing.cases,
    "append_flushing": append_flushing.cases,
    "cold_catch_up": cold_catch_up.cases,
    "cold_lookups": cold_lookups.cases,
    "touch_wake": touch_wake.cases,
    "validated_json": validated_json.cases,
    "ingest_cost": ingest_cost.cases,
    "idle_streams": idle_streams.cases,
    "compaction": compaction.cases,
}

__all__ = ["WORKLOADS"]
