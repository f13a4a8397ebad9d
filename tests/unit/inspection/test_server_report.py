from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream.config import Config
from millstream.heap import load_process_memory, resident_bytes
from millstream.inspection.high_water import HighWater
from millstream.inspection.memory_report import ColdState
from millstream.inspection.server_report import ServerReport
from millstream.inspection.top_streams import top_streams
from millstream.limits import TOP_STREAMS, TOP_STREAMS_SAMPLED
from millstream.state.machine import StateMachine
from tests.unit.engine.world import FakeWatcher, World

MIB = 1024 * 1024
COLD = ColdState(
    held_bytes=11,
    cache_bytes=22,
    cache_entries=2,
    arrow_bytes=33,
    uploads=1,
    upload_bytes=44,
    loads=5,
    catalog_files=17,
)


def report(world: World, cold: ColdState | None = COLD, **settings: Any) -> ServerReport:
    server: Any = SimpleNamespace(connections={1, 2}, body_budget=SimpleNamespace(held_bytes=55))
    config = Config(memory=cold is None, **settings)
    return ServerReport(config, server, world.engine, None if cold is None else lambda: cold)


def test_limits_are_those_of_the_settings() -> None:
    limits = report(World(), hot_bytes=MIB, cold_cache_bytes=2 * MIB, cold_timeout=7.5)
    limits = limits.details()["configured_limits"]
    assert set(limits) == {
        *("caches", "concurrency", "ingest", "search", "segmenting", "timeouts", "memory")
    }
    assert limits["ingest"]["local_backlog_max_bytes"] == MIB
    assert limits["caches"]["segment_cache_bytes"] == 2 * MIB
    assert limits["caches"]["sqlite_cache_bytes"] == 17 * 512 * 1024
    assert limits["timeouts"]["object_store_timeout_ms"] == 7500
    assert limits["concurrency"]["read"] == 3


def test_the_runtime_tells_what_is_under_way() -> None:
    world = World()
    world.create(data=b"12345", count=1)
    world.append()
    world.append()
    runtime = report(world, hot_bytes=MIB).details()["runtime"]
    assert runtime["ingest_queue"] == {"requests": 2, "bytes": 55, "full": False}
    assert runtime["local_backpressure"] == {
        "enabled": True,
        "current_bytes": 5,
        "max_bytes": MIB,
        "over_limit": False,
    }
    assert runtime["uploads"] == {"pending_segments": 1}
    gate = {"configured_limit": 3, "current_limit": 3, "active": 3, "queued": 2}
    assert runtime["concurrency"]["read"] == gate
    assert runtime["concurrency"]["ingest"]["queued"] == 1
    memory = runtime["memory"]
    assert memory["last_rss_bytes"] == memory["process"]["rss_bytes"] > 10 * MIB
    assert memory["max_rss_bytes"] >= memory["last_rss_bytes"] // 2
    assert memory["process"]["external_bytes"] == 33
    assert memory["subsystems"]["heap_estimates"]["hot_content_bytes"] == 5
    assert memory["totals"]["heap_estimate_bytes"] == 55 + 5 + 11 + 22
    assert memory["totals"]["pipeline_buffer_bytes"] == 44


def test_a_full_budget_shows() -> None:
    world = World()
    world.engine.hot_budget.set_full(frozenset([0]), is_store_failing=False)
    runtime = report(world).details()["runtime"]
    assert runtime["ingest_queue"]["full"] is True
    assert runtime["local_backpressure"]["over_limit"] is True


def test_a_server_in_memory_has_no_cold_tier_to_tell_of() -> None:
    found = report(World(), None).details()
    assert found["runtime"]["local_backpressure"]["enabled"] is False
    assert found["configured_limits"]["caches"]["segment_cache_bytes"] == 0
    assert found["configured_limits"]["concurrency"]["upload"] == 0


