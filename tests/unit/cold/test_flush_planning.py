from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.cold.flush_planning import FlushLimits, ShardHeat, plan_flushes
from tests.unit.effort import brief

NOW_MS = 1_000_000
LIMITS = FlushLimits(shard_bytes=100, age_ms=5000, hot_bytes=1000)


def plan(
    *hot_bytes: int, floor_bytes: int | None = None, limits: FlushLimits = LIMITS
) -> list[int]:
    heats = [ShardHeat(shard, size, NOW_MS) for shard, size in enumerate(hot_bytes)]
    return plan_flushes(heats, NOW_MS, limits, floor_bytes=floor_bytes)


def test_nothing_hot_is_nothing_to_flush() -> None:
    assert plan() == []
    assert plan(0, 0, floor_bytes=0) == []


def test_a_full_shard_is_flushed_the_fullest_first() -> None:
    assert plan(99, 100, 50, 150) == [3, 1]


def test_old_content_is_flushed_however_little_it_is() -> None:
    heats = [ShardHeat(0, 1, NOW_MS - 5000), ShardHeat(1, 1, NOW_MS - 4999), ShardHeat(2, 0, 0)]
    assert plan_flushes(heats, NOW_MS, LIMITS) == [0]


def test_a_checkpoint_takes_every_shard_from_its_floor_on() -> None:
    assert plan(9, 10, 11, floor_bytes=10) == [2, 1]


def test_half_the_budget_makes_the_fullest_go_until_a_quarter_is_left() -> None:
    limits = LIMITS._replace(shard_bytes=10_000)
    assert plan(99, 100, 150, 150, limits=limits) == []
    assert plan(99, 100, 150, 151, limits=limits) == [3, 2]


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 10_000)), max_size=8),
    st.one_of(st.none(), st.integers(0, 400)),
)
@brief
def test_every_plan_keeps_what_it_promises(
    shards: list[tuple[int, int]], floor_bytes: int | None
) -> None:
    heats = [ShardHeat(n, size, NOW_MS - age) for n, (size, age) in enumerate(shards)]
    planned = plan_flushes(heats, NOW_MS, LIMITS, floor_bytes=floor_bytes)
    sizes = [heats[shard].hot_bytes for shard in planned]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 not in sizes
    assert len(set(planned)) == len(planned)
    left = [heat for heat in heats if heat.shard not in planned]
    for heat in left:
        assert heat.hot_bytes < LIMITS.shard_bytes
        assert not heat.hot_bytes or NOW_MS - heat.since_ms < LIMITS.age_ms
        assert floor_bytes is None or not heat.hot_bytes or heat.hot_bytes < floor_bytes
    if sum(heat.hot_bytes for heat in heats) >= LIMITS.hot_bytes // 2:
        assert sum(heat.hot_bytes for heat in left) <= LIMITS.hot_bytes // 4
