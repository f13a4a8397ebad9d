"""Which shards to flush now: a pure function of what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FlushLimits(NamedTuple):
    shard_bytes: int  # a shard with this much is flushed
    age_ms: int  # content older than this is flushed
    hot_bytes: int  # what all shards together may hold


class ShardHeat(NamedTuple):
    shard: int
    hot_bytes: int  # content in no run yet
    since_ms: int  # when the oldest of it may have come


def plan_flushes(
    shards: Sequence[ShardHeat], now_ms: int, limits: FlushLimits, *, floor_bytes: int | None = None
) -> list[int]:
    """Shards to flush, fullest first.

    By size, by age, and by pressure: when half of what may be hot is, the fullest shards go until a
    quarter is left. `floor_bytes` adds every shard with at least that much, as a checkpoint wants.
    """
    chosen = {
        heat.shard
        for heat in shards
        if heat.hot_bytes
        and (
            heat.hot_bytes >= limits.shard_bytes
            or now_ms - heat.since_ms >= limits.age_ms
            or (floor_bytes is not None and heat.hot_bytes >= floor_bytes)
        )
    }
    fullest = sorted(shards, key=lambda heat: -heat.hot_bytes)
    total = sum(heat.hot_bytes for heat in shards)
    if total >= limits.hot_bytes // 2:
        left = sum(heat.hot_bytes for heat in shards if heat.shard not in chosen)
        for heat in fullest:
            if left <= limits.hot_bytes // 4:
                break
            if heat.shard not in chosen:
                chosen.add(heat.shard)
                left -= heat.hot_bytes
    return [heat.shard for heat in fullest if heat.shard in chosen and heat.hot_bytes]
