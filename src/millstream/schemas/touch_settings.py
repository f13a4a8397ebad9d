"""The `touch` settings of a state-protocol stream: what clients that wait are told, and when."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from millstream.errors import InvalidSchema
from millstream.limits import INTEGER_MAX, PROFILES_CACHED
from millstream.schemas.documents import decode_document
from millstream.schemas.shapes import choice_at, object_at
from millstream.state.rules import Rules

OnMissingBefore = Literal["coarse", "skipBefore", "error"]
ON_MISSING_BEFORE = get_args(OnMissingBefore)


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
    """Its fields, in this order and spelled as JSON, are what the server shows."""

    enabled: bool = True
    coarse_interval_ms: int | float = 100
    touch_coalesce_window_ms: int | float = 100
    on_missing_before: OnMissingBefore = "coarse"
    lag_degrade_fine_touches_at_source_offsets: int = 5000
    lag_recover_fine_touches_at_source_offsets: int = 1000
    fine_touch_budget_per_batch: int = 2000
    fine_tokens_per_second: int = 200_000
    fine_burst_tokens: int = 400_000
    lag_reserved_fine_touch_budget_per_batch: int = 200
    memory: TouchMemory = TouchMemory()
    templates: TouchTemplates = TouchTemplates()


class _Range(NamedTuple):
    """What a setting may be; errors say `wording`."""

    wording: str
    least: int = 0
    most: int = INTEGER_MAX
    excludes_least: bool = False
    takes_fractions: bool = False

    def holds(self, value: Any) -> bool:
        kinds = (int, float) if self.takes_fractions else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        return self.least <= value <= self.most and not (
            self.excludes_least and value == self.least
        )


_COUNT = _Range("an integer >= 0")
_POSITIVE_COUNT = _Range("an integer > 0", excludes_least=True)
_AMOUNT = _Range(">= 0", takes_fractions=True)
_POSITIVE_AMOUNT = _Range("> 0", excludes_least=True, takes_fractions=True)

_RANGES = {
    "coarseIntervalMs": _POSITIVE_AMOUNT,
    "touchCoalesceWindowMs": _POSITIVE_AMOUNT,
    "lagDegradeFineTouchesAtSourceOffsets": _COUNT,
    "lagRecoverFineTouchesAtSourceOffsets": _COUNT,
    "fineTouchBudgetPerBatch": _COUNT,
    "fineTokensPerSecond": _COUNT,
    "fineBurstTokens": _COUNT,
    "lagReservedFineTouchBudgetPerBatch": _COUNT,
}
_MEMORY_RANGES = {
    "bucketMs": _POSITIVE_COUNT,
    "filterPow2": _Range("an integer in [10,30]", 10, 30),
    "k": _Range("an integer in [1,8]", 1, 8),
    "pendingMaxKeys": _POSITIVE_COUNT,
    "keyIndexMaxKeys": _Range("an integer in [1,1024]", 1, 1024),
    "hotKeyTtlMs": _POSITIVE_COUNT,
    "hotTemplateTtlMs": _POSITIVE_COUNT,
    "hotMaxKeys": _POSITIVE_COUNT,
    "hotMaxTemplates": _POSITIVE_COUNT,
}
_TEMPLATES_RANGES = {
    "defaultInactivityTtlMs": _AMOUNT,
    "lastSeenPersistIntervalMs": _POSITIVE_AMOUNT,
    "gcIntervalMs": _POSITIVE_AMOUNT,
    "maxActiveTemplatesPerEntity": _POSITIVE_AMOUNT,
    "maxActiveTemplatesPerStream": _POSITIVE_AMOUNT,
    "activationRateLimitPerMinute": _AMOUNT,
}
_KEYS = ("enabled", "onMissingBefore", "memory", "templates", *_RANGES)


def parse_touch(document: Any, path: str) -> TouchSettings | None:
    """None: touch is switched off. Raises InvalidSchema."""
    settings = object_at(document, path, _KEYS)
    enabled = settings.get("enabled", False)
    if not isinstance(enabled, bool):
        raise InvalidSchema(f"{path}.enabled must be boolean")
    if "onMissingBefore" in settings:
        choice_at(settings["onMissingBefore"], f"{path}.onMissingBefore", ON_MISSING_BEFORE)
    _check_ranges(settings, path, _RANGES)
    for part, ranges in (("memory", _MEMORY_RANGES), ("templates", _TEMPLATES_RANGES)):
        if part in settings:
            inner = object_at(settings[part], f"{path}.{part}", ranges)
            _check_ranges(inner, f"{path}.{part}", ranges)
    return msgspec.convert(settings, TouchSettings) if enabled else None


def touch_document(settings: TouchSettings | None) -> dict[str, Any]:
    """What is kept and shown: every setting with its value."""
    if settings is None:
        return {"enabled": False}
    document: dict[str, Any] = msgspec.to_builtins(settings)
    return document


def touch_settings_of(rules: Rules) -> TouchSettings | None:
    """None: nothing can be waited for below /touch."""
    return _stored_touch(rules.profile) if rules.touch else None


@lru_cache(maxsize=PROFILES_CACHED)
def _stored_touch(profile: bytes) -> TouchSettings | None:
    return parse_touch(decode_document(profile, "profile")["touch"], "profile.touch")


def _check_ranges(settings: dict[str, Any], path: str, ranges: dict[str, _Range]) -> None:
    for key, allowed in ranges.items():
        if key in settings and not allowed.holds(settings[key]):
            raise InvalidSchema(f"{path}.{key} must be {allowed.wording}")