def test_the_memory_document_is_the_same_told_in_short() -> None:
    world = World()
    world.create(data=b"12345", count=1)
    found = report(world).memory()
    assert set(found) == {
        *("ts", "process", "process_breakdown", "sqlite", "gc", "high_water", "counters"),
        *("runtime_counts", "runtime_bytes", "runtime_totals", "top_streams"),
    }
    assert len(found["counters"]) == 27
    assert all(name.startswith("tieredstore.mem.leak_candidate.") for name in found["counters"])
    assert "counts" not in found["runtime_bytes"]
    assert len(found["runtime_bytes"]["configured_budgets"]) == 9
    counts = found["runtime_counts"]
    assert (counts["connections"], counts["resident_streams"]) == (2, 1)
    assert found["gc"]["forced_gc_count"] == 0
    assert len(found["gc"]["collections"]) == 3
    assert found["high_water"]["process"]["rss_bytes"]["value"] > 10 * MIB
    assert msgspec.json.encode(found)


def test_the_system_tells_of_this_process() -> None:
    memory = load_process_memory()
    assert memory.resident_max >= memory.resident // 2 > 0
    assert memory.anonymous + memory.mapped_files + memory.shared == pytest.approx(
        memory.resident, rel=0.05
    )
    assert memory.resident == pytest.approx(resident_bytes(), rel=0.2)


# The highest numbers


def test_a_mark_stands_until_a_higher_number_comes() -> None:
    marks = HighWater()
    for now_ms, value in [(1000, 5), (2000, 4), (3000, 6), (4000, 6)]:
        found = marks.observe(now_ms, {"a": {"n": value, "b": {"m": -value}, "text": "x"}})
    assert found["a"]["n"] == {"value": 6, "at": "1970-01-01T00:00:03.000Z"}
    assert "text" not in found["a"]
    assert found["a"]["b"] == {}  # below nothing


# Streams that take most


def test_those_that_take_most_come_first_and_are_few() -> None:
    world = World()
    for number in range(2 * TOP_STREAMS):
        path = b"b/%d" % number
        world.create(path, data=b"x" * number, count=1 if number else 0)
    top = top_streams(world.engine, has_log=True)
    expected = [f"b/{number}" for number in (9, 8, 7, 6, 5)]
    assert [each["stream"] for each in top["local_storage_bytes"]] == expected
    assert top["pending_wal_bytes"][0] == {
        "stream": "b/9",
        "pending_wal_bytes": 9,
        "pending_rows": 1,
    }
    assert top_streams(world.engine, has_log=False)["pending_wal_bytes"] == []


def test_an_empty_stream_takes_nothing() -> None:
    world = World()
    world.create()
    top = top_streams(world.engine, has_log=True)
    assert top["local_storage_bytes"] == top["pending_wal_bytes"] == []


def test_of_many_streams_only_the_last_written_are_looked_at() -> None:
    world = World(StateMachine(shards=4))
    for number in range(3 * TOP_STREAMS_SAMPLED):
        world.create(b"b/%d" % number)
    sample = world.machine.changes.changed_lately(TOP_STREAMS_SAMPLED)
    assert TOP_STREAMS_SAMPLED // 2 < len(sample) <= TOP_STREAMS_SAMPLED
    assert world.machine.residents.by_path[b"b/%d" % (3 * TOP_STREAMS_SAMPLED - 1)] in sample


def test_what_is_hot_from_before_the_checkpoint_is_looked_at_too() -> None:
    world = World()
    stream = world.create(data=b"one", count=1)
    changes = world.machine.changes
    capture = changes.begin_capture(1, [])
    capture.take_some(10)
    changes.end_capture(capture)
    assert changes.changed_lately(10) == [stream]
    world.delete()
    world.commit()
    assert changes.changed_lately(10) == []


def test_waiting_readers_are_counted_by_what_they_wait_for() -> None:
    world = World()
    one, other = world.create(b"a/one"), world.create(b"a/other")
    for watch in (world.engine.watch, world.engine.watch, world.engine.observe):
        watch(other, FakeWatcher(other))
    world.engine.watch(one, FakeWatcher(one))
    assert top_streams(world.engine, has_log=True)["notifier_waiters"] == [
        {"stream": "a/other", "waiters": 2, "details_waiters": 1, "total_waiters": 3},
        {"stream": "a/one", "waiters": 1, "details_waiters": 0, "total_waiters": 1},
    ]
