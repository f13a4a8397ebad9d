"""The `touch` part of a state-protocol profile, with its defaults."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from millstream.state.rules import Rules


class TouchMemory(msgspec.Struct, frozen=True, rename="camel"):
    bucket_ms: int = 100
    filter_pow2: int = 22
    k: int = 4
    pending_max_keys: int = 100_000
    key_index_max_keys: int = 32
    hot_key_ttl_ms: int = 10_000
    hot_template_ttl_ms: int = 10_000
    hot_max_keys: int = 1_000_000
    hot_max_templates: int = 4096


class TouchTemplates(msgspec.Struct, frozen=True, rename="camel"):
    default_inactivity_ttl_ms: int | float = 3_600_000
    last_seen_persist_interval_ms: int | float = 300_000
    gc_interval_ms: int | float = 60_000
    max_active_templates_per_entity: int | float = 256
    max_active_templates_per_stream: int | float = 2048
    activation_rate_limit_per_minute: int | float = 100


class TouchSettings(msgspec.Struct, frozen=True, rename="camel"):
    enabled: bool = False
    coarse_interval_ms: int | float = 100
    touch_coalesce_window_ms: int | float = 100
    on_missing_before: str = "coarse"
    lag_degrade_fine_touches_at_source_offsets: int = 5000
    lag_recover_fine_touches_at_source_offsets: int = 1000
    fine_touch_budget_per_batch: int = 2000
    fine_tokens_per_second: int = 200_000
    fine_burst_tokens: int = 400_000
    lag_reserved_fine_touch_budget_per_batch: int = 200
    memory: TouchMemory = TouchMemory()
    templates: TouchTemplates = TouchTemplates()


class _Profile(msgspec.Struct):
    touch: TouchSettings = TouchSettings()


def touch_settings_of(rules: Rules) -> TouchSettings | None:
    """None: touch is not enabled."""
    return _settings_in(rules.profile) if rules.touch else None


@lru_cache(maxsize=256)
def _settings_in(profile: bytes) -> TouchSettings | None:
    touch = msgspec.json.decode(profile or b"{}", type=_Profile).touch
    return touch if touch.enabled else None
