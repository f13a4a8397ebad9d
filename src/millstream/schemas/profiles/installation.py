"""Installing a profile: what becomes of the stream's rules."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from millstream.errors import InvalidSchema, StreamNotEmpty
from millstream.limits import PROFILES_CACHED
from millstream.schemas.documents import decode_document, encode_document
from millstream.schemas.profiles.evlog import EvlogProfile, evlog_settings
from millstream.schemas.profiles.evlog_registry import evlog_registry
from millstream.schemas.profiles.metrics import MetricsProfile
from millstream.schemas.profiles.metrics_registry import metrics_registry
from millstream.schemas.profiles.profile import GenericProfile, Profile
from millstream.schemas.profiles.state_protocol import StateProtocolProfile, state_settings
from millstream.schemas.registry import Change
from millstream.schemas.shapes import choice_at, object_at
from millstream.state.rules import GENERIC, Rules

API_VERSION = "durable.streams/profile/v1"
EVLOG, METRICS, STATE_PROTOCOL = "evlog", "metrics", "state-protocol"
KINDS = (EVLOG, GENERIC, METRICS, STATE_PROTOCOL)


def plan_profile(rules: Rules | None, body: bytes, is_json: bool, is_empty: bool) -> Change:
    """What a POST of this body does to a stream with these rules.

    Evlog and metrics bring their schema and search config with them, unless the stream has the
    profile already: then only its settings change. Other kinds leave the schemas as they are.
    Raises InvalidSchema, or StreamNotEmpty for evlog on a stream that has entries of another kind.
    """
    settings = _read_request(body)
    kind = settings["kind"]
    if kind != GENERIC and not is_json:
        raise InvalidSchema(f"{kind} profile requires application/json stream content-type")
    before = rules or Rules(revision=0)
    after = msgspec.structs.replace(
        before,
        kind=kind,
        profile=b"" if kind == GENERIC else encode_document(settings),
        touch=settings.get("touch", {}).get("enabled", False),
    )
    if kind == before.kind or kind in (GENERIC, STATE_PROTOCOL):
        return Change(after, begins_version=False, is_fresh=False, needs_empty=False)
    if kind == EVLOG and not is_empty:
        raise StreamNotEmpty("evlog profile must be installed before appending data")
    registry = evlog_registry() if kind == EVLOG else metrics_registry()
    replaced = registry.replace_in(after)
    return Change(replaced, begins_version=False, is_fresh=True, needs_empty=kind == EVLOG)


def profile_document(rules: Rules | None) -> dict[str, Any]:
    """What a GET shows."""
    stored = b"" if rules is None else rules.profile
    profile = decode_document(stored, "profile") if stored else {"kind": GENERIC}
    return {"apiVersion": API_VERSION, "profile": profile}


def profile_of(rules: Rules) -> Profile:
    return _stored_profile(rules.kind, rules.profile)


@lru_cache(maxsize=PROFILES_CACHED)
def _stored_profile(kind: str, profile: bytes) -> Profile:
    if kind == EVLOG:
        return EvlogProfile(decode_document(profile, "profile"))
    if kind == METRICS:
        return MetricsProfile()
    if kind == STATE_PROTOCOL:
        return StateProtocolProfile()
    return GenericProfile()


def _read_request(body: bytes) -> dict[str, Any]:
    """The profile in its normal form, every default filled in."""
    request = object_at(
        decode_document(body, "profile update"), "profileUpdate", ("apiVersion", "profile")
    )
    if request.get("apiVersion", API_VERSION) != API_VERSION:
        raise InvalidSchema("invalid profile apiVersion")
    profile = request.get("profile")
    if not isinstance(profile, dict):
        raise InvalidSchema("profile must be an object")
    kind = choice_at(profile.get("kind"), "profile.kind", KINDS)
    if kind == EVLOG:
        return evlog_settings(profile)
    if kind == STATE_PROTOCOL:
        return state_settings(profile)
    object_at(profile, "profile", ("kind",))
    return {"kind": kind}
